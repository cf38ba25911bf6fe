"""The whole check of a training folder, before anything is uploaded: names and captions, then every picture."""

import sys
from dataclasses import dataclass
from pathlib import Path

from giornata.domain.errors import Fault, InvalidInput
from giornata.pictures.folder import PictureFile, read_folder
from giornata.pictures.inspection import DEFAULT_LIMITS, Inspection, PictureLimits, inspect


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFolder:
    """A folder's pictures, what was found out about each (in the same order), and all that is wrong."""

    items: tuple[PictureFile, ...]
    inspections: tuple[Inspection, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]

    def raise_faults(self) -> None:
        """Raises InvalidInput with every fault, if there is any."""
        if self.faults:
            raise InvalidInput(self.faults)


def check_folder(
    directory: Path,
    *,
    instance_prompt: str | None,
    minimum: int = 3,
    limits: PictureLimits = DEFAULT_LIMITS,
    python: str = sys.executable,
) -> CheckedFolder:
    """Reads the folder and inspects every picture in it. Raises Unavailable when pictures cannot be inspected."""
    found = read_folder(
        directory, instance_prompt=instance_prompt, minimum=minimum, max_file_bytes=limits.max_file_bytes
    )
    inspections = inspect([(item.name, item.path) for item in found.items], limits=limits, python=python)
    return CheckedFolder(
        items=found.items,
        inspections=tuple(inspections),
        faults=tuple(dict.fromkeys((*found.faults, *(fault for one in inspections for fault in one.faults)))),
        notes=(*found.notes, *(f"{one.name}: {note}" for one in inspections for note in one.notes)),
    )
