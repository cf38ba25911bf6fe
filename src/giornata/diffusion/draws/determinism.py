"""The conditions that a result's bits depend on: fixed where possible, otherwise recorded."""

import os
import platform
from collections.abc import MutableMapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import giornata

Fingerprint = dict[str, Any]


def let_libraries_repeat(environment: MutableMapping[str, str]) -> None:
    """Set the variables that libraries read before their first matrix product, unless they are set. For the
    environment of a process that calls `fix_determinism`; the agent sets the same for its engine.

    torch refuses products on a GPU without CUBLAS_WORKSPACE_CONFIG. On Intel's processors, without MKL_CBWR, MKL's
    sums depend on where in memory a matrix begins, and so on what else the process has done.
    """
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    environment.setdefault("MKL_CBWR", "AUTO,STRICT")


def fix_determinism(threads: int) -> None:
    """Make torch repeat itself. Called once by the engine's process, before any work.

    `let_libraries_repeat` comes before it. The number of threads decides how sums are split on a CPU, so it is a
    setting and never a guess at the number of cores.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False  # its choice of algorithm depends on timing
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # only costs time: nothing here reads it


def let_cudnn_choose(device: torch.device, *, bits_promised: bool) -> None:
    """Let cuDNN try its algorithms for each new shape and keep the fastest, where no bits are promised.

    Otherwise only algorithms that repeat themselves are taken, and no time is measured.
    """
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not bits_promised
        torch.backends.cudnn.deterministic = bits_promised


def fingerprint(device: torch.device) -> Fingerprint:
    """Return the conditions that two runs must share to be expected to agree bit for bit."""
    on_cpu = {"mkl_cbwr": os.environ.get("MKL_CBWR")} if device.type == "cpu" else {}
    return on_cpu | {
        "code": giornata.__version__,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "device": _device_name(device),
        "diffusers": version("diffusers"),
        "numpy": version("numpy"),
        "peft": version("peft"),
        "tf32": {
            "conv": bool(torch.backends.cudnn.allow_tf32),
            "matmul": bool(torch.backends.cuda.matmul.allow_tf32),
        },
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def differences(one: Fingerprint, other: Fingerprint) -> dict[str, list[Any]]:
    """Return the entries that differ: name -> [value in one, value in other]."""
    names = sorted(set(one) | set(other))
    return {name: [one.get(name), other.get(name)] for name in names if one.get(name) != other.get(name)}


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        cudnn = torch.backends.cudnn.version()
        return f"{properties.name} sm_{properties.major}{properties.minor} cuda {torch.version.cuda} cudnn {cudnn}"
    return f"{device.type} {platform.machine()} {_processor()} {torch.backends.cpu.get_cpu_capability()}"


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model: the mathematical libraries choose their code by it, not only by its vector
    width."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
