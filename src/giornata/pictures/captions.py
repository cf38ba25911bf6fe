"""Captions beside pictures: `<stem>.txt`, or rows of `metadata.jsonl`, which may also say how often an epoch holds a
picture. Every fault is kept, none is raised."""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giornata.domain.dataset import MAX_REPEATS
from giornata.domain.errors import Fault

METADATA_NAME = "metadata.jsonl"
CAPTION_KEYS = ("text", "prompt", "caption")
REPEATS_KEYS = ("repeats", "num_repeats")
MAX_CAPTION_CHARS = 2000  # as every prompt of a spec
MAX_TXT_BYTES = 64 * 2**10
MAX_METADATA_BYTES = 16 * 2**20
KEEP_ONE = "keep one of them"
USE_UTF_8 = "save it as UTF-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captions:
    """`texts` and `repeats` by the picture's name on disk; `tried` names the pictures for which there was a caption,
    good or bad."""

    texts: Mapping[str, str]
    repeats: Mapping[str, int]
    tried: frozenset[str]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A caption for one picture, and where it stands; `text` is None when it had a fault."""

    picture: str
    source: str
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row of the metadata. `captioned`: it speaks of a caption; `text` is None then when that had a fault."""

    file_name: str
    captioned: bool
    text: str | None
    repeats: int | None


def same_name(name: str) -> str:
    """A form in which equal-looking names are equal: macOS writes "é" as two code points, others as one."""
    return unicodedata.normalize("NFC", name)


