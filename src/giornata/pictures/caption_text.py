"""Reads a caption as people write it: as UTF-8, its first line, checked. Every fault is kept, none is raised."""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from giornata.domain.errors import Fault

MAX_CAPTION_CHARS = 2000  # as every prompt of a spec
USE_UTF_8 = "save it as UTF-8"
LINE_ENDS = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionText:
    """A caption that can be used: the first of its lines, as kohya's scripts take it."""

    text: str
    has_several_lines: bool


def same_name(name: str) -> str:
    """Return a form in which equal-looking names are equal: macOS writes "é" as two code points, others as one."""
    return unicodedata.normalize("NFC", name)


def printable(name: str) -> str:
    """Return a name that any terminal and any JSON takes: bytes that are not text are escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def checked_caption(whole: str, where: str, faults: list[Fault]) -> CaptionText | None:
    """Return the first line of the caption without space around it; None, and a fault, when it cannot be used."""
    lines = LINE_ENDS.split(whole.strip(), maxsplit=1)
    caption = lines[0].strip()
    if not caption:
        faults.append(Fault(where=where, message="is an empty caption", hint="write one, or delete it"))
    elif len(caption) > MAX_CAPTION_CHARS:
        message = f"is a caption of {len(caption)} characters; at most {MAX_CAPTION_CHARS} are allowed"
        faults.append(Fault(where=where, message=message, hint="shorten it: a model reads 77 tokens"))
    elif any(ord(letter) < 32 and letter != "\t" for letter in caption):
        faults.append(Fault(where=where, message="holds control characters", hint=USE_UTF_8))
    else:
        return CaptionText(text=caption, has_several_lines=len(lines) > 1)
    return None


def read_utf8(path: Path, max_bytes: int, prefix: str, faults: list[Fault]) -> str | None:
    """Read the whole text; None, and a fault, when it is too large or no text. `prefix` stands before the file's
    name."""
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
    faults.append(Fault(where=prefix + printable(path.name), message=message, hint=hint))
    return None
