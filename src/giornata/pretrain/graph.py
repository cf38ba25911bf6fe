"""The one graph that feeds trainers, in all four modes.

Its source is a small table of portions (which shard, which rows, in which epoch). A reading task takes exactly those
rows, in the order of training; what follows are encoders. So nothing rests on the order in which Ray brings blocks,
and a restart, which asks for other portions, is the same graph.

    offline     read latents and text
    hybrid      read latents            → actors: text
    online      read and cut pictures   → actors: latents and text
    colocated   read and cut pictures   → the trainer itself (giornata.pretrain.feed)
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
import ray.data

from giornata.pretrain import columns
from giornata.pretrain.encode_rows import encode_captions, encode_cut
from giornata.pretrain.encoded import encoded_manifest, latents_storage, source_manifest
from giornata.pretrain.encoders import device_of_an_encoder, gpus_of_an_encoder, open_encoder
from giornata.pretrain.intervals import Intervals
from giornata.pretrain.manifest import Manifest
from giornata.pretrain.read_rows import read_rows
from giornata.pretrain.rows_of_phase import Portion, RowsOfPhase
from giornata.pretrain.storage import Storage
from giornata.pretrain.transforms import CUT, Cutting, cut_rows
from giornata.protocol.pretraining import Mode, PretrainConfig

ROWS_OF_A_TASK = 65_536
"""At most so many rows are one reading task's, which streams them: a billion rows are some ten thousand tasks."""
LEAST_TASKS = 64
"""So many tasks are made of a small data set, if it has as many portions: for the nodes to share."""
ROWS_AT_ONCE = 64
"""Rows that a reading task hands on at a time."""
SPANS = "spans"
PORTIONS = pa.schema(
    {
        columns.PORTION: pa.int64(),
        columns.EPOCH: pa.int32(),
        columns.SHARD: pa.int32(),
        SPANS: pa.list_(pa.int64()),
    }
)
"""SPANS: the starts and stops of intervals of rows, one after the other."""
STORED = tuple(columns.LATENTS.names)
WITHOUT_TEXT = tuple(name for name in STORED if name not in {columns.PROMPT, columns.POOLED})
OF_PICTURES = (columns.KEY, columns.IMAGE, columns.CAPTION, columns.WIDTH, columns.HEIGHT)


def fed(
    config: PretrainConfig,
    phase: int,
    rows_of: RowsOfPhase,
    portions: Iterable[Portion],
    *,
    mode: Mode | None = None,
    source: Manifest | None = None,
) -> ray.data.Dataset:
    """The rows of `portions` as columns.FED; in mode colocated as giornata.pretrain.transforms.CUT, for the trainer
    to encode. `phase` is the place in the schedule; `mode` is for comparisons, where it is not the configuration's.

    Raises InvalidInput when there are no shards, or no latents of them for these options.
    """
    mode, source = mode or config.encode.mode, source or source_manifest(config)
    config = replace(config, encode=replace(config.encode, mode=mode))
    resolution = config.phases[phase].resolution
    dataset = ray.data.from_arrow(portion_tables(portions))
    if mode in {Mode.OFFLINE, Mode.HYBRID}:
        encoded = encoded_manifest(config, resolution, source)
        reader = ReadLatents(
            latents_storage(config, resolution),
            _names(encoded),
            rows_of,
            columns_read=STORED if mode is Mode.OFFLINE else WITHOUT_TEXT,
        )
        latents = dataset.map_batches(reader, batch_size=None, batch_format="pyarrow", zero_copy_batch=True)
        return latents if mode is Mode.OFFLINE else _through_actors(latents, EncodeCaptions, config)
    cutting = Cutting.of(config.data, seed=config.seed, resolution=resolution)
    pictures = ReadPictures(Storage.at(config.data.shards), _names(source), rows_of, cutting)
    cut = dataset.map_batches(pictures, batch_size=None, batch_format="pyarrow", zero_copy_batch=True)
    return _through_actors(cut, EncodePictures, config) if mode is Mode.ONLINE else cut


