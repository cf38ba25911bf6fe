"""Reads a user's training folder: pictures, and captions beside them. Opens no picture.

Captions come from `<stem>.txt` (as the Kohya scripts have it) or from rows of `metadata.jsonl` (as the `datasets`
library's imagefolder has it: {"file_name", and one of "text", "prompt", "caption"}; also "repeats").

A folder that holds no picture itself, but subfolders named as kohya's (`10_sks dog`), is read with these: see
`giornata.pictures.kohya_folders`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from giornata.domain.errors import Fault
from giornata.pictures.captions import METADATA_NAME, Captions, printable, read_captions, same_name
from giornata.pictures.kohya_folders import KohyaFolder, kohya_folders

# Also kinds that inspection will refuse: to skip somebody's photographs in silence would be worse.
READABLE_SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".apng",
    ".webp",
    ".bmp",
    ".tif",
    ".tiff",
    ".gif",
    ".avif",
)
PICTURE_SUFFIXES = frozenset((*READABLE_SUFFIXES, ".heic", ".heif", ".jxl", ".jp2", ".svg"))
LITTER = frozenset({"thumbs.db", "desktop.ini", "ehthumbs.db", "__macosx"})
MAX_FILE_BYTES = 50 * 2**20
MASK_ENDING = "-masklabel"
LISTED_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFile:
    """One picture. `name` is the file's, as it is on disk, behind that of its subfolder if it has one; without a
    caption the job's instance_prompt is used. An epoch holds it `repeats` times."""

    name: str
    path: Path
    sha256: str
    size_bytes: int
    caption: str | None
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderDataset:
    """What was found, sorted by name. With faults, `items` holds what could be read nonetheless.

    `masks` are files by the names of their pictures (see `giornata.pictures.masks`).
    """

    items: tuple[PictureFile, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    masks: Mapping[str, Path] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What has been found out so far. `kohya` says what the folder's name says of its pictures, if anything."""

    pictures: list[Path]
    masks: list[Path]
    texts: list[Path]
    metadata: Path | None
    folders: list[Path]
    faults: list[Fault]
    notes: list[str]
    kohya: KohyaFolder | None = None

    def fault(self, where: str, message: str, hint: str = "") -> None:
        self.faults.append(Fault(where=where, message=message, hint=hint))

    def name_of(self, name: str) -> str:
        """How a file in here is called when people and the platform are told of it."""
        return name if self.kohya is None else f"{self.kohya.path.name} - {name}"


def read_folder(
    directory: Path,
    *,
    instance_prompt: str | None,
    minimum: int = 3,
    maximum: int = 1000,
    max_file_bytes: int = MAX_FILE_BYTES,
    caption_ending: str = ".txt",
) -> FolderDataset:
    """Everything there is to upload, and everything that is wrong with it, at once. Bad input raises nothing.

    `minimum` and `maximum` bound the number of pictures; equal bytes count once towards the minimum. Captions of
    single pictures lie in files that end in `caption_ending`.
    """
    reading = _list(directory, caption_ending)
    parts = [] if reading is None else _parts(reading, caption_ending)
    count = sum(len(part.pictures) for part in parts)
    if reading is None or count > maximum:
        return _refused(directory, reading, count, maximum)
    files = [file for part in parts for file in _read_part(directory, part, instance_prompt, max_file_bytes)]
    reading.faults += [fault for part in parts if part is not reading for fault in part.faults]
    reading.notes += [note for part in parts if part is not reading for note in part.notes]
    items = _without_duplicates([file for file in files if file is not None], reading)
    dropped = sum(file is not None for file in files) - len(items)
    _check_count(directory, count, count - dropped, minimum, reading)
    faults = sorted(reading.faults, key=lambda fault: (fault.where != printable(str(directory)), fault.where))
    masks = {name: mask for part in parts for name, mask in _masks(part).items()}
    return FolderDataset(items=tuple(items), faults=tuple(faults), notes=tuple(reading.notes), masks=masks)


def _masks(part: _Reading) -> dict[str, Path]:
    """Masks by the names of their pictures."""
    by_stem = {same_name(path.stem.removesuffix(MASK_ENDING)): path for path in part.masks}
    found = {part.name_of(picture.name): by_stem.get(same_name(picture.stem)) for picture in part.pictures}
    return {printable(name): mask for name, mask in found.items() if mask is not None}


def _parts(reading: _Reading, caption_ending: str) -> list[_Reading]:
    """The folder, or its subfolders if they are kohya's and hold all of its pictures."""
    named = [] if reading.pictures else kohya_folders(reading.folders)
    parts = []
    for folder in named:
        part = _list(folder.path, caption_ending)
        if part is None:
            reading.fault(printable(folder.path.name), "cannot be listed", "check its permissions")
        else:
            part.kohya = folder
            parts.append(part)
    rest = [path.name for path in reading.folders if path not in {folder.path for folder in named}]
    rest += [path.name for part in parts for path in part.folders]
    if rest:
        reading.notes.insert(0, f"subfolders are not read: {_some(rest)}")
    return parts or [reading]


def _read_part(
    directory: Path, part: _Reading, instance_prompt: str | None, max_file_bytes: int
) -> list[PictureFile | None]:
    """One entry for each picture; None, and a fault, for those that cannot be uploaded."""
    captions = read_captions(part.pictures, part.texts, part.metadata)
    part.faults += [replace(fault, where=part.name_of(fault.where)) for fault in captions.faults]
    stems = {same_name(picture.stem) for picture in part.pictures}
    for mask in part.masks:
        if same_name(mask.stem.removesuffix(MASK_ENDING)) not in stems:
            hint = f"name it as the picture, with {MASK_ENDING}.png in place of the picture's ending"
            part.fault(printable(part.name_of(mask.name)), "is a mask without a picture", hint)
    if part.kohya is None:
        _check_captions(directory, captions, instance_prompt, part)
    return [_read_file(path, captions, max_file_bytes, part) for path in part.pictures]


def _list(directory: Path, caption_ending: str) -> _Reading | None:
    """Sorts the folder's names into what they are. None when it cannot be listed."""
    try:
        paths = sorted(directory.iterdir(), key=lambda path: path.name)
    except OSError:
        return None
    reading = _Reading(pictures=[], masks=[], texts=[], metadata=None, folders=[], faults=[], notes=[])
    others = []
    for path in paths:
        suffix = path.suffix.lower()
        if path.name.startswith(".") or path.name.lower() in LITTER:
            continue
        if path.is_dir():
            reading.folders.append(path)
        elif suffix == ".png" and path.stem.endswith(MASK_ENDING):
            reading.masks.append(path)
        elif suffix in PICTURE_SUFFIXES:
            reading.pictures.append(path)
        elif suffix == caption_ending.lower():
            reading.texts.append(path)
        elif path.name.lower() == METADATA_NAME:
            reading.metadata = path
        else:
            others.append(path.name)
    if others:
        reading.notes.append(
            f"neither pictures nor captions ({caption_ending}, {METADATA_NAME}), and not read: {_some(others)}"
        )
    return reading


def _some(names: Sequence[str]) -> str:
    """`a, b, c, d, e and 7 more`."""
    more = len(names) - LISTED_NAMES
    return ", ".join(map(printable, names[:LISTED_NAMES])) + (f" and {more} more" if more > 0 else "")


def _refused(directory: Path, reading: _Reading | None, count: int, maximum: int) -> FolderDataset:
    """The whole folder is at fault; nothing in it was read."""
    where = printable(str(directory))
    if reading is not None:
        message = f"holds {count} pictures; at most {maximum} are allowed"
        fault = Fault(where=where, message=message, hint="choose the best of them: 5 to 50 are usual")
        return FolderDataset(items=(), faults=(fault,), notes=tuple(reading.notes))
    if directory.is_dir():
        fault = Fault(where=where, message="cannot be listed", hint="check its permissions")
    elif directory.exists():
        fault = Fault(where=where, message="is a file", hint="name the folder that holds the pictures")
    else:
        fault = Fault(where=where, message="does not exist", hint="check the path")
    return FolderDataset(items=(), faults=(fault,), notes=())


def _read_file(path: Path, captions: Captions, max_file_bytes: int, reading: _Reading) -> PictureFile | None:
    """Size and hash of one picture; None, and a fault, when it cannot be uploaded."""
    where = printable(reading.name_of(path.name))
    if where != reading.name_of(path.name):
        reading.fault(where, "has a name that is not text (UTF-8)", "rename it")
        return None
    try:
        if not path.is_file():
            reading.fault(where, "is a link that leads nowhere" if path.is_symlink() else "is not a regular file")
            return None
        size_bytes = path.stat().st_size
        if size_bytes > max_file_bytes:
            message = f"is {size_bytes / 2**20:.1f} MiB; at most {max_file_bytes / 2**20:g} MiB are allowed"
            reading.fault(where, message, "save it smaller, as JPEG or PNG")
            return None
        sha256 = _sha256(path)
    except OSError as error:
        reading.fault(where, f"cannot be read: {error.strerror}", "check its permissions")
        return None
    kohya = reading.kohya
    return PictureFile(
        name=where,
        path=path,
        sha256=sha256,
        size_bytes=size_bytes,
        caption=captions.texts.get(path.name, None if kohya is None else kohya.caption),
        repeats=captions.repeats.get(path.name, 1 if kohya is None else kohya.repeats),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_duplicates(files: Sequence[PictureFile], reading: _Reading) -> list[PictureFile]:
    """Keeps the first of pictures with equal bytes. Twice with different captions is a fault: which one is meant?"""
    kept: dict[str, PictureFile] = {}
    for file in files:
        # Empty files are all alike, and inspection has something to say about each.
        first = kept.setdefault(file.sha256 if file.size_bytes else file.name, file)
        if first is file:
            continue
        if first.caption == file.caption and first.repeats != file.repeats:
            message = f"is the same picture as {first.name}, with other repeats"
            reading.fault(file.name, message, "delete one of the two")
        elif first.caption == file.caption:
            reading.notes.append(f"{file.name} is the same picture as {first.name}, and is left out")
        else:
            message = f"is the same picture as {first.name}, with another caption"
            reading.fault(file.name, message, "delete one of the two")
    return list(kept.values())


def _check_count(directory: Path, listed: int, count: int, minimum: int, reading: _Reading) -> None:
    where = printable(str(directory))
    if not listed:
        reading.fault(where, "holds no pictures", "put JPEG, PNG or WebP files right into it, not into subfolders")
    elif count < minimum:
        message = f"holds {count} different {'picture' if count == 1 else 'pictures'}; at least {minimum} are needed"
        reading.fault(where, message, "add some: 5 to 50 are usual")


def _check_captions(directory: Path, captions: Captions, instance_prompt: str | None, reading: _Reading) -> None:
    """Every picture needs a caption of its own, or the job's prompt."""
    without = [printable(path.name) for path in reading.pictures if path.name not in captions.tried]
    if instance_prompt is not None and instance_prompt.strip():
        if without and captions.texts:
            reading.notes.append(f"without a caption of their own, trained with instance_prompt: {_some(without)}")
        return
    hint = "give an instance_prompt, or write a caption into a .txt file of the same name"
    if without and not captions.tried:
        reading.fault(printable(str(directory)), "no picture has a caption, and there is no instance_prompt", hint)
    else:
        for name in without:
            reading.fault(name, "has no caption, and there is no instance_prompt", hint)
