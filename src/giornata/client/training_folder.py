"""From a folder of pictures to a dataset, with everything that is wrong said before a byte is sent."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from giornata.client.uploads import LocalFile
from giornata.domain.errors import Fault, InvalidInput
from giornata.pictures.folder import FolderDataset, read_folder
from giornata.pictures.inspection import Inspection, inspect
from giornata.protocol.datasets import DatasetItem

Inspect = Callable[[Sequence[tuple[str, Path]]], Sequence[Inspection]]


def check_folder(
    directory: Path, *, instance_prompt: str | None, look: Inspect = inspect
) -> tuple[list[LocalFile], tuple[DatasetItem, ...]]:
    """What to send, and the dataset's items. Raises InvalidInput with all faults of the folder and its pictures."""
    folder = read_folder(directory, instance_prompt=instance_prompt)
    faults = [*folder.faults, *_picture_faults(folder, look)]
    items = []
    for file in folder.items:
        try:
            items.append(DatasetItem(sha256=file.sha256, name=file.name, caption=file.caption))
        except ValidationError as error:
            faults += [Fault(where=file.name, message=f"{each['loc'][0]}: {each['msg']}") for each in error.errors()]
    if faults:
        raise InvalidInput(faults)
    files = [LocalFile(path=file.path, sha256=file.sha256, size_bytes=file.size_bytes) for file in folder.items]
    return files, tuple(items)


def _picture_faults(folder: FolderDataset, look: Inspect) -> list[Fault]:
    if not folder.items:
        return []
    inspections = look([(file.name, file.path) for file in folder.items])
    known = {(fault.where, fault.message) for fault in folder.faults}
    found = [fault for inspection in inspections for fault in inspection.faults]
    return [fault for fault in found if (fault.where, fault.message) not in known]
