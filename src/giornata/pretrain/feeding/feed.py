"""Turn fed rows into a trainer's input for one step: batches of one size each, and the uses that cannot be read.

Shapes: B rows of one size; C = 4 latent channels; H, W = pixels / 8; L = 77 tokens; D, P widths of the text. Latents
and text are float16; the loop makes float32 of latents before, and of text after the move to the device.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from giornata.domain.files.buckets import Size
from giornata.pretrain.data import columns
from giornata.pretrain.feeding.ledger import Use
from giornata.protocol.pretraining import LATENT_SIDE_PX

LATENT_CHANNELS = 4
TOKENS = 77
"""The tokens of every text encoder here: CLIP's."""
TIME_IDS = (columns.HEIGHT, columns.WIDTH, columns.CROP_TOP, columns.CROP_LEFT, *columns.GEOMETRY[:2])
VALUES = (columns.PORTION, columns.ROW, columns.EPOCH, columns.KEY, columns.CAPTION, columns.REASON, *TIME_IDS)
ARRAYS = (columns.MEAN, columns.LOGVAR, columns.PROMPT, columns.POOLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Readable rows of one size. `uses` are their names in the ledger, `keys` and `epochs` those of their draws.

    `time_ids_B6` is SDXL's micro-conditioning, float32. Every batch has it; other models do not read it.
    """

    uses: Sequence[Use]
    keys: Sequence[str]
    epochs: Sequence[int]
    mean_BCHW: torch.Tensor
    logvar_BCHW: torch.Tensor
    prompt_BLD: torch.Tensor
    pooled_BP: torch.Tensor | None
    time_ids_B6: torch.Tensor

    def __len__(self) -> int:
        return len(self.uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A trainer's share of the global batch of one step. It is empty when the trainer's stream has ended.

    `unreadable` are the uses that could not be read.
    """

    batches: Sequence[Batch]
    unreadable: Sequence[Use]

    @property
    def rows(self) -> int:
        return sum(len(batch) for batch in self.batches)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRow:
    """A readable row that waits for its batch. `arrays` are bytes or Arrow buffers; `number` counts rows."""

    number: int
    values: Mapping[str, Any]
    arrays: Mapping[str, Any]

    @property
    def use(self) -> Use:
        return self.values[columns.PORTION], self.values[columns.ROW]

    @property
    def size(self) -> Size:
        return self.values[columns.TARGET_HEIGHT], self.values[columns.TARGET_WIDTH]


class Feeder:
    """Takes FED tables from a stream as needed. The feeds depend on the order of the rows, not on their tables."""

    def __init__(self, stream: Iterable[pa.Table]) -> None:
        self._rows = self._arrivals(stream)
        self._waiting: dict[Size, list[PendingRow]] = {}
        self._unreadable: list[Use] = []
        self._ended = False

    def take(self, rows: int, batch_rows: int | None = None) -> Feed:
        """The next `rows` rows; fewer, and at last none, when the stream ends.

        With `batch_rows` every batch has that many rows, and the last of a feed the rest: rows of a rare size wait
        for a later feed, and come in smaller batches when the stream ends. Without it the feed has the very next
        rows, unreadable ones included, in one batch for each size: for runs whose steps are compared.
        """
        cut = self._next_rows(rows) if batch_rows is None else self._full_batches(rows, batch_rows)
        unreadable, self._unreadable = self._unreadable, []
        return Feed(batches=[_batch(each) for each in cut], unreadable=unreadable)

    # ---- batches ----

    def _next_rows(self, wanted: int) -> list[list[PendingRow]]:
        # An unreadable row has its place in the step: no other row replaces it.
        for _ in range(wanted):
            self._arrive()
        taken = [rows for rows in self._waiting.values() if rows]
        self._waiting = {}
        return taken

    def _full_batches(self, wanted: int, batch_rows: int) -> list[list[PendingRow]]:
        taken: list[list[PendingRow]] = []
        while wanted > 0:
            few = self._ready(min(batch_rows, wanted))
            if not few:
                break
            taken.append(few)
            wanted -= len(few)
        return taken

    def _ready(self, count: int) -> list[PendingRow]:
        """`count` rows of one size, of which a row has waited longest. The end of the stream may give fewer."""
        while True:
            for waiting in sorted(filter(None, self._waiting.values()), key=lambda rows: rows[0].number):
                if len(waiting) >= count or self._ended:
                    few, waiting[:count] = waiting[:count], []
                    return few
            if self._ended:
                return []
            self._arrive()

    # ---- arrivals ----

    def _arrive(self) -> None:
        """Receive one row, or note the end of the stream."""
        row = next(self._rows, None)
        if row is None:
            self._ended = True
        elif row.values[columns.REASON]:
            self._unreadable.append(row.use)
        else:
            self._waiting.setdefault(row.size, []).append(row)

    def _arrivals(self, stream: Iterable[pa.Table]) -> Iterator[PendingRow]:
        arrived = 0
        for table in stream:
            arrays = {name: table.column(name) for name in ARRAYS}
            for place, values in enumerate(table.select(VALUES).to_pylist()):
                buffers = {name: column[place].as_buffer() for name, column in arrays.items()}
                yield PendingRow(number=arrived + place, values=values, arrays=buffers)
            arrived += len(table)


def _batch(rows: Sequence[PendingRow]) -> Batch:
    height, width = rows[0].size
    shape = (LATENT_CHANNELS, height // LATENT_SIDE_PX, width // LATENT_SIDE_PX)
    time_ids = [[row.values[name] for name in TIME_IDS] for row in rows]
    return Batch(
        uses=tuple(row.use for row in rows),
        keys=tuple(row.values[columns.KEY] for row in rows),
        epochs=tuple(row.values[columns.EPOCH] for row in rows),
        mean_BCHW=_halves(rows, columns.MEAN, shape),
        logvar_BCHW=_halves(rows, columns.LOGVAR, shape),
        prompt_BLD=_halves(rows, columns.PROMPT, (TOKENS, -1)),
        pooled_BP=_halves(rows, columns.POOLED, (-1,)) if rows[0].arrays[columns.POOLED].size else None,
        time_ids_B6=torch.tensor(time_ids, dtype=torch.float32),
    )


def _halves(rows: Sequence[PendingRow], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The float16 arrays of one column, stacked."""
    return torch.from_numpy(np.stack([np.frombuffer(row.arrays[name], np.float16).reshape(shape) for row in rows]))
