"""Reads a user's training folder: pictures, and captions beside them. Opens no picture.

Captions come from `<stem>.txt` (as the Kohya scripts have it; the ending can be chosen) or from rows of
`metadata.jsonl` (see `giornata.pictures.metadata`).

Subfolders are read when they say what their pictures are: those named as kohya's (`10_sks dog`, see
`giornata.pictures.kohya_folders`) in a folder that holds no picture itself, those with a `metadata.jsonl`, and those
whose pictures a `metadata.jsonl` above names.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from giornata.domain.errors import Fault
from giornata.domain.files.datasets import some_names
from giornata.pictures.caption_text import printable, same_name
from giornata.pictures.captions import Captions, no_such_picture, read_captions
from giornata.pictures.kohya_folders import kohya_folders
from giornata.pictures.listing import MASK_ENDING, Listing, list_below, list_folder
from giornata.pictures.metadata import MetadataRow, read_metadata

MAX_FILE_BYTES = 50 * 2**20
CAPTION_ENDING = ".txt"

Rows = Mapping[str, Sequence[tuple[str, MetadataRow]]]
"""(name in the folder, row) by the folder's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFile:
    """One picture file of a folder. `name` is the file's, as it is on disk, behind that of its subfolder if it has
    one; without a caption the job's instance_prompt is used. An epoch holds it `repeats` times. `resolution`: see
    `giornata.protocol.uploads`."""

    name: str
    path: Path
    sha256: str
    size_bytes: int
    caption: str | None
    repeats: int = 1
    resolution: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderDataset:
    """The pictures found in a folder, sorted by name. With faults, `items` holds those that could be read
    nonetheless.

    `masks` are files by the names of their pictures (see `giornata.pictures.masks`).
    """

    items: tuple[PictureFile, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    masks: Mapping[str, Path] = field(default_factory=dict)


def read_folder(
    directory: Path,
    *,
    instance_prompt: str | None,
    minimum: int = 1,
    maximum: int | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    caption_ending: str = CAPTION_ENDING,
) -> FolderDataset:
    """Return everything there is to upload, and everything that is wrong with it, at once. Bad input raises nothing.

    `minimum` and `maximum` bound the number of pictures; equal bytes count once towards the minimum.
    """
    top = list_folder(directory, caption_ending=caption_ending)
    parts, rows = ([], {}) if top is None else _parts(top, caption_ending)
    count = sum(len(part.pictures) for part in parts)
    if top is None or (maximum is not None and count > maximum):
        return _refused(directory, top, count, maximum)
    captions = [_captions(directory, part, rows, instance_prompt) for part in parts]
    files = [
        _read_file(path, of_part, max_file_bytes, part)
        for part, of_part in zip(parts, captions, strict=True)
        for path in part.pictures
    ]
    top.faults += [fault for part in parts if part is not top for fault in part.faults]
    top.notes += [note for part in parts if part is not top for note in part.notes]
    if cut := sum(of_part.cut for of_part in captions):
        top.notes.append(_several_lines(cut))
    items = _without_duplicates([file for file in files if file is not None], top)
    dropped = sum(file is not None for file in files) - len(items)
    _check_count(directory, count, count - dropped, minimum, top)
    faults = sorted(top.faults, key=lambda fault: (fault.where != printable(str(directory)), fault.where))
    masks = {name: mask for part in parts for name, mask in _masks(part).items()}
    return FolderDataset(items=tuple(items), faults=tuple(faults), notes=tuple(top.notes), masks=masks)


def _several_lines(count: int) -> str:
    if count == 1:
        return "1 caption has several lines; the first is used"
    return f"{count} captions have several lines; the first of each is used"


def _masks(part: Listing) -> dict[str, Path]:
    """Return masks by the names of their pictures."""
    by_stem = {same_name(path.stem.removesuffix(MASK_ENDING)): path for path in part.masks}
    found = {part.name_of(picture.name): by_stem.get(same_name(picture.stem)) for picture in part.pictures}
    return {printable(name): mask for name, mask in found.items() if mask is not None}


def _parts(top: Listing, caption_ending: str) -> tuple[list[Listing], Rows]:
    """Return the folders whose pictures are read, and the rows of metadata for these."""
    below = list(list_below(top, caption_ending=caption_ending))
    kohyas = {} if top.pictures else {folder.path: folder for folder in kohya_folders(top.folders)}
    for listing in below:
        listing.kohya = kohyas.get(listing.path)
    rows = _rows_of([top, *below], top)
    parts = [each for each in below if each.kohya or each.metadata or _key(each.path) in rows]
    read = {part.path for part in parts}
    unread = [each for each in below if each.path not in read]
    lead_there = {above for path in read for above in path.parents}
    # A folder that only holds those that are read has nothing in it that is passed over.
    rest = [
        printable(each.prefix.removesuffix(" - ")) for each in unread if each.pictures or each.path not in lead_there
    ]
    if rest:
        top.notes.insert(0, f"subfolders are not read: {some_names(rest)}")
    is_read = top.pictures or _key(top.path) in rows or not parts
    return ([top, *parts] if is_read else parts), rows


def _rows_of(listings: Sequence[Listing], top: Listing) -> dict[str, list[tuple[str, MetadataRow]]]:
    """Return the rows of all metadata, by the folder of the picture that they name; faults go to `top`."""
    folders = {_key(listing.path) for listing in listings}
    found: dict[str, list[tuple[str, MetadataRow]]] = defaultdict(list)
    for listing in listings:
        metadata = listing.metadata
        for row in [] if metadata is None else read_metadata(metadata, prefix=listing.prefix, faults=top.faults):
            picture = listing.path / row.file_name
            if _key(picture.parent) in folders:
                found[_key(picture.parent)].append((picture.name, row))
            else:
                top.faults.append(no_such_picture(row))
    return found


def _key(folder: Path) -> str:
    return same_name(str(folder))


def _captions(directory: Path, part: Listing, rows: Rows, instance_prompt: str | None) -> Captions:
    """Read the captions of the part's pictures; faults are added to the part's."""
    captions = read_captions(part.pictures, part.texts, rows.get(_key(part.path), ()), prefix=part.prefix)
    part.faults += captions.faults
    stems = {same_name(picture.stem) for picture in part.pictures}
    for mask in part.masks:
        if same_name(mask.stem.removesuffix(MASK_ENDING)) not in stems:
            hint = f"name it as the picture, with {MASK_ENDING}.png in place of the picture's ending"
            part.fault(printable(part.name_of(mask.name)), "is a mask without a picture", hint)
    if part.kohya is None:
        _check_captions(directory, captions, instance_prompt, part)
    return captions


def _refused(directory: Path, listing: Listing | None, count: int, maximum: int | None) -> FolderDataset:
    """Return a result that refuses the whole folder; nothing in it was read."""
    where = printable(str(directory))
    if listing is not None:
        message = f"holds {count} pictures; at most {maximum} are allowed"
        fault = Fault(where=where, message=message, hint="choose the best of them: 5 to 50 are usual")
        return FolderDataset(items=(), faults=(fault,), notes=tuple(listing.notes))
    if directory.is_dir():
        fault = Fault(where=where, message="cannot be listed", hint="check its permissions")
    elif directory.exists():
        fault = Fault(where=where, message="is a file", hint="name the folder that holds the pictures")
    else:
        fault = Fault(where=where, message="does not exist", hint="check the path")
    return FolderDataset(items=(), faults=(fault,), notes=())


def _read_file(path: Path, captions: Captions, max_file_bytes: int, listing: Listing) -> PictureFile | None:
    """Return size and hash of one picture; None, and a fault, when it cannot be uploaded."""
    where = printable(listing.name_of(path.name))
    if where != listing.name_of(path.name):
        listing.fault(where, "has a name that is not text (UTF-8)", "rename it")
        return None
    try:
        if not path.is_file():
            listing.fault(where, "is a link that leads nowhere" if path.is_symlink() else "is not a regular file")
            return None
        size_bytes = path.stat().st_size
        if size_bytes > max_file_bytes:
            message = f"is {size_bytes / 2**20:.1f} MiB; at most {max_file_bytes / 2**20:g} MiB are allowed"
            listing.fault(where, message, "save it smaller, as JPEG or PNG")
            return None
        sha256 = _sha256(path)
    except OSError as error:
        listing.fault(where, f"cannot be read: {error.strerror}", "check its permissions")
        return None
    kohya = listing.kohya
    return PictureFile(
        name=where,
        path=path,
        sha256=sha256,
        size_bytes=size_bytes,
        caption=captions.texts.get(path.name, None if kohya is None else kohya.caption),
        repeats=captions.repeats.get(path.name, 1 if kohya is None else kohya.repeats),
        resolution=captions.resolutions.get(path.name),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_duplicates(files: Sequence[PictureFile], listing: Listing) -> list[PictureFile]:
    """Keep the first of pictures with equal bytes. Equal bytes with different captions are a fault, because either
    could be meant."""
    kept: dict[str, PictureFile] = {}
    for file in files:
        # Empty files are all alike, and inspection has something to say about each.
        first = kept.setdefault(file.sha256 if file.size_bytes else file.name, file)
        if first is file:
            continue
        usage = (file.repeats, file.resolution)
        if first.caption == file.caption and (first.repeats, first.resolution) != usage:
            what = "other repeats" if first.repeats != file.repeats else "another resolution"
            message = f"is the same picture as {first.name}, with {what}"
            listing.fault(file.name, message, "delete one of the two")
        elif first.caption == file.caption:
            listing.notes.append(f"{file.name} is the same picture as {first.name}, and is left out")
        else:
            message = f"is the same picture as {first.name}, with another caption"
            listing.fault(file.name, message, "delete one of the two")
    return list(kept.values())


_NO_PICTURES = (
    "put JPEG, PNG, WebP or HEIC files right into it; of subfolders only those are read that are named as 10_sks "
    "dog, or that a metadata.jsonl speaks of"
)


def _check_count(directory: Path, listed: int, count: int, minimum: int, listing: Listing) -> None:
    where = printable(str(directory))
    if not listed:
        listing.fault(where, "holds no pictures", _NO_PICTURES)
    elif count < minimum:
        message = f"holds {count} different {'picture' if count == 1 else 'pictures'}; at least {minimum} are needed"
        listing.fault(where, message, "add some: 5 to 50 are usual")


def _check_captions(directory: Path, captions: Captions, instance_prompt: str | None, listing: Listing) -> None:
    """Check that every picture has a caption of its own, or the job's prompt."""
    without = [printable(path.name) for path in listing.pictures if path.name not in captions.tried]
    if instance_prompt is not None and instance_prompt.strip():
        if without and captions.texts:
            listing.notes.append(
                f"without a caption of their own, trained with instance_prompt: {some_names(without)}"
            )
        return
    hint = "give an instance_prompt, or write a caption into a .txt file of the same name"
    if without and not captions.tried:
        listing.fault(printable(str(directory)), "no picture has a caption, and there is no instance_prompt", hint)
    else:
        for name in without:
            listing.fault(name, "has no caption, and there is no instance_prompt", hint)
