"""The examination of one source row: its picture is decoded to the end, then the filters judge the row.

No content of a row makes the examination raise. A filter of your own is one more function in `filters_of`.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from giornata.diffusion.encode.decoding import NotAPicture, TooManyPixels, Undecodable, check_png, decode, stored_mode
from giornata.pretrain.data import columns
from giornata.pretrain.data.source_rows import Raw, SourceDamaged
from giornata.protocol.pretraining import Ingest

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
        HASH: pa.uint64(),  # perceptual; 0 where the options ask for none
        columns.REASON: pa.string(),  # empty: the row may be kept
        DETAIL: pa.string(),
        SOURCE: pa.string(),
        PLACE: pa.string(),
        columns.CAPTION: pa.string(),
    }
)

_SIDE, _LOW = 32, 8
# DCT-II without its scale factors: bits are comparisons
_COSINES = np.cos(math.pi / _SIDE * np.outer(np.arange(_LOW), np.arange(_SIDE) + 0.5))


class Refusal(StrEnum):
    """The reasons, as they stand in the quarantine and in the manifest."""

    SOURCE_DAMAGED = "source_damaged"  # a file of the source, from the place where reading it failed
    EMPTY = "empty"
    NOT_A_PICTURE = "not_a_picture"
    DAMAGED = "damaged"
    TOO_MANY_PIXELS = "too_many_pixels"
    MODE = "mode"
    TOO_SMALL = "too_small"
    EXTREME_ASPECT_RATIO = "extreme_aspect_ratio"
    NO_CAPTION = "no_caption"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near_duplicate"


class RefusedRow(NamedTuple):
    """The reason, and what the examination found, in words."""

    reason: Refusal
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A decoded picture with its caption. Sizes are in pixels, as a viewer shows them; `mode` is that of the file."""

    width: int
    height: int
    caption: str
    mode: str = "RGB"


Filter = Callable[[Record], RefusedRow | None]


def filters_of(options: Ingest) -> tuple[Filter, ...]:
    """The filters in the order of their calls. The first refusal counts."""

    def other_mode(record: Record) -> RefusedRow | None:
        kept = options.modes is None or record.mode in options.modes
        return None if kept else RefusedRow(Refusal.MODE, f"is {record.mode}")

    def too_small(record: Record) -> RefusedRow | None:
        kept = min(record.width, record.height) >= options.min_side_px
        return None if kept else RefusedRow(Refusal.TOO_SMALL, f"{record.width} × {record.height}")

    def extreme_aspect_ratio(record: Record) -> RefusedRow | None:
        sides = record.width, record.height
        kept = max(sides) <= options.max_aspect_ratio * min(sides)
        return None if kept else RefusedRow(Refusal.EXTREME_ASPECT_RATIO, f"{record.width} × {record.height}")

    def no_caption(record: Record) -> RefusedRow | None:
        said = f"{len(record.caption)} characters" if record.caption else "none"
        return None if len(record.caption) >= options.min_caption_chars else RefusedRow(Refusal.NO_CAPTION, said)

    return other_mode, too_small, extreme_aspect_ratio, no_caption


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """`key` is sha256 of the picture's bytes. `refused` is None for a row that may be kept."""

    key: bytes = bytes(32)
    width: int = 0
    height: int = 0
    perceptual_hash: int = 0
    refused: RefusedRow | None = None


def examine(raw: Raw, filters: Sequence[Filter], *, perceptual: bool) -> Examined:
    """Decode the picture to its end and call the filters."""
    if not raw.image:
        detail = "has no picture" if raw.image is None else "has no bytes"
        return Examined(refused=RefusedRow(Refusal.EMPTY, detail))
    key = hashlib.sha256(raw.image).digest()
    try:
        check_png(raw.image)
        picture, mode = decode(raw.image), stored_mode(raw.image)
    except Undecodable as error:
        return Examined(key=key, refused=RefusedRow(_reason(error), str(error)[:300]))
    record = Record(width=picture.width, height=picture.height, caption=raw.caption, mode=mode)
    refused = next((found for judge in filters if (found := judge(record))), None)
    hashed = hash_of(picture) if perceptual and refused is None else 0
    return Examined(key=key, width=picture.width, height=picture.height, perceptual_hash=hashed, refused=refused)


def _reason(error: Undecodable) -> Refusal:
    if isinstance(error, NotAPicture):
        return Refusal.NOT_A_PICTURE
    return Refusal.TOO_MANY_PIXELS if isinstance(error, TooManyPixels) else Refusal.DAMAGED


def hash_of(picture: Image.Image) -> int:
    """A perceptual hash of 64 bits of an upright RGB picture. Hashes of similar pictures differ in few bits.

    The hash is that of Zauner, "Implementation and benchmarking of perceptual image hash functions" (2010): gray,
    32 × 32, the 8 × 8 lowest frequencies of a DCT-II, one bit each for above their median. Scaled, recompressed and
    slightly recolored copies differ in a few bits; so do different pictures of little content, such as drawings.
    """
    grey_HW = np.asarray(picture.convert("L").resize((_SIDE, _SIDE), Image.Resampling.LANCZOS), dtype=np.float64)
    low = (_COSINES @ grey_HW @ _COSINES.T).ravel()
    bits = low > np.median(low[1:])  # the first is the mean brightness
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def examined_rows(
    rows: Iterable[Raw], filters: Sequence[Filter], *, piece: int, name: str, perceptual: bool
) -> Iterator[dict[str, object]]:
    """Rows of EXAMINED for one piece. Where the source is damaged, a last row under `name` tells so."""
    rest = iter(rows)
    for number in count():
        try:
            raw = next(rest)
        except StopIteration:
            return
        except SourceDamaged as error:
            lost = Raw(source=name, place="", image=None, captions=())
            yield _row(piece, number, lost, Examined(refused=RefusedRow(Refusal.SOURCE_DAMAGED, str(error))))
            return
        yield _row(piece, number, raw, examine(raw, filters, perceptual=perceptual))


def _row(piece: int, number: int, raw: Raw, found: Examined) -> dict[str, object]:
    reason, detail = found.refused or ("", "")
    return {
        PIECE: piece,
        ORDINAL: number,
        columns.KEY: found.key,
        PIXELS: found.width * found.height,
        HASH: found.perceptual_hash,
        columns.REASON: str(reason),
        DETAIL: detail,
        SOURCE: raw.source,
        PLACE: raw.place,
        columns.CAPTION: raw.caption,
    }
