"""Which of a picture's captions is taken: a function of the seed and of what the use is called, never of who asks.

Beside the run a use is (phase, epoch, key); where text is stored, one caption is taken for good, and it is (key).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from giornata.diffusion import randomness
from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Manifest

Place = tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionChoice:
    """`weights` as in the configuration's data.caption_weights."""

    seed: int
    weights: tuple[float, ...] | None = None

    def of(self, captions: Sequence[str], place: Place) -> str:
        """One of them. `place` is what the use is called."""
        *ends, whole = accumulate(self.weights[: len(captions)] if self.weights else [1] * len(captions))
        if not ends:
            return captions[0]
        drawn = float(randomness.uniform(self.seed, "pretrain/caption", *place, shape=(1,)))
        return captions[bisect_right(ends, drawn * whole)]

    def taken(self, rows: pa.Table, places: Sequence[Place]) -> pa.Table:
        """The rows, each with the one that it takes as its CAPTION, and without CAPTIONS."""
        if columns.CAPTIONS not in rows.column_names:
            return rows
        several = rows.column(columns.CAPTIONS).to_pylist()
        taken = [self.of(captions, place) for captions, place in zip(several, places, strict=True)]
        column = pa.array(taken, pa.string())
        number = rows.column_names.index(columns.CAPTION)
        return rows.set_column(number, columns.CAPTION, column).drop_columns([columns.CAPTIONS])


def several_captions(source: Manifest) -> bool:
    """Whether its rows may have more than one."""
    return bool(source.about.get("ingest", {}).get("max_captions", 1) > 1)
