"""The graph of Ray Data that feeds trainers, in all four modes.

Its source is a small table of portions (which shard, which rows, in which epoch). A reading task takes exactly those
rows, in the order of training; encoders follow. So nothing depends on the order of Ray's blocks, and a restart, which
asks for other portions, has the same graph.

    offline     read latents and text
    hybrid      read latents            → actors: text
    online      read and cut pictures   → actors: latents and text
    colocated   read and cut pictures   → the trainer itself (giornata.pretrain.feeding.feed)
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data

from giornata.pretrain.data import columns
from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.data.shards import read_rows
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encode_shards import EncodeRows, encoded_here
from giornata.pretrain.encoding.encoded import TEXT, encoded_manifest, latents_storage, source_manifest
from giornata.pretrain.encoding.encoder import Encoder, gpus_of_an_encoder
from giornata.pretrain.encoding.transforms import CaptionChoice, Cutting, cut_rows
from giornata.pretrain.feeding.feed import Batch, Feeder
from giornata.pretrain.feeding.rows_of_phase import NumberSet, Portion, RowsOfPhase
from giornata.protocol.pretraining import BESIDE, LATENT_SIDE_PX, Mode, PretrainConfig

ROWS_OF_A_TASK = 16_384
"""A reading task reads portions of at most this many rows, so that few tasks read a small data set: to start a
process costs more than to read the rows."""
MOST_TASKS = 8192
"""For larger data sets a task reads more: Ray makes a block for each task before the first row comes. With much fewer
tasks, a lost one would repeat too much, and the last ones of a phase would work alone."""
BATCHES_OF_A_BLOCK = 8
"""A block is a task of one encoder. Ray's 128 MiB would be tens of thousands of small pictures for one encoder while
the others are idle."""
NAMES_BYTES = 256
"""The size of a row beside its arrays, roughly."""
LEAST_READING_BYTES, READING_BYTES_PER_BYTE = 256 << 20, 2.56
"""The memory of a reading task: rows are shuffled, so all row groups of a shard are in memory at once. The second
number was measured, in bytes for each byte of the shard's file."""
ROWS_AT_ONCE = 64
"""The rows of one table that a reading task yields."""
GROUP = "group"
"""The column of the portions of one task, pickled. Ray carries one small binary as it is; a table of lists would cost
a task to describe it."""
STORED = tuple(columns.LATENTS.names)
WITHOUT_TEXT = (*columns.STORED_LATENTS, columns.CAPTIONS)
OF_TEXT = (columns.KEY, columns.CAPTION, columns.PROMPT, columns.POOLED)
OF_PICTURES = (columns.KEY, columns.IMAGE, columns.CAPTION, columns.WIDTH, columns.HEIGHT, columns.CAPTIONS)


