"""The examination of one source row: its picture is decoded to the end, then the filters judge the row.

No content of a row makes the examination raise. A filter of your own is one more line in `refusal_of`.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
from PIL.Image import Image

from giornata.diffusion.encode.decoding import NotAPicture, TooManyPixels, Undecodable, check_png, decode, stored_mode
from giornata.pretrain.data import columns
from giornata.pretrain.data.source_rows import Raw, SourceDamaged
from giornata.protocol.pretraining import Ingest

logging.getLogger("PIL").setLevel(logging.ERROR)

PIECE, ORDINAL = "piece", "ordinal"  # number of the piece, and of the row in it
SOURCE, PLACE, DETAIL = "source", "place", "detail"

EXAMINED = pa.schema(
    {
        PIECE: pa.int32(),
        ORDINAL: pa.int64(),
        columns.KEY: pa.binary(32),
        columns.REASON: pa.string(),  # empty: the row may be kept
        DETAIL: pa.string(),
        SOURCE: pa.string(),
        PLACE: pa.string(),
        columns.CAPTION: pa.string(),
    }
)


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


REASON_OF = {NotAPicture: Refusal.NOT_A_PICTURE, TooManyPixels: Refusal.TOO_MANY_PIXELS}


class RefusedRow(NamedTuple):
    """The reason, and what the examination found, in words."""

    reason: Refusal
    detail: str


def refusal_of(picture: Image, mode: str, caption: str, options: Ingest) -> RefusedRow | None:
    """The first reason against a row; None for a row that may be kept. The picture is as a viewer shows it; `mode` is
    that of the file."""
    sides, said = picture.size, len(caption)
    size = f"{picture.width} × {picture.height}"
    judged = (
        (options.modes is None or mode in options.modes, Refusal.MODE, f"is {mode}"),
        (min(sides) >= options.min_side_px, Refusal.TOO_SMALL, size),
        (max(sides) <= options.max_aspect_ratio * min(sides), Refusal.EXTREME_ASPECT_RATIO, size),
        (said >= options.min_caption_chars, Refusal.NO_CAPTION, f"{said} characters" if said else "none"),
    )
    return next((RefusedRow(reason, detail) for kept, reason, detail in judged if not kept), None)


def examine(raw: Raw, options: Ingest) -> RefusedRow | None:
    """Decode the picture to its end and judge the row; None for a row that may be kept."""
    if not raw.image:
        return RefusedRow(Refusal.EMPTY, "has no picture" if raw.image is None else "has no bytes")
    try:
        check_png(raw.image)
        picture, mode = decode(raw.image), stored_mode(raw.image)
    except Undecodable as error:
        return RefusedRow(REASON_OF.get(type(error), Refusal.DAMAGED), str(error)[:300])
    return refusal_of(picture, mode, raw.caption, options)


def examined_rows(rows: Iterable[Raw], options: Ingest, *, piece: int, name: str) -> Iterator[dict[str, object]]:
    """Rows of EXAMINED for one piece. Where the source is damaged, a last row under `name` tells so."""
    number = 0
    try:
        for number, raw in enumerate(rows, 1):
            yield _row(piece, number - 1, raw, examine(raw, options))
    except SourceDamaged as error:
        lost = Raw(source=name, place="", image=None, captions=())
        yield _row(piece, number, lost, RefusedRow(Refusal.SOURCE_DAMAGED, str(error)))


def _row(piece: int, number: int, raw: Raw, refused: RefusedRow | None) -> dict[str, object]:
    reason, detail = refused or ("", "")
    return {
        PIECE: piece,
        ORDINAL: number,
        columns.KEY: hashlib.sha256(raw.image).digest() if raw.image else bytes(32),
        columns.REASON: str(reason),
        DETAIL: detail,
        SOURCE: raw.source,
        PLACE: raw.place,
        columns.CAPTION: raw.caption,
    }