def printable(name: str) -> str:
    """A name that any terminal and any JSON takes: bytes that are not text are escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def read_captions(pictures: Sequence[Path], texts: Sequence[Path], metadata: Path | None) -> Captions:
    """Captions for `pictures` from the .txt files and the metadata file of the same folder."""
    faults: list[Fault] = []
    found = [*_from_texts(pictures, texts, faults)]
    repeats: dict[str, int] = {}
    if metadata is not None:
        for source, picture, row in _from_metadata(pictures, metadata, faults):
            if row.captioned:
                found.append(_Found(picture=picture, source=source, text=row.text))
            if row.repeats is not None and repeats.setdefault(picture, row.repeats) != row.repeats:
                faults.append(Fault(where=source, message="repeats a picture another number of times", hint=KEEP_ONE))
    by_picture: dict[str, list[_Found]] = defaultdict(list)
    for one in found:
        by_picture[one.picture].append(one)
    for picture, several in by_picture.items():
        if len(several) > 1:
            sources = " and ".join(one.source for one in several)
            faults.append(
                Fault(where=printable(picture), message=f"has more than one caption: {sources}", hint=KEEP_ONE)
            )
    good = {one.picture: one.text for one in found if one.text is not None}
    return Captions(texts=good, repeats=repeats, tried=frozenset(by_picture), faults=tuple(faults))


def _from_texts(pictures: Sequence[Path], texts: Sequence[Path], faults: list[Fault]) -> Iterator[_Found]:
    by_stem: dict[str, list[str]] = defaultdict(list)
    for picture in pictures:
        by_stem[same_name(picture.stem)].append(picture.name)
    for path in texts:
        names = by_stem.get(same_name(path.stem))
        if not names:
            hint = "name it as the picture, with .txt in place of the picture's ending; move other texts elsewhere"
            faults.append(Fault(where=printable(path.name), message="is a caption without a picture", hint=hint))
            continue
        whole = _read_utf8(path, MAX_TXT_BYTES, faults)
        text = None if whole is None else _checked(whole, printable(path.name), faults)
        for name in names:
            yield _Found(picture=name, source=printable(path.name), text=text)


def _from_metadata(pictures: Sequence[Path], path: Path, faults: list[Fault]) -> Iterator[tuple[str, str, _Row]]:
    """(where it stands, the picture's name, the row)."""
    by_name = {same_name(picture.name): picture.name for picture in pictures}
    whole = _read_utf8(path, MAX_METADATA_BYTES, faults)
    # Not splitlines(): a caption may hold U+2028 and its like as they are.
    for number, line in enumerate((whole or "").split("\n"), start=1):
        where = f"{path.name}:{number}"
        row = _row(line, where, faults) if line.strip() else None
        if row is None:
            continue
        file_name = row.file_name
        picture = by_name.get(same_name(file_name.removeprefix("./")))
        if picture is None:
            hint = (
                "subfolders are not read: put the picture beside it"
                if "/" in file_name
                else "mend or delete the line"
            )
            faults.append(Fault(where=where, message=f"names a picture that is not there: {file_name}", hint=hint))
        else:
            yield where, picture, row


def _row(line: str, where: str, faults: list[Fault]) -> _Row | None:
    """None when not even the file can be told."""
    hint = '{"file_name": "a.png", "text": "a caption"} is a good line'
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        faults.append(Fault(where=where, message=f"is not JSON: {error}", hint=hint))
        return None
    file_name = row.get("file_name") if isinstance(row, dict) else None
    if not isinstance(file_name, str) or not file_name:
        faults.append(Fault(where=where, message='has no "file_name"', hint=hint))
        return None
    repeats = _repeats(row, where, faults)
    captioned = repeats is None or any(row.get(key) is not None for key in CAPTION_KEYS)
    text = _caption(row, where, faults, hint) if captioned else None
    return _Row(file_name=file_name, captioned=captioned, text=text, repeats=repeats)


def _repeats(row: Mapping[str, Any], where: str, faults: list[Fault]) -> int | None:
    """How often an epoch holds the picture; None when the row does not say."""
    given = [row[key] for key in REPEATS_KEYS if row.get(key) is not None]
    if not given:
        return None
    if len(given) == 1 and type(given[0]) is int and 1 <= given[0] <= MAX_REPEATS:
        return given[0]
    hint = f'give "repeats" once, a number from 1 to {MAX_REPEATS}'
    faults.append(Fault(where=where, message='has "repeats" that cannot be understood', hint=hint))
    return 1


def _caption(row: Mapping[str, Any], where: str, faults: list[Fault], hint: str) -> str | None:
    """None, and a fault, when there is not exactly one that can be used."""
    captions = {key: row[key] for key in CAPTION_KEYS if row.get(key) is not None}
    if len(captions) != 1:
        message = "has no caption" if not captions else f"has more than one caption: {', '.join(captions)}"
        hint = 'give exactly one of "text", "prompt" and "caption"'
        faults.append(Fault(where=where, message=message, hint=hint))
        return None
    ((key, caption),) = captions.items()
    if not isinstance(caption, str):
        faults.append(Fault(where=where, message=f'"{key}" is not a text', hint=hint))
        return None
    return _checked(caption, where, faults)


def _checked(caption: str, where: str, faults: list[Fault]) -> str | None:
    """The caption without space around it; None, and a fault, when it cannot be used."""
    caption = caption.strip()
    if not caption:
        faults.append(Fault(where=where, message="is an empty caption", hint="write one, or delete it"))
    elif len(caption) > MAX_CAPTION_CHARS:
        message = f"is a caption of {len(caption)} characters; at most {MAX_CAPTION_CHARS} are allowed"
        faults.append(Fault(where=where, message=message, hint="shorten it: a model reads 77 tokens"))
    elif any(ord(letter) < 32 and letter not in "\t\r\n" for letter in caption):
        faults.append(Fault(where=where, message="holds control characters", hint=USE_UTF_8))
    else:
        return caption
    return None


def _read_utf8(path: Path, max_bytes: int, faults: list[Fault]) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) <= max_bytes:
            return data.decode("utf-8-sig")
        message, hint = f"is larger than {max_bytes // 1024} KiB", "a caption is a sentence or two"
    except OSError as error:
        message, hint = f"cannot be read: {error.strerror}", "check its permissions"
    except UnicodeDecodeError as error:
        message, hint = f"is not UTF-8 (byte {error.start})", USE_UTF_8
    faults.append(Fault(where=printable(path.name), message=message, hint=hint))
    return None
