"""Writes masks into the alpha channels of their pictures: `python -m giornata.pictures.inspector.fold_mask`.

One JSON object per line on stdin, {"picture", "mask", "out"}, all paths; one per line on stdout, in the same order:
{"fault"}, null when a PNG was written to "out". It shows the picture as a viewer does, with the mask as its alpha
channel. Only PIL and the standard library are loaded; `giornata.pictures.masks` starts it.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from PIL import Image, ImageOps

from giornata.pictures.inspector.display import in_srgb, over_white

DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


def fold(picture: Path, mask: Path, out: Path) -> str | None:
    """Return the reason why the mask cannot be used; None when `out` is written."""
    with Image.open(picture) as opened:
        if opened.mode in DEEP_MODES:
            return "belongs to a picture of 16 bits per channel; save the picture with 8"
        shown = over_white(in_srgb(ImageOps.exif_transpose(opened)))
    with Image.open(mask) as opened:
        upright = ImageOps.exif_transpose(opened)
        levels = upright.convert("L") if upright.mode not in DEEP_MODES else None
    if levels is None:
        return "has 16 bits per channel; save it with 8"
    if levels.size != shown.size:
        sizes = " and ".join(f"{width} x {height}" for width, height in (levels.size, shown.size))
        return f"and its picture are of different sizes: {sizes} pixels"
    if levels.getbbox() is None:
        return "is black all over: nothing of the picture would be learned"
    shown.putalpha(levels)
    shown.save(out, format="PNG")
    return None


def answer(requests: Iterable[str], replies: IO[str]) -> None:
    """Write one reply line for each request line."""
    for line in requests:
        request = json.loads(line)
        try:
            fault = fold(Path(request["picture"]), Path(request["mask"]), Path(request["out"]))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            fault = f"cannot be used: {error}"
        replies.write(json.dumps({"fault": fault}) + "\n")
        replies.flush()


if __name__ == "__main__":
    answer(sys.stdin, sys.stdout)
