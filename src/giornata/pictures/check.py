"""Checks a whole training folder before anything is uploaded: names and captions, then every picture."""

import sys
from dataclasses import dataclass
from pathlib import Path

from giornata.domain.errors import Fault
from giornata.domain.files.datasets import picture_notes
from giornata.pictures.folder import CAPTION_ENDING, PictureFile, read_folder
from giornata.pictures.inspection import DEFAULT_LIMITS, PictureInspection, PictureLimits, inspect
from giornata.pictures.masks import fold_masks


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFolder:
    """A folder's pictures, the findings about each (in the same order), and all faults."""

    items: tuple[PictureFile, ...]
    inspections: tuple[PictureInspection, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]


def check_folder(
    directory: Path,
    *,
    instance_prompt: str | None,
    minimum: int = 1,
    caption_ending: str = CAPTION_ENDING,
    limits: PictureLimits = DEFAULT_LIMITS,
    python: str = sys.executable,
    masks_into: Path | None = None,
) -> CheckedFolder:
    """Read the folder and inspect every picture in it. Raises Unavailable when pictures cannot be inspected.

    With `masks_into` masks beside pictures are used: pictures that have one are exchanged for copies in that folder.
    """
    found = read_folder(
        directory,
        instance_prompt=instance_prompt,
        minimum=minimum,
        max_file_bytes=limits.max_file_bytes,
        caption_ending=caption_ending,
    )
    inspections = inspect([(item.name, item.path) for item in found.items], limits=limits, python=python)
    masks = found.masks if masks_into is not None else {}
    of_masks = inspect([(mask.name, mask) for mask in masks.values()], limits=limits, python=python) if masks else []
    faults = [*found.faults, *(fault for one in (*inspections, *of_masks) for fault in one.faults)]
    items, notes = found.items, list(found.notes)
    if masks_into is None and found.masks:
        notes.append(f"masks are not used without masked_loss: {len(found.masks)} of them")
    elif masks_into is not None and not faults:
        folded, faults = fold_masks(
            items, masks, into=masks_into, python=python, max_file_bytes=limits.max_file_bytes
        )
        items = tuple(folded)
    return CheckedFolder(
        items=items,
        inspections=tuple(inspections),
        faults=tuple(dict.fromkeys(faults)),
        notes=(*notes, *picture_notes((one.name, one.notes) for one in inspections)),
    )
