"""The kinds of base model that can be trained, one file each. Read `family`, then `sdxl`."""

from pathlib import Path

from giornata.diffusion.families.family import Family, TextEncoder
from giornata.diffusion.families.sd15 import SD15
from giornata.diffusion.families.sdxl import SDXL, SDXL_REFINER

__all__ = [
    "FAMILIES",
    "LAYOUTS",
    "SD15",
    "SDXL",
    "SDXL_REFINER",
    "Family",
    "TextEncoder",
    "family_named",
    "family_of_index",
]

FAMILIES: tuple[Family, ...] = (SDXL, SD15)
LAYOUTS = Path(__file__).parent / "layouts"
"""The published configs of each family, which come with the package."""


def family_named(name: str) -> Family:
    """Return the family with this name. Raises KeyError."""
    return {family.name: family for family in FAMILIES}[name]


def family_of_index(class_name: object) -> Family | None:
    """Return the family whose pipeline `_class_name` in a model_index.json names; None when no family has it."""
    return next((family for family in FAMILIES if class_name in family.pipelines), None)
