"""The one graph that feeds trainers, in all four modes.

Its source is a small table of portions (which shard, which rows, in which epoch). A reading task takes exactly those
rows, in the order of training; what follows are encoders. So nothing rests on the order in which Ray brings blocks,
and a restart, which asks for other portions, is the same graph.

    offline     read latents and text
    hybrid      read latents            → actors: text
    online      read and cut pictures   → actors: latents and text
    colocated   read and cut pictures   → the trainer itself (giornata.pretrain.feeding.feed)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray
import ray.data

from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encoded import encoded_manifest, latents_storage, source_manifest
from giornata.pretrain.encoding.encoder_actors import EncodeCaptions, EncodePictures
from giornata.pretrain.encoding.encoders import gpus_of_an_encoder
from giornata.pretrain.encoding.transforms import Cutting
from giornata.pretrain.feeding.read_portions import GROUP, STORED, WITHOUT_TEXT, ReadLatents, ReadPictures, packed
from giornata.pretrain.feeding.rows_of_phase import Portion, RowsOfPhase
from giornata.protocol.pretraining import LATENT_SIDE_PX, Mode, PretrainConfig

ROWS_OF_A_TASK = 16_384
"""One reading task streams the rows of so many portions as make at most this, so that a small data set is read by a
few, whose processes cost more to start than the reading."""
MOST_TASKS = 8192
"""Of larger data sets a task reads more: for each Ray makes a block before the first row comes, and keeps it in its
books. Much fewer would be too large: one that is lost is begun anew, and at a phase's end the last few work alone."""
BATCHES_OF_A_BLOCK = 8
"""Ray makes blocks of 128 MiB, and a block is a task of one encoder: of small pictures that would be tens of
thousands for one encoder, with the others idle and trainers waiting for its end."""
NAMES_BYTES = 256
"""Of a row beside its arrays, roughly."""
READING: dict[str, Any] = {
    "batch_size": None,
    "batch_format": "pyarrow",
    "zero_copy_batch": True,
}
LEAST_READING_BYTES, READING_BYTES_PER_BYTE = 256 << 20, 2.56
"""Of a reading task: rows come in an order of their own, so all row groups of a shard are in memory at once. The
second number was measured, in bytes for each byte of the shard's file."""


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
    """The rows of `portions` as columns.FED; in mode colocated as giornata.pretrain.encoding.transforms.CUT, for the
    trainer to encode. `phase` is the place in the schedule; `mode` is for comparisons, where it is not the
    configuration's.

    Raises InvalidInput when there are no shards, or no latents of them for these options.
    """
    mode, source = mode or config.encode.mode, source or source_manifest(config)
    config = replace(config, encode=replace(config.encode, mode=mode, encoders=config.encoders_of(phase)))
    resolution = config.phases[phase].resolution
    dataset = _source(portions, rows_of_a_task)
    if mode in {Mode.OFFLINE, Mode.HYBRID}:
        encoded = encoded_manifest(config, resolution, source)
        reader = ReadLatents(
            latents_storage(config, resolution),
            _names(encoded),
            rows_of,
            columns_read=STORED if mode is Mode.OFFLINE else WITHOUT_TEXT,
        )
        latents = dataset.map_batches(reader, **reading(encoded, _nodes_bytes()))
        latent_bytes = 2 * 4 * (resolution // LATENT_SIDE_PX) ** 2 * 2
        if mode is Mode.OFFLINE:
            return latents
        return _through_actors(latents, EncodeCaptions, config, latent_bytes + NAMES_BYTES)
    cutting = Cutting.of(config.data, seed=config.seed, resolution=resolution)
    pictures = ReadPictures(Storage.at(config.data.shards), _names(source), rows_of, cutting)
    cut = dataset.map_batches(pictures, **reading(source, _nodes_bytes()))
    picture_bytes = 3 * resolution**2
    return _through_actors(cut, EncodePictures, config, picture_bytes + NAMES_BYTES) if mode is Mode.ONLINE else cut


def reading(manifest: Manifest, nodes_bytes: Iterable[float]) -> dict[str, Any]:
    """For `map_batches`: what a task that reads these shards takes, at most what the largest node has for tasks.

    Without a wish of its own a reading task would be run inside the actor that follows, which would then decode one
    picture after the other with its encoder idle.
    """
    largest = max((shard.bytes for shard in manifest.shards), default=0)
    wanted = max(LEAST_READING_BYTES, int(READING_BYTES_PER_BYTE * largest))
    return READING | {"memory": int(min(wanted, max(nodes_bytes, default=wanted)))}


def _nodes_bytes() -> list[float]:
    """Memory that each node has for tasks."""
    return [node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["Alive"]]


def grouped(portions: Sequence[Portion], rows_of_a_task: int, *, most: int = MOST_TASKS) -> Iterator[list[Portion]]:
    """Portions in their order, so many together as have at most this many rows, and at least one. Where that would
    be more than `most` groups, more rows go together."""
    # Two neighbours have more rows than go together: with twice the mean there are at most so many.
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
    """A block for each task. Where nothing remains there is one, of no portions."""
    groups = [{GROUP: packed(group)} for group in grouped(list(portions), rows_of_a_task)] or [{GROUP: packed([])}]
    return ray.data.from_items(groups, override_num_blocks=len(groups))


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


def _through_actors(
    dataset: ray.data.Dataset, kind: Callable[..., Any], config: PretrainConfig, row_bytes: int
) -> ray.data.Dataset:
    """`row_bytes`: of what an encoder takes."""
    encoded = dataset.map_batches(
        kind,
        fn_constructor_args=(config,),
        batch_size=config.encode.encode_batch_size,
        batch_format="pyarrow",
        **actor_options(config),
    )
    block_bytes = BATCHES_OF_A_BLOCK * config.encode.encode_batch_size * row_bytes
    encoded.context.target_max_block_size = min(block_bytes, encoded.context.target_max_block_size or block_bytes)
    return encoded
