"""Rows through an encoder, and one source shard to its encoded shards: the same rows in the same order.

Cut pictures become posteriors, and captions embeddings, in actors of Ray and in trainers (mode colocated, rows for
validation). Shapes: B pictures of one size, H, W in pixels, C = 3.

An encoded shard is one file for each *part*.
A part is a resolution, with latents, or `text`. One pass makes all missing parts: a picture is decoded once for all
resolutions, and its caption is encoded once. A file is whole when its note lies beside it: the note is written last
and has the file's line of the manifest. A file without a valid note is encoded again, to the same bytes.
"""

import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from giornata.domain.files.buckets import Size
from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Manifest, json_bytes
from giornata.pretrain.data.shards import read_rows, write_shard
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoded import TEXT, EncodedPart, latents_storage, note_name
from giornata.pretrain.encoding.encoder import Encoder, device_of_an_encoder, open_encoder
from giornata.pretrain.encoding.transforms import CaptionChoice, Cutting, cut_for_each, several_captions
from giornata.protocol.pretraining import LATENT_SIDE_PX, Mode, PretrainConfig

BATCHES_AT_ONCE = 4
"""Several batches are taken together, so that pictures of the sizes of aspect buckets fill theirs."""
NOT_FINITE = "the encoder made numbers of it that are not finite"
ROWS_OF_A_GROUP = 100
"""The rows of a row group: a reader of few rows has to read so many."""
ROWS_OF_A_PIECE = 8
"""The pictures that one thread decodes at a time."""
SOURCE_COLUMNS = (*columns.SOURCE.names, columns.CAPTIONS)
Item = TypeVar("Item")


def encode_cut(encoder: Encoder, cut: pa.Table, *, at_once: int, text: bool = True) -> pa.Table:
    """The FED rows of CUT rows, in the same order. Without `text` PROMPT and POOLED are empty.

    At most `at_once` pictures of one size go through the encoder together.
    """
    rows = cut.drop_columns([columns.PIXELS]).to_pylist()
    _add_posteriors(encoder, rows, cut.column(columns.PIXELS), at_once)
    if text:
        _add_text(encoder, rows, at_once)
    return _fed(rows)


def encoded_for(config: PretrainConfig, encoder: Encoder, rows: pa.Table) -> pa.Table:
    """The FED rows of the rows that the configuration's mode encodes: those with latents, or CUT rows."""
    at_once = config.encode.encode_batch_size
    if config.encode.mode is not Mode.HYBRID:
        return encode_cut(encoder, rows.select(columns.CUT.names), at_once=at_once)
    with_latents = rows.to_pylist()
    _add_text(encoder, with_latents, at_once)
    return _fed(with_latents)


def encoded_here(config: PretrainConfig, tables: Iterable[pa.Table], encoder: Encoder | None) -> Iterator[pa.Table]:
    """The FED rows of tables as the configuration's mode reads them, encoded in this process.

    A few batches of the encoder are taken at a time. Every mode but offline needs `encoder`.
    """
    few = BATCHES_AT_ONCE * config.encode.encode_batch_size
    for table in tables:
        if config.encode.mode is Mode.OFFLINE:
            yield table
            continue
        if encoder is None:
            raise RuntimeError(f"in mode {config.encode.mode} these rows are encoded here, and no encoder was given")
        for first in range(0, len(table), few):
            yield encoded_for(config, encoder, table.slice(first, few))


def encode_text(encoder: Encoder, rows: pa.Table, *, at_once: int) -> pa.Table:
    captions = rows.column(columns.CAPTION).to_pylist()
    embedded = list(_embedded(encoder, captions, at_once))
    prompts, pooled = [prompt for prompt, _ in embedded], [each for _, each in embedded if each is not None]
    for name, arrays in ((columns.PROMPT, prompts), (columns.POOLED, pooled)):
        shape = ",".join(map(str, arrays[0].shape)) if arrays else "0"
        content = [each.tobytes() for each in arrays] or [b""] * len(captions)
        rows = rows.append_column(columns.array_field(name, shape), pa.array(content, pa.binary()))
    return rows


