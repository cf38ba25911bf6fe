"""Makes a small JPEG of a picture that browsers do not show: `python -m giornata.pictures.inspector.preview FILE`.

The JPEG goes to stdout: upright, in sRGB, transparent parts white. The process ends with a status other than 0 where
the picture cannot be read. As in `__main__`, the bytes are a stranger's: limits are taken before they are read.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageFile, ImageOps

from giornata.pictures.inspection import PictureLimits
from giornata.pictures.inspector.display import in_srgb, over_white
from giornata.pictures.inspector.process_limits import allow_cpu, decode_avif_in_one_thread, take_limits

SIDE_PX, QUALITY = 1024, 82


def preview(path: Path) -> bytes:
    """Return the picture as a JPEG with sides of at most SIDE_PX. Raises what Pillow raises."""
    with Image.open(path) as opened:
        upright = ImageOps.exif_transpose(opened)
        if upright.mode.startswith("I"):  # 16 bits per channel, of which the upper 8 are shown
            upright = upright.convert("I").point(lambda level: level * (1 / 256)).convert("L")
        upright.thumbnail((SIDE_PX, SIDE_PX))
        shown = over_white(in_srgb(upright))
    buffer = io.BytesIO()
    shown.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the process for one picture."""
    defaults = PictureLimits()
    parser = argparse.ArgumentParser(prog="python -m giornata.pictures.inspector.preview", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--max-pixels", type=int, default=defaults.max_pixels)
    parser.add_argument("--memory-bytes", type=int, default=defaults.memory_bytes)
    parser.add_argument("--cpu-s", type=int, default=defaults.cpu_s)
    options = parser.parse_args(argv)
    # Whatever a native library prints must not land in the JPEG.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    Image.MAX_IMAGE_PIXELS = options.max_pixels
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    decode_avif_in_one_thread()
    take_limits(memory_bytes=options.memory_bytes)
    allow_cpu(options.cpu_s)
    try:
        content = preview(options.file)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        sys.exit(f"the picture cannot be read: {error}")
    out.write(content)
    out.flush()


if __name__ == "__main__":
    main()
