"""Why a picture is kept out of the shards, and the filters that say so: plain functions of what is known of it.

A filter of one's own is one more function in `filters_of`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from giornata.protocol.pretraining import Ingest


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A picture that was decoded, and its caption. Sizes in pixels, as a viewer shows it; `mode` as it is stored."""

    width: int
    height: int
    caption: str
    mode: str = "RGB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The reason, and in words what was found."""

    reason: Refusal
    detail: str


Filter = Callable[[Record], Refused | None]


def filters_of(options: Ingest) -> tuple[Filter, ...]:
    """In the order in which they are asked; the first that refuses counts."""
    return (
        *(() if options.modes is None else (other_mode(options.modes),)),
        too_small(options.min_side_px),
        extreme_aspect_ratio(options.max_aspect_ratio),
        no_caption(options.min_caption_chars),
    )


def other_mode(kept: Collection[str]) -> Filter:
    """Refuses what is stored in none of these modes."""

    def judge(record: Record) -> Refused | None:
        return None if record.mode in kept else Refused(reason=Refusal.MODE, detail=f"is {record.mode}")

    return judge


def too_small(min_side_px: int) -> Filter:
    """Refuses what is shorter than that on one side."""

    def judge(record: Record) -> Refused | None:
        if min(record.width, record.height) >= min_side_px:
            return None
        return Refused(reason=Refusal.TOO_SMALL, detail=f"{record.width} × {record.height}")

    return judge


def extreme_aspect_ratio(most: float) -> Filter:
    """Refuses what is more than `most` times as long as it is short."""

    def judge(record: Record) -> Refused | None:
        if max(record.width, record.height) <= most * min(record.width, record.height):
            return None
        return Refused(reason=Refusal.EXTREME_ASPECT_RATIO, detail=f"{record.width} × {record.height}")

    return judge


def no_caption(min_chars: int) -> Filter:
    """Refuses captions of fewer characters."""

    def judge(record: Record) -> Refused | None:
        if len(record.caption) >= min_chars:
            return None
        said = f"{len(record.caption)} characters" if record.caption else "none"
        return Refused(reason=Refusal.NO_CAPTION, detail=said)

    return judge