def portion_tables(portions: Iterable[Portion]) -> list[pa.Table]:
    """The table of portions, in parts: one for each reading task."""
    rows, total = [], 0
    for portion in portions:
        spans = list(chain.from_iterable(portion.rows.spans))
        rows.append((portion.number, portion.epoch, portion.shard, spans))
        total += len(portion.rows)
    if not rows:
        return [PORTIONS.empty_table()]
    together = max(1, min(ROWS_OF_A_TASK * len(rows) // max(total, 1), len(rows) // LEAST_TASKS))
    arrays = [
        pa.array(values, type=kind) for values, kind in zip(zip(*rows, strict=True), PORTIONS.types, strict=True)
    ]
    table = pa.Table.from_arrays(arrays, schema=PORTIONS)
    # Copied apart: a slice would bring the whole table with it to its task.
    parts = (range(first, min(first + together, len(rows))) for first in range(0, len(rows), together))
    return [table.take(pa.array(part)) for part in parts]


def _names(manifest: Manifest) -> tuple[str, ...]:
    return tuple(shard.name for shard in manifest.shards)


def actor_options(config: PretrainConfig) -> dict[str, Any]:
    """For `map_batches`: as many encoders as configured, where and with what they want. A pool of fixed size: Ray's
    own growing of pools of GPU actors does not work (ray#59144)."""
    options: dict[str, Any] = {"compute": ray.data.ActorPoolStrategy(size=config.encode.encoders)}
    if config.encode.accelerator_type is not None:
        options["accelerator_type"] = config.encode.accelerator_type
    if gpus := gpus_of_an_encoder(config):
        options["num_gpus"] = gpus
    return options


def _through_actors(dataset: ray.data.Dataset, kind: Callable[..., Any], config: PretrainConfig) -> ray.data.Dataset:
    return dataset.map_batches(
        kind,
        fn_constructor_args=(config,),
        batch_size=config.encode.encode_batch_size,
        batch_format="pyarrow",
        **actor_options(config),
    )


class ReadLatents:
    """Portions to their rows of encoded shards."""

    def __init__(
        self, storage: Storage, names: tuple[str, ...], rows_of: RowsOfPhase, columns_read: tuple[str, ...]
    ) -> None:
        self._storage, self._names, self._rows_of, self._columns = storage, names, rows_of, columns_read

    def __call__(self, portions: pa.Table) -> Iterator[pa.Table]:
        """Tables of ROWS_AT_ONCE rows."""
        missing = [name for name in STORED if name not in self._columns]
        for portion in _portions(portions):
            for table in _use_rows(portion, self._rows_of, self._storage, self._names, self._columns):
                for name in missing:
                    table = table.append_column(name, pa.array([b""] * len(table), type=pa.binary()))  # noqa: PLW2901
                yield table.select(columns.FED.names).cast(columns.FED)


class ReadPictures:
    """Portions to pictures that are cut for the encoder."""

    def __init__(self, storage: Storage, names: tuple[str, ...], rows_of: RowsOfPhase, cutting: Cutting) -> None:
        self._storage, self._names, self._rows_of, self._cutting = storage, names, rows_of, cutting

    def __call__(self, portions: pa.Table) -> Iterator[pa.Table]:
        """Tables of ROWS_AT_ONCE rows."""
        for portion in _portions(portions):
            for table in _use_rows(portion, self._rows_of, self._storage, self._names, OF_PICTURES):
                yield cut_rows(self._cutting, table.to_pylist(), epoch_in_draws=True)


class EncodePictures:
    """An actor: pictures that are cut to posteriors, captions to embeddings."""

    def __init__(self, config: PretrainConfig) -> None:
        self._encoder = open_encoder(config.model, seed=config.seed, device=device_of_an_encoder(config))
        self._at_once = config.encode.encode_batch_size

    def __call__(self, cut: pa.Table) -> pa.Table:
        """FED."""
        return encode_cut(self._encoder, cut.select(CUT.names), at_once=self._at_once)


class EncodeCaptions:
    """An actor: captions to embeddings."""

    def __init__(self, config: PretrainConfig) -> None:
        self._encoder = open_encoder(
            config.model, seed=config.seed, device=device_of_an_encoder(config), images=False
        )
        self._at_once = config.encode.encode_batch_size

    def __call__(self, latents: pa.Table) -> pa.Table:
        """FED."""
        return encode_captions(self._encoder, latents, at_once=self._at_once)


def _portions(table: pa.Table) -> Iterator[Portion]:
    for row in table.to_pylist():
        spans = row[SPANS]
        yield Portion(
            number=row[columns.PORTION],
            epoch=row[columns.EPOCH],
            shard=row[columns.SHARD],
            rows=Intervals(tuple(zip(spans[::2], spans[1::2], strict=True))),
        )


def _use_rows(
    portion: Portion, rows_of: RowsOfPhase, storage: Storage, names: tuple[str, ...], wanted: tuple[str, ...]
) -> Iterator[pa.Table]:
    """The portion's rows of its shard, in order of training, with the columns of their use."""
    order, done = rows_of.in_order(portion), 0
    for table in read_rows(storage, names[portion.shard], order, columns=wanted, at_once=ROWS_AT_ONCE):
        use = {
            columns.PORTION: [portion.number] * len(table),
            columns.EPOCH: [portion.epoch] * len(table),
            columns.SHARD: [portion.shard] * len(table),
            columns.ROW: order[done : done + len(table)],
        }
        done += len(table)
        for name, values in use.items():
            table = table.append_column(columns.FED.field(name), pa.array(values, columns.FED.field(name).type))  # noqa: PLW2901
        yield table
