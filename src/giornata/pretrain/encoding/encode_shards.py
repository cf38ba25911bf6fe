"""One source shard to one encoded shard: the same rows in the same order, with latents and, if wanted, text.

A shard is whole when its note lies beside it: the note is written last, and says what the manifest will say. What
is not whole is encoded again, to the same bytes.
"""

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Manifest, Shard
from giornata.pretrain.data.read_rows import read_rows
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.caption_choice import several_captions
from giornata.pretrain.encoding.encode_rows import encode_cut
from giornata.pretrain.encoding.encoded import latents_storage, stored_choice, stores_text, to_bytes
from giornata.pretrain.encoding.encoder import Encoder
from giornata.pretrain.encoding.transforms import CUT, Cutting, cut_rows
from giornata.protocol.pretraining import PretrainConfig

ROWS_OF_A_GROUP = 100
"""Of the Parquet files: what a reader of few rows has to read."""
ROWS_OF_A_PIECE = 8
"""Pictures that one thread decodes at a time."""
SOURCE_COLUMNS = (*columns.SOURCE.names, columns.CAPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One shard of one resolution."""

    resolution: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A whole encoded shard, and how many of its rows could not be read, by reason."""

    shard: Shard
    unreadable: dict[str, int]

    def to_bytes(self) -> bytes:
        """The note."""
        return to_bytes(asdict(self))


def shard_name(number: int) -> str:
    """Of an encoded shard."""
    return f"shard-{number:05d}.parquet"


def note_name(number: int) -> str:
    """Of what says that it is whole."""
    return f"shard-{number:05d}.json"


def done_before(storage: Storage, number: int) -> Done | None:
    """What its note says, if the shard is there and as large as that."""
    try:
        values = json.loads(storage.read(note_name(number)))
        done = Done(shard=Shard(**values["shard"]), unreadable=dict(values["unreadable"]))
        whole = storage.size_bytes(shard_name(number)) == done.shard.bytes
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return done if whole else None


class ShardEncoder:
    """Encodes shards of `source` as `config` says. Pictures are decoded in threads while others are encoded."""

    def __init__(self, config: PretrainConfig, source: Manifest, encoder: Encoder, *, threads: int) -> None:
        self._config, self._source, self._encoder = config, source, encoder
        self._choice = stored_choice(config, source)
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="cut")
        # Several encoder batches at a time, so that aspect buckets fill theirs.
        self._rows_at_once = 4 * config.encode.encode_batch_size

    def encode(self, work: Work) -> Done:
        """Write the shard and its note."""
        storage = latents_storage(self._config, work.resolution)
        tables = [self._encoded(cut) for cut in self._cut_ahead(work)]
        table = pa.concat_tables(tables).select(columns.LATENTS.names).cast(columns.LATENTS)
        if several_captions(self._source):
            table = table.append_column(columns.CAPTIONS_FIELD, self._captions(work))
        content, name = _parquet(table), shard_name(work.number)
        storage.write(name, content)
        sha256 = hashlib.sha256(content).hexdigest()
        reasons = Counter(reason for reason in table.column(columns.REASON).to_pylist() if reason)
        shard = Shard(name=name, rows=len(table), bytes=len(content), sha256=sha256)
        done = Done(shard=shard, unreadable=dict(sorted(reasons.items())))
        storage.write(note_name(work.number), done.to_bytes())
        return done

    def _encoded(self, cut: pa.Table) -> pa.Table:
        at_once = self._config.encode.encode_batch_size
        return encode_cut(self._encoder, cut, at_once=at_once, text=stores_text(self._config))

    def _captions(self, work: Work) -> pa.ChunkedArray:
        """All that the shard's rows have: a run may choose another one in each epoch."""
        shard, storage = self._source.shards[work.number], Storage.at(self._config.data.shards)
        rows = range(shard.rows)
        (table,) = read_rows(storage, shard.name, rows, columns=(columns.CAPTIONS,), at_once=shard.rows)
        return table.column(columns.CAPTIONS)

    def _cut_ahead(self, work: Work) -> Iterator[pa.Table]:
        """The shard's rows cut, in tables; the next one is made while this one is encoded."""
        shard = self._source.shards[work.number]
        cutting = Cutting.of(self._config.data, seed=self._config.seed, resolution=work.resolution)
        storage, rows = Storage.at(self._config.data.shards), range(shard.rows)
        at_once = self._rows_at_once
        before: list[Future[pa.Table]] = []
        for table in read_rows(storage, shard.name, rows, columns=SOURCE_COLUMNS, at_once=at_once):
            if self._choice is not None:
                keys = table.column(columns.KEY).to_pylist()
                table = self._choice.taken(table, [(key,) for key in keys])  # noqa: PLW2901
            pieces = _pieces(table.to_pylist())
            now = [self._pool.submit(cut_rows, cutting, piece, epoch_in_draws=False) for piece in pieces]
            if before:
                yield pa.concat_tables([future.result() for future in before])
            before = now
        yield pa.concat_tables([future.result() for future in before]) if before else CUT.empty_table()


def threads_of_one(encoders: int) -> int:
    """A share of this machine's cores for each of so many encoders."""
    return max(1, min(16, (os.cpu_count() or 1) // max(encoders, 1)))


def _pieces(rows: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    return (rows[first : first + ROWS_OF_A_PIECE] for first in range(0, len(rows), ROWS_OF_A_PIECE))


def _parquet(table: pa.Table) -> bytes:
    """Uncompressed: latents of floats do not get smaller, and readers take rows out of the middle."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="NONE", use_dictionary=False, row_group_size=ROWS_OF_A_GROUP)
    return file.getvalue()
