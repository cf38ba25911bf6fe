"""What is drawn in `benchmarks/generate.py`: model, size and steps; and the folders of the models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.rig.full_model import build
from benchmarks.rig.refiner_model import build_refiner
from giornata.diffusion.tiny.tiny_model import build_tiny_model


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSize:
    """Pictures of `width` × `height` pixels in `steps` steps of the base, then `refiner_steps` of a refiner. `full`:
    the models have SDXL's published shapes."""

    full: bool
    width: int
    height: int
    steps: int
    refiner_steps: int = 0


SIZES: Mapping[str, PictureSize] = MappingProxyType(
    {
        "tiny": PictureSize(full=False, width=64, height=64, steps=20),
        "tiny-refined": PictureSize(full=False, width=80, height=64, steps=4, refiner_steps=3),
        "square": PictureSize(full=True, width=1024, height=1024, steps=30),
        "published": PictureSize(full=True, width=1216, height=896, steps=20, refiner_steps=15),
    }
)
"""`published` has the settings of a published benchmark of SDXL, `square` those of most figures of GPUs."""


def model_folders(size: PictureSize, home: Path, device: str) -> tuple[Path, Path | None]:
    """Write the base model, and the refiner if there is one. Full ones have random weights and 7 GB each."""
    base = build(home / "base", device) if size.full else build_tiny_model(home / "base")
    if not size.refiner_steps:
        return base, None
    return base, build_refiner(base, home / "refiner", full=size.full, device=device)
