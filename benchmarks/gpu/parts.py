"""The parts, in the order in which they run: what each does, and how long it may take."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`limit_s` is for a GPU. A part that takes longer is ended, and counts as failed."""

    title: str
    limit_s: int


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "tests": Part(title="tests/gpu", limit_s=200),
        "steps": Part(title="Steps alone and together, against the example script", limit_s=240),
        "graphs": Part(title="Steps with CUDA graphs", limit_s=120),
        "compiled": Part(title="Steps with compiled kernels", limit_s=240),
        "eight_bits": Part(title="A base in 8 bits", limit_s=170),
        "memory": Part(title="Memory, measured and expected", limit_s=110),
        "pretrain": Part(title="Pre-training: steps and encoders of Stable Diffusion 2", limit_s=340),
        "encoders": Part(title="Encoders of SDXL, by batch", limit_s=80),
        "drawing": Part(title="Pictures of SDXL, against the pipeline of diffusers", limit_s=300),
    }
)
"""All limits together are 30 minutes; parts that take less leave room for the others in a call of 25."""

ON_A_CPU = 3
"""A rehearsal on a CPU may take so many times a part's limit: it shares the machine with others."""


def limit_s(part: str, device: str) -> int:
    """Seconds that the part may take on this kind of device."""
    return PARTS[part].limit_s * (1 if device == "cuda" else ON_A_CPU)
