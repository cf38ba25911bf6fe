"""Which examined rows are kept, and in which shard: a function of the rows alone, in whatever order they came.

Rows are sorted by key. As a key is a hash of the picture, every shard is a sample of the whole source. A row takes
61 bytes here, and as much again a few times while it is decided; pictures are not here.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from giornata.pretrain import columns, examination
from giornata.pretrain.filters import Refusal
from giornata.pretrain.perceptual import near_duplicates

_REASONS = ("", *Refusal)


class Rows:
    """Of what was examined, the columns that decide; grows batch by batch."""

    def __init__(self) -> None:
        self._batches: dict[str, list[np.ndarray]] = {
            name: [] for name in ("piece", "ordinal", "key", "pixels", "hash", "reason")
        }

    def add(self, batch: pa.Table) -> None:
        """Rows of EXAMINED."""
        keys = b"".join(batch[columns.KEY].to_pylist())
        codes = [_REASONS.index(reason) for reason in batch[columns.REASON].to_pylist()]
        for name, values in (
            ("piece", batch[examination.PIECE]),
            ("ordinal", batch[examination.ORDINAL]),
            ("key", np.frombuffer(keys, dtype="S32")),
            ("pixels", batch[examination.PIXELS]),
            ("hash", batch[examination.HASH]),
            ("reason", np.array(codes, np.int8)),
        ):
            # Copied: a view would hold the batch in Ray's object store
            self._batches[name].append(np.array(values))

    def column(self, name: str) -> np.ndarray:
        """All of it."""
        parts = self._batches[name]
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        return parts[0] if parts else np.array([], np.int64)

    def __len__(self) -> int:
        return sum(len(part) for part in self._batches["piece"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`reasons` are codes, one for each row as they came; see `reason_name`. `like` names, for a duplicate's row, the
    row that is kept instead. `keys` are those of the kept rows, sorted: their places are their ranks."""

    reasons: np.ndarray
    like: dict[int, int]
    keys: np.ndarray

    def counts(self) -> dict[str, int]:
        """Reason to number of rows that were refused for it."""
        found = zip(*np.unique(self.reasons, return_counts=True), strict=True)
        return {str(_REASONS[code]): int(number) for code, number in found if code}

    def first_keys(self, rows_per_shard: int) -> np.ndarray:
        """The first key of each shard."""
        return self.keys[::rows_per_shard]


def reason_name(code: int) -> str:
    """Of a code in `Decision.reasons`."""
    return str(_REASONS[code])


def decide(rows: Rows, *, hash_distance: int | None) -> Decision:
    """Leave out what has the bytes of a row before it in the source and, if asked, what looks like another.

    Of pictures that look alike, the one with the most pixels stays.
    """
    reasons = rows.column("reason").copy()
    like: dict[int, int] = {}
    _mark_equal(rows, reasons, like)
    if hash_distance is not None:
        _mark_alike(rows, reasons, like, hash_distance)
    return Decision(reasons=reasons, like=like, keys=np.sort(rows.column("key")[reasons == 0]))


def _mark_equal(rows: Rows, reasons: np.ndarray, like: dict[int, int]) -> None:
    sound = np.flatnonzero(reasons == 0)
    order = sound[np.lexsort((rows.column("ordinal")[sound], rows.column("piece")[sound], rows.column("key")[sound]))]
    keys = rows.column("key")[order]
    first: np.ndarray = np.ones(len(order), bool)
    first[1:] = keys[1:] != keys[:-1]
    firsts = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))] if len(order) else order
    for place, kept in zip(order[~first], firsts[~first], strict=True):
        like[int(place)] = int(kept)
    reasons[order[~first]] = _REASONS.index(Refusal.DUPLICATE)


def _mark_alike(rows: Rows, reasons: np.ndarray, like: dict[int, int], distance: int) -> None:
    sound = np.flatnonzero(reasons == 0)
    preferred = np.lexsort((rows.column("key")[sound], -rows.column("pixels")[sound]))
    for place, kept in near_duplicates(rows.column("hash")[sound], preferred, distance).items():
        like[int(sound[place])] = int(sound[kept])
        reasons[sound[place]] = _REASONS.index(Refusal.NEAR_DUPLICATE)
