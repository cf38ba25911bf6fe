"""Inspects pictures before training costs money: `python -m giornata.pictures.inspector`.

One JSON object per line on stdin, {"path", "name"}; one per line on stdout, in the same order:
{"name", "format", "width", "height", "faults": [{"where", "message", "hint"}], "notes": [...]}. Width and height are
in pixels, as a viewer shows the picture (after EXIF rotation). A picture with a fault cannot be trained on; a note
says how one that is fine will be treated.

The bytes are a stranger's, and decoders are native code: this runs in a process of its own that takes limits on
memory and processor time upon itself and holds nothing worth stealing. `giornata.pictures.inspection` starts it, and
starts it anew when a picture has killed it. Only PIL, pillow-heif and the standard library are loaded.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from PIL import Image, ImageFile

from giornata.pictures.inspection import PictureLimits
from giornata.pictures.inspector.examine import examine
from giornata.pictures.inspector.process_limits import allow_cpu, decode_avif_in_one_thread, take_limits


def answer(requests: Iterable[str], replies: IO[str], limits: PictureLimits) -> None:
    """Write one reply line for each request line, flushed at once, so that the caller knows which picture is in
    hand."""
    for line in requests:
        request = json.loads(line)
        allow_cpu(limits.cpu_s)
        replies.write(examine(request["name"], Path(request["path"]), limits).line() + "\n")
        replies.flush()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the process: read requests from stdin until it ends."""
    options = _options(argv)
    # Whatever a native library prints must not land between the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    limits = PictureLimits(
        max_pixels=options.max_pixels,
        max_side_px=options.max_side,
        min_side_px=options.min_side,
        max_aspect=options.max_aspect,
        max_file_bytes=options.max_bytes,
        memory_bytes=options.memory_bytes,
        cpu_s=options.cpu_s,
    )
    Image.MAX_IMAGE_PIXELS = limits.max_pixels
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    decode_avif_in_one_thread()
    take_limits(memory_bytes=limits.memory_bytes)
    if options.announce:
        replies.write('{"ready": true}\n')
        replies.flush()
    answer(sys.stdin, replies, limits)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = PictureLimits()
    parser = argparse.ArgumentParser(prog="python -m giornata.pictures.inspector", description=__doc__)
    parser.add_argument("--max-pixels", type=int, default=defaults.max_pixels)
    parser.add_argument("--max-side", type=int, default=defaults.max_side_px, help="pixels")
    parser.add_argument("--min-side", type=int, default=defaults.min_side_px, help="pixels")
    parser.add_argument("--max-aspect", type=float, default=defaults.max_aspect)
    parser.add_argument("--max-bytes", type=int, default=defaults.max_file_bytes, help="of a file")
    parser.add_argument(
        "--memory-bytes", type=int, default=defaults.memory_bytes, help="address space of the process"
    )
    parser.add_argument("--cpu-s", type=int, default=defaults.cpu_s, help="processor time of one picture")
    parser.add_argument("--announce", action="store_true", help="write a line when ready to read requests")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