def _add_posteriors(encoder: Encoder, rows: list[dict[str, Any]], pixels: pa.ChunkedArray, at_once: int) -> None:
    sizes: dict[Size, list[int]] = {}
    for place, row in enumerate(rows):
        if not row[columns.REASON]:
            sizes.setdefault((row[columns.TARGET_HEIGHT], row[columns.TARGET_WIDTH]), []).append(place)
    for size, places in sizes.items():
        for few in _few(places, at_once):
            pixels_BHWC = [np.frombuffer(pixels[place].as_buffer(), np.uint8).reshape(*size, 3) for place in few]
            posterior = encoder.encode_images(np.stack(pixels_BHWC))
            for place, mean_Chw, logvar_Chw in zip(few, posterior.mean_BChw, posterior.logvar_BChw, strict=True):
                if np.isfinite(mean_Chw).all() and np.isfinite(logvar_Chw).all():
                    rows[place] |= {columns.MEAN: mean_Chw.tobytes(), columns.LOGVAR: logvar_Chw.tobytes()}
                else:
                    rows[place][columns.REASON] = NOT_FINITE


def _add_text(encoder: Encoder, rows: list[dict[str, Any]], at_once: int) -> None:
    readable = [row for row in rows if not row[columns.REASON]]
    embedded = _embedded(encoder, [row[columns.CAPTION] for row in readable], at_once)
    for row, (prompt_LD, pooled_P) in zip(readable, embedded, strict=True):
        row |= {columns.PROMPT: prompt_LD.tobytes(), columns.POOLED: b"" if pooled_P is None else pooled_P.tobytes()}


