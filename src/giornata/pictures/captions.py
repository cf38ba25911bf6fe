"""Reads captions beside pictures: `<stem>.txt` (or another ending), or rows of `metadata.jsonl`, which may also say
how often an epoch holds a picture, and its resolution. Every fault is kept, none is raised."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from giornata.domain.errors import Fault
from giornata.pictures.caption_text import CaptionText, checked_caption, printable, read_utf8, same_name
from giornata.pictures.metadata import MetadataRow

MAX_TXT_BYTES = 64 * 2**10
KEEP_ONE = "keep one of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captions:
    """The captions of a folder's pictures. `texts`, `repeats` and `resolutions` are by the picture's name on disk;
    `tried` names the pictures for which there was a caption, good or bad. `cut` counts the captions of several lines,
    of which the first is used."""

    texts: Mapping[str, str]
    repeats: Mapping[str, int]
    resolutions: Mapping[str, int]
    tried: frozenset[str]
    cut: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A caption for one picture, and the place that it was read from; None when it had a fault."""

    picture: str
    source: str
    caption: CaptionText | None


def read_captions(
    pictures: Sequence[Path], texts: Sequence[Path], rows: Sequence[tuple[str, MetadataRow]], *, prefix: str = ""
) -> Captions:
    """Read captions for `pictures` from the text files of the same folder, and from metadata.

    `rows` are (name in this folder, row). `prefix` stands before names wherever people are told of them.
    """
    faults: list[Fault] = []
    found = [*_from_texts(pictures, texts, prefix, faults)]
    repeats: dict[str, int] = {}
    resolutions: dict[str, int] = {}
    for picture, row in _of_pictures(pictures, rows, faults):
        if row.captioned:
            found.append(_Found(picture=picture, source=row.where, caption=row.text))
        if row.repeats is not None and repeats.setdefault(picture, row.repeats) != row.repeats:
            message = "repeats a picture another number of times"
            faults.append(Fault(where=row.where, message=message, hint=KEEP_ONE))
        if row.resolution is not None and resolutions.setdefault(picture, row.resolution) != row.resolution:
            message = "gives a picture another resolution"
            faults.append(Fault(where=row.where, message=message, hint=KEEP_ONE))
    by_picture: dict[str, list[_Found]] = defaultdict(list)
    for one in found:
        by_picture[one.picture].append(one)
    for picture, several in by_picture.items():
        if len(several) > 1:
            message = f"has more than one caption: {' and '.join(one.source for one in several)}"
            faults.append(Fault(where=prefix + printable(picture), message=message, hint=KEEP_ONE))
    good = {one.picture: one.caption.text for one in found if one.caption is not None}
    cut = {one.source for one in found if one.caption is not None and one.caption.has_several_lines}
    return Captions(
        texts=good,
        repeats=repeats,
        resolutions=resolutions,
        tried=frozenset(by_picture),
        cut=len(cut),
        faults=tuple(faults),
    )


def _from_texts(
    pictures: Sequence[Path], texts: Sequence[Path], prefix: str, faults: list[Fault]
) -> Iterator[_Found]:
    by_stem: dict[str, list[str]] = defaultdict(list)
    for picture in pictures:
        by_stem[same_name(picture.stem)].append(picture.name)
    for path in texts:
        names, where = by_stem.get(same_name(path.stem)), prefix + printable(path.name)
        if not names:
            hint = (
                f"name it as the picture, with {path.suffix} in place of the picture's ending; "
                "move other texts elsewhere"
            )
            faults.append(Fault(where=where, message="is a caption without a picture", hint=hint))
            continue
        whole = read_utf8(path, MAX_TXT_BYTES, prefix, faults)
        caption = None if whole is None else checked_caption(whole, where, faults)
        for name in names:
            yield _Found(picture=name, source=printable(path.name), caption=caption)


def _of_pictures(
    pictures: Sequence[Path], rows: Sequence[tuple[str, MetadataRow]], faults: list[Fault]
) -> Iterator[tuple[str, MetadataRow]]:
    """Return pairs of (the picture's name on disk, its row)."""
    by_name = {same_name(picture.name): picture.name for picture in pictures}
    for name, row in rows:
        picture = by_name.get(same_name(name))
        if picture is None:
            faults.append(no_such_picture(row))
        else:
            yield picture, row


def no_such_picture(row: MetadataRow) -> Fault:
    """Return the fault of a row that names a file that is not in the folder, or in none that was found."""
    message = f"names a picture that is not there: {row.file_name}"
    return Fault(where=row.where, message=message, hint="mend or delete the line")
