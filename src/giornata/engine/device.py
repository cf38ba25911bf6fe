"""The choice of the device, and the settings that make its results repeatable."""

import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from giornata.domain.errors import Fault, InvalidInput

LIBRARIES = ("torch", "diffusers", "transformers", "peft", "numpy", "safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that the engine computes on. `name` is torch's (`cuda`, `cpu`); `description` is for people (`NVIDIA
    GeForce RTX 4090`)."""

    name: str
    description: str
    vram_bytes: int | None = None
    versions: dict[str, str] = field(default_factory=dict)


def prepare_device(wanted: str, threads: int) -> Device:
    """Choose the device, fix what the bits of a result depend on, and see that the device answers.

    `wanted` is auto, cpu or cuda. Raises InvalidInput when there is no CUDA device and one was asked for.
    """
    import torch

    from giornata.diffusion.draws.determinism import fix_determinism

    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        fault = Fault(where="--device", message="torch sees no CUDA device", hint="check nvidia-smi and the driver")
        raise InvalidInput([fault])
    fix_determinism(threads)
    versions = {"giornata": _version("giornata")} | {name: _version(name) for name in LIBRARIES}
    if wanted == "cpu" or not available:
        return Device(name="cpu", description="cpu", versions=versions)
    torch.zeros(1, device="cuda").add_(1).item()  # a broken driver shows here and not in a job
    properties = torch.cuda.get_device_properties(0)
    versions["cuda"] = str(torch.version.cuda)
    return Device(name="cuda", description=properties.name, vram_bytes=properties.total_memory, versions=versions)


def free_vram_bytes() -> int | None:
    """Return the bytes that a job could have on the card: free, or held by this process in reserve. Returns None
    without a card, or when it does not answer; loads nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    try:
        free, _ = torch.cuda.mem_get_info()
    except RuntimeError:
        return None
    return int(free + torch.cuda.memory_reserved())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
