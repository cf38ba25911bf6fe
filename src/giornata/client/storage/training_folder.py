"""Read a folder of pictures as a dataset, and report every fault before a byte is sent."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from giornata.client.storage.uploads import LocalFile
from giornata.domain.errors import Fault, InvalidInput
from giornata.pictures.check import CheckedFolder, check_folder
from giornata.pictures.folder import CAPTION_ENDING
from giornata.pictures.subsets import Subset, check_subsets
from giornata.protocol.uploads import DatasetItem

CaptionsCheck = Callable[[Sequence[tuple[str, str]]], Iterable[Fault]]
"""Takes the names of pictures with their captions, and returns what is wrong with these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFolder:
    """A folder that may be sent: its files, the dataset that they make, and what a person might like to know."""

    files: tuple[LocalFile, ...]
    items: tuple[DatasetItem, ...]
    notes: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each picture in pixels, as a viewer shows it; in the order of `items`."""

    @property
    def size_bytes(self) -> int:
        """The size of all files together, in bytes."""
        return sum(file.size_bytes for file in self.files)


def _nothing_wrong(captions: Sequence[tuple[str, str]]) -> Iterable[Fault]:
    del captions
    return ()


def read_training_folder(
    directory: Path,
    *,
    instance_prompt: str | None,
    minimum: int = 1,
    masks_into: Path | None = None,
    caption_ending: str = CAPTION_ENDING,
    captions_check: CaptionsCheck = _nothing_wrong,
) -> TrainingFolder:
    """Check names, captions and every picture. Raises InvalidInput with all that is wrong.

    With `masks_into` masks beside pictures are used; what is to be sent of these lies in that folder. Files with
    `caption_ending` are the captions. `captions_check` gives further faults of the captions.
    """
    checked = check_folder(
        directory,
        instance_prompt=instance_prompt,
        minimum=minimum,
        masks_into=masks_into,
        caption_ending=caption_ending,
    )
    return sendable(_with_captions_check(checked, captions_check))


def read_training_subsets(
    subsets: Sequence[Subset],
    *,
    instance_prompt: str | None,
    minimum: int = 1,
    masks_into: Path | None = None,
    captions_check: CaptionsCheck = _nothing_wrong,
) -> TrainingFolder:
    """Several folders as one dataset, each with its own repeats, captions and resolution. Otherwise as
    `read_training_folder`."""
    checked = check_subsets(subsets, instance_prompt=instance_prompt, minimum=minimum, masks_into=masks_into)
    return sendable(_with_captions_check(checked, captions_check))


def _with_captions_check(checked: CheckedFolder, captions_check: CaptionsCheck) -> CheckedFolder:
    found = captions_check([(item.name, item.caption) for item in checked.items if item.caption is not None])
    return replace(checked, faults=(*checked.faults, *found))


def sendable(checked: CheckedFolder) -> TrainingFolder:
    """The checked folder in the words of the API. Raises InvalidInput with the faults of both."""
    faults, items = list(checked.faults), []
    for file in checked.items:
        try:
            item = DatasetItem(
                sha256=file.sha256,
                name=file.name,
                caption=file.caption,
                repeats=file.repeats,
                resolution=file.resolution,
            )
            items.append(item)
        except ValidationError as error:
            faults += [Fault(where=file.name, message=f"{each['loc'][0]}: {each['msg']}") for each in error.errors()]
    if faults:
        raise InvalidInput(faults)
    return TrainingFolder(
        files=tuple(
            LocalFile(path=file.path, sha256=file.sha256, size_bytes=file.size_bytes) for file in checked.items
        ),
        items=tuple(items),
        notes=checked.notes,
        sizes=tuple((each.width or 0, each.height or 0) for each in checked.inspections),
    )
