"""Reads rows of `metadata.jsonl`, as the `datasets` library's imagefolder has it: {"file_name", and one of "text",
"prompt", "caption"}; also "repeats" and "resolution". Every fault is kept, none is raised."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault
from giornata.domain.files.datasets import LEAST_RESOLUTION, MAX_REPEATS, MOST_RESOLUTION
from giornata.pictures.caption_text import CaptionText, checked_caption, printable, read_utf8

METADATA_NAME = "metadata.jsonl"
CAPTION_KEYS = ("text", "prompt", "caption")
REPEATS_KEYS = ("repeats", "num_repeats")
_REPEATS = REPEATS_KEYS, 1, MAX_REPEATS
_RESOLUTION = ("resolution",), LEAST_RESOLUTION, MOST_RESOLUTION
MAX_METADATA_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRow:
    """One row of metadata, which stands at `where`. `file_name` may lead into a subfolder.

    `captioned`: the row has a caption; `text` is None then when that had a fault.
    """

    where: str
    file_name: str
    captioned: bool
    text: CaptionText | None
    repeats: int | None
    resolution: int | None


def read_metadata(path: Path, *, prefix: str, faults: list[Fault]) -> list[MetadataRow]:
    """Return all rows that name a picture. `prefix` stands before the file's name wherever people are told of it."""
    whole = read_utf8(path, MAX_METADATA_BYTES, prefix, faults)
    # Not splitlines(): a caption may hold U+2028 and its like as they are.
    lines = enumerate((whole or "").split("\n"), start=1)
    rows = (_row(line, f"{prefix}{printable(path.name)}:{number}", faults) for number, line in lines if line.strip())
    return [row for row in rows if row is not None]


def _row(line: str, where: str, faults: list[Fault]) -> MetadataRow | None:
    """Parse one row; None when not even the file can be told."""
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
    repeats, resolution = (_number(row, each, where, faults) for each in (_REPEATS, _RESOLUTION))
    captioned = (repeats is None and resolution is None) or any(row.get(key) is not None for key in CAPTION_KEYS)
    text = _caption(row, where, faults, hint) if captioned else None
    return MetadataRow(
        where=where, file_name=file_name, captioned=captioned, text=text, repeats=repeats, resolution=resolution
    )


def _number(
    row: Mapping[str, Any], asked: tuple[Sequence[str], int, int], where: str, faults: list[Fault]
) -> int | None:
    """Return a whole number of the row; None when it has none. `asked`: its keys, and the least and the greatest that
    it may be. A number with a fault is the least."""
    keys, least, most = asked
    given = [row[key] for key in keys if row.get(key) is not None]
    if not given:
        return None
    if len(given) == 1 and type(given[0]) is int and least <= given[0] <= most:
        return given[0]
    hint = f'give "{keys[0]}" once, a number from {least} to {most}'
    faults.append(Fault(where=where, message=f'has "{keys[0]}" that cannot be understood', hint=hint))
    return least


def _caption(row: Mapping[str, Any], where: str, faults: list[Fault], hint: str) -> CaptionText | None:
    """Return the row's caption; None, and a fault, when there is not exactly one that can be used."""
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
    return checked_caption(caption, where, faults)
