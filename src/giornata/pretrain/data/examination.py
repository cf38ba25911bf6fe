"""What is found out about one row of a source: whether its picture can be decoded to the end, and what filters say.

Nothing that a row holds can make this raise: it is the guard that lets millions of strangers' files through.
"""

import hashlib
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import pyarrow as pa
from PIL import Image

from giornata.diffusion.decoding import NotAPicture, TooManyPixels, Undecodable, check_png, decode, stored_mode
from giornata.pretrain.data import columns
from giornata.pretrain.data.filters import Filter, Record, Refusal, Refused
from giornata.pretrain.data.source_rows import Raw, SourceDamaged

logging.getLogger("PIL").setLevel(logging.ERROR)

PIECE, ORDINAL = "piece", "ordinal"  # number of the piece, and of the row in it
SOURCE, PLACE, DETAIL = "source", "place", "detail"
PIXELS, HASH = "pixels", "hash"

EXAMINED = pa.schema(
    {
        PIECE: pa.int32(),
        ORDINAL: pa.int64(),
        columns.KEY: pa.binary(32),
        PIXELS: pa.int64(),  # width times height
        HASH: pa.uint64(),  # perceptual; 0 where none was asked for
        columns.REASON: pa.string(),  # empty: the row may be kept
        DETAIL: pa.string(),
        SOURCE: pa.string(),
        PLACE: pa.string(),
        columns.CAPTION: pa.string(),
    }
)

_NO_KEY = bytes(32)
_SIDE, _LOW = 32, 8

# DCT-II without its scale factors: bits are comparisons
_COSINES = np.cos(math.pi / _SIDE * np.outer(np.arange(_LOW), np.arange(_SIDE) + 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """`key` is sha256 of the picture's bytes. `refused` is None for a row that may be kept."""

    key: bytes = _NO_KEY
    width: int = 0
    height: int = 0
    perceptual_hash: int = 0
    refused: Refused | None = None


def examine(raw: Raw, filters: Sequence[Filter], *, perceptual: bool) -> Examined:
    """Decode the picture to its end and ask the filters."""
    if not raw.image:
        detail = "has no picture" if raw.image is None else "has no bytes"
        return Examined(refused=Refused(reason=Refusal.EMPTY, detail=detail))
    key = hashlib.sha256(raw.image).digest()
    try:
        check_png(raw.image)
        picture, mode = decode(raw.image), stored_mode(raw.image)
    except Undecodable as error:
        return Examined(key=key, refused=Refused(reason=_reason(error), detail=str(error)[:300]))
    record = Record(width=picture.width, height=picture.height, caption=raw.caption, mode=mode)
    refused = next((found for judge in filters if (found := judge(record))), None)
    hashed = hash_of(picture) if perceptual and refused is None else 0
    return Examined(key=key, width=picture.width, height=picture.height, perceptual_hash=hashed, refused=refused)


def hash_of(picture: Image.Image) -> int:
    """A perceptual hash of 64 bits of an upright RGB picture: of pictures that look alike it differs in few bits.

    It is that of Zauner, "Implementation and benchmarking of perceptual image hash functions" (2010): gray, 32 × 32,
    the 8 × 8 lowest frequencies of a DCT-II, one bit each for above their median. Scaled, recompressed and slightly
    recolored copies differ in a few bits; so do different pictures of little content, such as plain drawings.
    """
    grey_HW = np.asarray(picture.convert("L").resize((_SIDE, _SIDE), Image.Resampling.LANCZOS), dtype=np.float64)
    low = (_COSINES @ grey_HW @ _COSINES.T).ravel()
    bits = low > np.median(low[1:])  # the first is the mean brightness
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def _reason(error: Undecodable) -> Refusal:
    if isinstance(error, NotAPicture):
        return Refusal.NOT_A_PICTURE
    return Refusal.TOO_MANY_PIXELS if isinstance(error, TooManyPixels) else Refusal.DAMAGED


def examined_rows(
    rows: Iterable[Raw], filters: Sequence[Filter], *, piece: int, name: str, perceptual: bool
) -> Iterator[dict[str, object]]:
    """Rows of EXAMINED for one piece. Where the source breaks off, a last one says so under `name`."""
    numbers, rest = count(), iter(rows)
    while True:
        number = next(numbers)
        try:
            raw = next(rest)
        except StopIteration:
            return
        except SourceDamaged as error:
            refused = Refused(reason=Refusal.SOURCE_DAMAGED, detail=str(error))
            lost = Raw(source=name, place="", image=None, captions=())
            yield _row(piece, number, lost, Examined(refused=refused))
            return
        yield _row(piece, number, raw, examine(raw, filters, perceptual=perceptual))


def _row(piece: int, number: int, raw: Raw, found: Examined) -> dict[str, object]:
    return {
        PIECE: piece,
        ORDINAL: number,
        columns.KEY: found.key,
        PIXELS: found.width * found.height,
        HASH: found.perceptual_hash,
        columns.REASON: found.refused.reason.value if found.refused else "",
        DETAIL: found.refused.detail if found.refused else "",
        SOURCE: raw.source,
        PLACE: raw.place,
        columns.CAPTION: raw.caption,
    }