def _embedded(
    encoder: Encoder, captions: Sequence[str], at_once: int
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    for few in _few(captions, at_once):
        text = encoder.encode_text(few)
        pooled = [None] * len(few) if text.pooled_BP is None else text.pooled_BP.numpy()
        yield from zip(text.prompt_BLD.numpy(), pooled, strict=True)


def _few(values: Sequence[Item], at_once: int) -> Iterator[Sequence[Item]]:
    for first in range(0, len(values), at_once):
        yield values[first : first + at_once]


def _fed(rows: list[dict[str, Any]]) -> pa.Table:
    empty = dict.fromkeys((columns.MEAN, columns.LOGVAR, columns.PROMPT, columns.POOLED), b"")
    return pa.Table.from_pylist([{**empty, **row} for row in rows], schema=columns.FED)


class EncodeRows:
    """An actor: cut pictures to posteriors, captions to embeddings; in mode hybrid captions only. It loads its model
    once."""

    def __init__(self, config: PretrainConfig) -> None:
        device, images = device_of_an_encoder(config), config.encode.mode is not Mode.HYBRID
        self._encoder = open_encoder(config.model, seed=config.seed, device=device, images=images)
        self._config = config

    def __call__(self, rows: pa.Table) -> pa.Table:
        return encoded_for(self._config, self._encoder, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingTask:
    """The missing parts of one shard."""

    number: int
    parts: tuple[str, ...]

    @property
    def resolutions(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.parts if part != TEXT)


class ShardEncoder:
    """Encodes shards of `source` for `config`. Threads decode the next pictures meanwhile."""

    def __init__(self, config: PretrainConfig, source: Manifest, encoder: Encoder, *, threads: int) -> None:
        self._config, self._source, self._encoder = config, source, encoder
        self._choice = CaptionChoice(seed=config.seed, weights=config.data.caption_weights)
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="cut")
        self._at_once = config.encode.encode_batch_size

    def encode(self, work: EncodingTask) -> dict[str, EncodedPart]:
        """Write the parts of the work, each with its note."""
        made: dict[str, list[pa.Table]] = {part: [] for part in work.parts}
        captions: list[pa.Table] = []
        for rows, cut in self._cut_ahead(work):
            for resolution, pictures in zip(work.resolutions, cut, strict=True):
                latents = encode_cut(self._encoder, pictures, at_once=self._at_once, text=False)
                made[str(resolution)].append(latents.select(columns.STORED_LATENTS))
            if TEXT in made:
                made[TEXT].append(self._text(rows))
            captions.append(rows.select([name for name in rows.column_names if name == columns.CAPTIONS]))
        several = pa.concat_tables(captions)
        return {part: self._write(part, work.number, pa.concat_tables(made[part]), several) for part in work.parts}

    def _text(self, rows: pa.Table) -> pa.Table:
        keys = rows.column(columns.KEY).to_pylist()
        chosen = self._choice.taken(rows, [(key,) for key in keys]).select([columns.KEY, columns.CAPTION])
        return encode_text(self._encoder, chosen, at_once=self._at_once)

    def _write(self, part: str, number: int, table: pa.Table, several: pa.Table) -> EncodedPart:
        if part != TEXT:
            table = _with_shapes(table)
            if several_captions(self._source):  # a run may choose another one in each epoch
                table = table.append_column(columns.CAPTIONS_FIELD, several.column(columns.CAPTIONS))
        storage = latents_storage(self._config, part)
        reasons = [] if part == TEXT else table.column(columns.REASON).to_pylist()
        shard = write_shard(storage, number, _parquet(table), len(table))
        done = EncodedPart(shard=shard, unreadable=dict(sorted(Counter(filter(None, reasons)).items())))
        storage.write(note_name(number), json_bytes(asdict(done)))
        return done

    def _cut_ahead(self, work: EncodingTask) -> Iterator[tuple[pa.Table, list[pa.Table]]]:
        """The shard's rows, and their cuts for each resolution. Threads cut the next rows meanwhile."""
        shard = self._source.shards[work.number]
        config, storage = self._config, Storage.at(self._config.data.shards)
        cuttings = [Cutting.of(config.data, seed=config.seed, resolution=each) for each in work.resolutions]
        names = [name for name in SOURCE_COLUMNS if name != columns.IMAGE or cuttings]
        cut = partial(cut_for_each, cuttings, epoch_in_draws=False)
        few = BATCHES_AT_ONCE * self._at_once
        tables = read_rows(storage, shard.name, range(shard.rows), columns=names, at_once=few)
        listed = ((rows, rows.to_pylist() if cuttings else ()) for rows in tables)
        begun = ((rows, self._pool.map(cut, _few(each, ROWS_OF_A_PIECE))) for rows, each in listed)
        for (rows, pieces), _ in pairwise(chain(begun, [(pa.table({}), iter(()))])):
            yield rows, [pa.concat_tables(each) for each in zip(*pieces, strict=True)]


def _with_shapes(table: pa.Table) -> pa.Table:
    """The rows with the shape of their latents, and with metadata for their readers."""
    read = (columns.REASON, columns.TARGET_HEIGHT, columns.TARGET_WIDTH)
    rows = zip(*(table.column(name).to_pylist() for name in read), strict=True)
    shapes = [
        [0, 0, 0] if reason else [4, high // LATENT_SIDE_PX, wide // LATENT_SIDE_PX] for reason, high, wide in rows
    ]
    shape = columns.LATENT_SHAPE_FIELD
    for name in (columns.MEAN, columns.LOGVAR):
        place = table.column_names.index(name)
        table = table.set_column(place, columns.array_field(name, shape.name), table.column(name))
    return table.append_column(shape, pa.array(shapes, shape.type))


def threads_of_one(encoders: int) -> int:
    """The threads of one of this many encoders: its share of the machine's cores."""
    return max(1, min(16, (os.cpu_count() or 1) // max(encoders, 1)))


def _parquet(table: pa.Table) -> bytes:
    """An uncompressed file: floats do not get smaller, and readers take rows out of the middle."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="NONE", use_dictionary=False, row_group_size=ROWS_OF_A_GROUP)
    return file.getvalue()


class EncodeShards:
    """An actor of the offline job: it encodes whole shards and writes them."""

    def __init__(self, config: PretrainConfig, source: Manifest) -> None:
        encoder = open_encoder(config.model, seed=config.seed, device=device_of_an_encoder(config))
        self._shards = ShardEncoder(config, source, encoder, threads=threads_of_one(config.encode.encoders))

    def __call__(self, works: pa.Table) -> pa.Table:
        """The same rows, when their shards are whole."""
        for work in works.to_pylist():
            self._shards.encode(EncodingTask(number=work["number"], parts=tuple(work["parts"])))
        return works
