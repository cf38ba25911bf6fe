"""The driver and the free memory of a GPU, by nvidia-smi and without torch."""

import csv
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from giornata.domain.machines.node_checks import MIB

RunCommand = Callable[[Sequence[str]], str]
"""Runs a command and returns its standard output. Raises OSError or subprocess.SubprocessError."""

ANSWER_S = 30.0  # with a stuck card nvidia-smi never answers
QUERY = ("nvidia-smi", "--query-gpu=driver_version,memory.free", "--format=csv,noheader,nounits")
MODULE = Path("/proc/driver/nvidia/version")
LONGEST_TROUBLE = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """The state of the GPU that the engine will use. `trouble` says why something is not known."""

    driver: str | None = None
    free_vram_bytes: int | None = None
    trouble: str | None = None


def run_command(command: Sequence[str]) -> str:
    """Run a command for real."""
    done = subprocess.run(list(command), capture_output=True, text=True, timeout=ANSWER_S, check=True)
    return done.stdout


def query_gpu(run: RunCommand, *, visible: str | None, module: Path = MODULE) -> GpuState:
    """Ask nvidia-smi about the first of the devices that are `visible` (CUDA_VISIBLE_DEVICES), or the first at all.

    Where nvidia-smi is not there the kernel's module still names the driver.
    """
    first = (visible or "").split(",")[0].strip()
    command = (*QUERY, f"--id={first}") if first else QUERY
    try:
        said = run(command)
    except FileNotFoundError:
        return GpuState(driver=_of_module(module), trouble="nvidia-smi is not there")
    except subprocess.TimeoutExpired:
        return GpuState(trouble=f"nvidia-smi has not answered within {ANSWER_S:.0f} s")
    except subprocess.CalledProcessError as error:
        words = " ".join(f"{error.stdout or ''} {error.stderr or ''}".split())
        return GpuState(trouble=f"nvidia-smi ended with {error.returncode}: {words}"[:LONGEST_TROUBLE])
    except OSError as error:
        return GpuState(trouble=f"nvidia-smi: {error}"[:LONGEST_TROUBLE])
    return _read(said)


def _read(said: str) -> GpuState:
    rows = [[cell.strip() for cell in row] for row in csv.reader(said.splitlines()) if row]
    if not rows or len(rows[0]) != 2 or not rows[0][0][:1].isdigit():
        return GpuState(trouble=f"nvidia-smi said: {' '.join(said.split())}"[:LONGEST_TROUBLE])
    driver, free_mib = rows[0]
    # Some devices do not tell: [N/A], [Not Supported].
    if not free_mib.isdigit():
        return GpuState(driver=driver, trouble=f"nvidia-smi says of free memory: {free_mib}"[:LONGEST_TROUBLE])
    return GpuState(driver=driver, free_vram_bytes=int(free_mib) * MIB)


def _of_module(module: Path) -> str | None:
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 …"; the open module says some words more.
    try:
        lines = module.read_text(errors="replace").splitlines()
    except OSError:
        return None
    words = lines[0].split() if lines else []
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1 and word[-1].isdigit()), None)
