"""The graph of Ray Data that feeds trainers, in all four modes.

Its source is a small table of portions (which shard, which rows, in which epoch). A reading task takes exactly those
rows, in the order of training; encoders follow. So nothing depends on the order of Ray's blocks, and a restart, which
asks for other portions, has the same graph.

    offline     read latents and text
    hybrid      read latents            → actors: text
    online      read and cut pictures   → actors: latents and text
    colocated   read and cut pictures   → the trainer itself (giornata.pretrain.feeding.feed)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray
import ray.data

from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.encoding.encode_shards import EncodeRows
from giornata.pretrain.encoding.encoded import source_manifest
from giornata.pretrain.encoding.encoder import gpus_of_an_encoder
from giornata.pretrain.feeding.read_portions import GROUP, packed, reader_of
from giornata.pretrain.feeding.rows_of_phase import Portion, RowsOfPhase
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


def fed(
    config: PretrainConfig,
    phase: int,
    rows_of: RowsOfPhase,
    portions: Iterable[Portion],
    *,
    mode: Mode | None = None,
    source: Manifest | None = None,
    rows_of_a_task: int = ROWS_OF_A_TASK,
) -> ray.data.Dataset:
    """The rows of `portions` as columns.FED, or in mode colocated as columns.CUT for the trainer to encode.

    `phase` is its number in the schedule; `mode` replaces that of the configuration, for comparisons. Raises
    InvalidInput when there are no shards, or no latents of them for these options.
    """
    mode, source = mode or config.encode.mode, source or source_manifest(config)
    config = replace(config, encode=replace(config.encode, mode=mode, encoders=config.encoders_of(phase)))
    resolution = config.phases[phase].resolution
    reader, manifest = reader_of(config, phase, rows_of, source)
    rows = _source(portions, rows_of_a_task).map_batches(reader, **reading(manifest, _nodes_bytes()))
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


def _nodes_bytes() -> list[float]:
    return [node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["Alive"]]


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
