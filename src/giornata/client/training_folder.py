"""From a folder of pictures to a dataset, with everything that is wrong said before a byte is sent."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from giornata.client.uploads import LocalFile
from giornata.domain.errors import Fault, InvalidInput
from giornata.pictures.check import CheckedFolder, check_folder
from giornata.pictures.folder import CAPTION_ENDING
from giornata.protocol.datasets import DatasetItem


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
        """All pictures together."""
        return sum(file.size_bytes for file in self.files)


def read_training_folder(
    directory: Path,
    *,
    instance_prompt: str | None,
    minimum: int = 1,
    masks_into: Path | None = None,
    caption_ending: str = CAPTION_ENDING,
) -> TrainingFolder:
    """Check names, captions and every picture. Raises InvalidInput with all that is wrong.

    With `masks_into` masks beside pictures are used; what is to be sent of these lies in that folder. Files with
    `caption_ending` are the captions.
    """
    checked = check_folder(
        directory,
        instance_prompt=instance_prompt,
        minimum=minimum,
        masks_into=masks_into,
        caption_ending=caption_ending,
    )
    return sendable(checked)


def sendable(checked: CheckedFolder) -> TrainingFolder:
    """The checked folder in the words of the API. Raises InvalidInput with the faults of both."""
    faults, items = list(checked.faults), []
    for file in checked.items:
        try:
            item = DatasetItem(sha256=file.sha256, name=file.name, caption=file.caption, repeats=file.repeats)
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
