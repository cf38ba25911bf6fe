"""Reads kohya's folders: an epoch holds each picture in `10_sks dog` ten times, and its caption is "sks dog" unless
it has one of its own."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from giornata.domain.files.datasets import MAX_REPEATS

_NAME = re.compile(r"(\d{1,6})_(.*\S)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class KohyaFolder:
    """A subfolder, with the repeats and the caption that its name gives."""

    path: Path
    repeats: int
    caption: str


def kohya_folders(folders: Iterable[Path]) -> list[KohyaFolder]:
    """Return those of these folders that are named so; `2024_holiday` is not, for no picture is repeated as often."""
    found = []
    for path in folders:
        match = _NAME.fullmatch(path.name)
        if match and 1 <= int(match[1]) <= MAX_REPEATS:
            found.append(KohyaFolder(path=path, repeats=int(match[1]), caption=match[2].strip()))
    return found