def fed(
    config: PretrainConfig,
    phase: int,
    rows_of: RowsOfPhase,
    portions: Iterable[Portion],
    *,
    source: Manifest | None = None,
    rows_of_a_task: int = ROWS_OF_A_TASK,
) -> ray.data.Dataset:
    """The rows of `portions` as columns.FED, or in mode colocated as columns.CUT for the trainer to encode.

    `phase` is its number in the schedule. Raises InvalidInput when there are no shards, or no latents of them for
    these options.
    """
    mode, source = config.encode.mode, source or source_manifest(config)
    config = replace(config, encode=replace(config.encode, encoders=config.encoders_of(phase)))
    resolution = config.phases[phase].resolution
    reader, manifest = reader_of(config, phase, rows_of, source)
    nodes_bytes = [node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["Alive"]]
    rows = _source(portions, rows_of_a_task).map_batches(reader, **reading(manifest, nodes_bytes))
    if mode not in BESIDE:
        return rows
    array_bytes = 3 * resolution**2 if mode is Mode.ONLINE else 2 * 4 * (resolution // LATENT_SIDE_PX) ** 2 * 2
    return _through_actors(rows, config, array_bytes + NAMES_BYTES)


def reading(manifest: Manifest, nodes_bytes: Iterable[float]) -> dict[str, Any]:
    """Options of `map_batches`: the memory of a task that reads these shards, at most that of the largest node.

    Without its own resources Ray would fuse a reading task with the actor that follows, which would then decode the
    pictures while its encoder is idle.
    """
    largest = max((shard.bytes for shard in manifest.shards), default=0)
    wanted = max(LEAST_READING_BYTES, int(READING_BYTES_PER_BYTE * largest))
    memory = int(min(wanted, max(nodes_bytes, default=wanted)))
    return {"batch_size": None, "batch_format": "pyarrow", "zero_copy_batch": True, "memory": memory}


def grouped(portions: Sequence[Portion], rows_of_a_task: int, *, most: int = MOST_TASKS) -> Iterator[list[Portion]]:
    """Groups of neighboring portions with at most this many rows, or one portion. There are at most `most` groups."""
    # Two neighboring groups have more rows than one may: with twice the mean there are at most `most` groups.
    together = max(rows_of_a_task, -(-2 * sum(len(portion.rows) for portion in portions) // most))
    group: list[Portion] = []
    rows = 0
    for portion in portions:
        if group and rows + len(portion.rows) > together:
            yield group
            group, rows = [], 0
        group.append(portion)
        rows += len(portion.rows)
    if group:
        yield group


def _source(portions: Iterable[Portion], rows_of_a_task: int) -> ray.data.Dataset:
    """A block for each task, or one without portions."""
    groups = [{GROUP: packed(group)} for group in grouped(list(portions), rows_of_a_task)] or [{GROUP: packed([])}]
    return ray.data.from_items(groups, override_num_blocks=len(groups))


def actor_options(config: PretrainConfig) -> dict[str, Any]:
    """Options of `map_batches`: the configured number of encoders and their resources.

    The pool has a fixed size, as Ray's growing pools of GPU actors do not work (ray#59144)."""
    options: dict[str, Any] = {"compute": ray.data.ActorPoolStrategy(size=config.encode.encoders)}
    if config.encode.accelerator_type is not None:
        options["accelerator_type"] = config.encode.accelerator_type
    if gpus := gpus_of_an_encoder(config):
        options["num_gpus"] = gpus
    return options


def _through_actors(dataset: ray.data.Dataset, config: PretrainConfig, row_bytes: int) -> ray.data.Dataset:
    """`row_bytes` is the size of an encoder's input row."""
    encoded = dataset.map_batches(
        EncodeRows,
        fn_constructor_args=(config,),
        batch_size=config.encode.encode_batch_size,
        batch_format="pyarrow",
        **actor_options(config),
    )
    block_bytes = BATCHES_OF_A_BLOCK * config.encode.encode_batch_size * row_bytes
    encoded.context.target_max_block_size = min(block_bytes, encoded.context.target_max_block_size or block_bytes)
    return encoded


# ---- what a reading task reads ----


def packed(portions: Sequence[Portion]) -> bytes:
    """Pickle the portions of one task as a value of the column GROUP."""
    return pickle.dumps(list(portions))


def reader_of(
    config: PretrainConfig, phase: int, rows_of: RowsOfPhase, source: Manifest
) -> "tuple[ReadLatents | ReadPictures, Manifest]":
    """The reader of the configuration's mode, and the manifest of the shards that it reads.

    Raises InvalidInput when there are no latents for these options.
    """
    mode, resolution = config.encode.mode, config.phases[phase].resolution
    if mode in {Mode.OFFLINE, Mode.HYBRID}:
        read = STORED if mode is Mode.OFFLINE else WITHOUT_TEXT
        encoded = encoded_manifest(config, resolution, source)
        return ReadLatents(latents_storage(config, resolution), encoded.names, rows_of, read), encoded
    cutting = Cutting.of(config.data, seed=config.seed, resolution=resolution)
    return ReadPictures(Storage.at(config.data.shards), source.names, rows_of, cutting), source


class ReadLatents:
    """Reads the rows of portions from encoded shards. Their text is in the folder `text` beside the resolution's, in
    the shard of the same name."""

    def __init__(
        self, storage: Storage, names: tuple[str, ...], rows_of: RowsOfPhase, columns_read: tuple[str, ...]
    ) -> None:
        self._storage, self._names, self._rows_of, self._columns = storage, names, rows_of, columns_read

    def __call__(self, groups: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows of the portions as tables of at most ROWS_AT_ONCE rows."""
        for portion in portions_of(groups):
            order, name = self._rows_of.in_order(portion), self._names[portion.shard]
            text = read_rows(self._storage.beside(TEXT), name, order, columns=OF_TEXT, at_once=ROWS_AT_ONCE)
            for table in _use_rows(portion, self._rows_of, self._storage, self._names, self._columns):
                whole = _with_text(table, next(text) if columns.PROMPT in self._columns else None)
                yield whole.select(columns.FED.names).cast(columns.FED)


def _with_text(table: pa.Table, text: pa.Table | None) -> pa.Table:
    """The rows with their text and its caption, or with empty bytes where there is no text."""
    if text is None:
        empty = pa.array([b""] * len(table), pa.binary())
        return table.append_column(columns.PROMPT, empty).append_column(columns.POOLED, empty)
    if not text.column(columns.KEY).equals(table.column(columns.KEY)):
        raise ValueError(
            "the text and the latents are of other rows: encode both again with `giornata pretrain encode`"
        )
    unreadable = pc.not_equal(table.column(columns.REASON), "")
    for name in (columns.CAPTION, columns.PROMPT, columns.POOLED):
        values = text.column(name)
        if name != columns.CAPTION and pc.any(unreadable).as_py():
            values = pc.if_else(unreadable, pa.scalar(b"", pa.binary()), values)
        table = table.drop_columns([name] if name in table.column_names else []).append_column(name, values)
    return table


class ReadPictures:
    """Reads the pictures of portions and cuts them for the encoder."""

    def __init__(self, storage: Storage, names: tuple[str, ...], rows_of: RowsOfPhase, cutting: Cutting) -> None:
        self._storage, self._names, self._rows_of, self._cutting = storage, names, rows_of, cutting

    def __call__(self, groups: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows of the portions as tables of at most ROWS_AT_ONCE rows."""
        for portion in portions_of(groups):
            for table in _use_rows(portion, self._rows_of, self._storage, self._names, OF_PICTURES):
                yield cut_rows(self._cutting, table.to_pylist(), epoch_in_draws=True)


def portions_of(groups: pa.Table) -> Iterator[Portion]:
    for group in groups.column(GROUP).to_pylist():
        yield from pickle.loads(group)  # noqa: S301 - `packed` made it


def _use_rows(
    portion: Portion, rows_of: RowsOfPhase, storage: Storage, names: tuple[str, ...], wanted: tuple[str, ...]
) -> Iterator[pa.Table]:
    """The portion's rows in order of training, with the columns of their use and the caption of this use."""
    order, done = rows_of.in_order(portion), 0
    choice = CaptionChoice(seed=rows_of.seed, weights=rows_of.caption_weights)
    for table in read_rows(storage, names[portion.shard], order, columns=wanted, at_once=ROWS_AT_ONCE):
        count = len(table)
        of_portion = ([each] * count for each in (portion.number, portion.epoch, portion.shard))
        values = *of_portion, order[done : done + count]
        done += count
        places = [(rows_of.phase, portion.epoch, key) for key in table.column(columns.KEY).to_pylist()]
        table = choice.taken(table, places)  # noqa: PLW2901
        for (name, kind), each in zip(columns.USE.items(), values, strict=True):
            table = table.append_column(pa.field(name, kind), pa.array(each, kind))  # noqa: PLW2901
        yield table


def validation_batches(
    config: PretrainConfig,
    phase: int,
    rows_of: RowsOfPhase,
    source: Manifest,
    encoder: Encoder | None,
    *,
    rank: int,
    world: int,
) -> list[Batch]:
    """Return this trainer's part of the rows, in batches of one size. Every mode but offline needs `encoder`."""
    tables = validation_tables(config, phase, rows_of, source, rank=rank, world=world)
    rows = sum(len(rows) for _, rows in rows_of.left_out)
    return list(Feeder(encoded_here(config, tables, encoder)).take(rows).batches) if rows else []


def validation_tables(
    config: PretrainConfig, phase: int, rows_of: RowsOfPhase, source: Manifest, *, rank: int, world: int
) -> Iterator[pa.Table]:
    """Every `world`-th row of validation, from row number `rank` on, as the configuration's mode reads rows."""
    every = [(shard, row) for shard, rows in rows_of.left_out for row in rows]
    mine: dict[int, list[int]] = {}
    for shard, row in every[rank::world]:
        mine.setdefault(shard, []).append(row)
    portions = [
        Portion(number=number, epoch=0, shard=shard, rows=NumberSet.of(rows))
        for number, (shard, rows) in enumerate(mine.items())
    ]
    reader, _ = reader_of(config, phase, rows_of, source)
    return reader(pa.table({GROUP: [packed(portions)]}))
