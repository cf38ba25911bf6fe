"""Files that an order of pictures starts from: looked at on this machine before anything is sent."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from giornata.control.jobs.submission.mask_faults import Sides, mask_fault
from giornata.domain.errors import Fault
from giornata.pictures.inspection import inspect

OPTIONS = {"image": "--image", "mask": "--mask"}
"""Fields of the spec, and the option that names a file for each."""


def hashes_of(files: Mapping[str, Path], faults: list[Fault]) -> dict[str, str]:
    """Return the sha256 of each file by its field. Files that are not there or cannot be shown, and a mask of another
    size than its picture, are added to `faults`.
    """
    there = {field: path for field, path in files.items() if path.is_file()}
    for field in files.keys() - there.keys():
        faults.append(Fault(where=OPTIONS[field], message=f"{files[field]} is no file", hint="name a picture's file"))
    looks = inspect([(OPTIONS[field], path) for field, path in there.items()]) if there else []
    sides: dict[str, Sides] = {}
    for field, look in zip(there, looks, strict=True):
        if look.width is not None and look.height is not None:
            sides[field] = (look.width, look.height)
        else:
            faults += look.faults
    faults += mask_fault(OPTIONS["mask"], sides.get("image"), sides.get("mask"))
    return {field: _sha256(path) for field, path in there.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
