"""Measure a cluster with made-up rows: `python -m giornata.pretrain.synthetic CONFIG --report FILE`.

First the trainers alone run the real loop, then one encoder encodes by itself. In a real run both work at once: on
shared processors each is slower than here.

Shapes: B rows of one size; H, W = pixels; C = 3, or 4 channels of latents with h, w = pixels / 8; L = 77 tokens;
D, P widths of the text.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.pretrain.data import columns
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encode_shards import EncodeRows
from giornata.pretrain.encoding.encoder import device_of_an_encoder, gpus_of_an_encoder
from giornata.pretrain.feeding.feed import LATENT_CHANNELS, TOKENS, Batch, Feed
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase, share
from giornata.pretrain.planning.pricing import encoders_for
from giornata.pretrain.ray_train.cluster import connected
from giornata.pretrain.recipes import read_config
from giornata.pretrain.reported import program, reported, tell
from giornata.pretrain.run_state.committed import rooted
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.training.loop import train
from giornata.pretrain.training.models import unet_on_meta, widths
from giornata.pretrain.training.parallel import full_nodes
from giornata.pretrain.training.trainer import TrainingRun
from giornata.protocol.pretraining import BESIDE, LATENT_SIDE_PX, Architecture, Mode, PretrainConfig
from giornata.protocol.pretraining_checks import parse

CAPTION = "a photograph of a small boat on a lake in the evening, with mountains behind it"
HALF_BYTES = 2
STEPS = 30
WARM_UP_STEPS = 5
"""Compilation, the choice of kernels and the first allocations are in the first steps."""
BATCHES, WARM_UP_BATCHES = 10, 2
SCALING = (0.0, 0.18215)
Measurements = dict[str, tuple[float, int]]
"""By the name of a phase: images/s, and pictures at once on a device, or bytes of an encoded row."""


def synthetic_feeds(config: PretrainConfig, *, rank: int, world: int) -> Callable[[int, UseLedger], Iterator[Feed]]:
    """Feeds of zeros that never wait: this trainer's share of each step."""
    batch = config.train.global_batch_size
    mine = share(batch, rank=rank, world=world)
    before = sum(share(batch, rank=other, world=world) for other in range(rank))

    def feeds(phase: int, _: UseLedger) -> Iterator[Feed]:
        settings = config.phases[phase]
        for first in range(before, settings.samples, batch):
            rows = synthetic_batch(config.model.architecture, settings.resolution, first, mine)
            yield Feed(batches=[rows], unreadable=())

    return feeds


def synthetic_batch(architecture: Architecture, resolution: int, first: int, rows: int) -> Batch:
    """A batch of `rows` rows of one long shard, from row `first` on."""
    side, numbers = resolution // LATENT_SIDE_PX, range(first, first + rows)
    text, pooled = widths(unet_on_meta(architecture))
    place = [resolution, resolution, 0, 0, resolution, resolution]
    return Batch(
        uses=[(0, row) for row in numbers],
        keys=[f"synthetic-{row}" for row in numbers],
        epochs=[0] * rows,
        mean_BCHW=torch.zeros(rows, LATENT_CHANNELS, side, side, dtype=torch.float16),
        logvar_BCHW=torch.zeros(rows, LATENT_CHANNELS, side, side, dtype=torch.float16),
        prompt_BLD=torch.zeros(rows, TOKENS, text, dtype=torch.float16),
        pooled_BP=None if pooled is None else torch.zeros(rows, pooled, dtype=torch.float16),
        time_ids_B6=torch.tensor([place] * rows, dtype=torch.float32),
    )


def to_encode(mode: Mode, resolution: int, rows: int) -> pa.Table:
    """A table as an encoder gets it: pictures that are cut, or in mode hybrid latents without text."""
    use = {columns.PORTION: 0, columns.EPOCH: 0, columns.SHARD: 0, columns.KEY: "", columns.CAPTION: CAPTION}
    size = dict.fromkeys((columns.HEIGHT, columns.WIDTH, columns.TARGET_HEIGHT, columns.TARGET_WIDTH), resolution)
    place = {columns.CROP_TOP: 0, columns.CROP_LEFT: 0, columns.REASON: ""}
    row = {**use, **size, **place}
    if mode is Mode.HYBRID:
        latent = bytes(LATENT_CHANNELS * (resolution // LATENT_SIDE_PX) ** 2 * HALF_BYTES)
        arrays = {columns.MEAN: latent, columns.LOGVAR: latent, columns.PROMPT: b"", columns.POOLED: b""}
        return pa.Table.from_pylist([{**row, columns.ROW: n, **arrays} for n in range(rows)], schema=columns.FED)
    drawn_BHWC = np.random.default_rng(0).integers(0, 256, (rows, resolution, resolution, 3), dtype=np.uint8)
    cut = [{**row, columns.ROW: n, columns.PIXELS: drawn_BHWC[n].tobytes()} for n in range(rows)]
    return pa.Table.from_pylist(cut, schema=columns.CUT)


class Enough(Exception):
    """Ends the loop after the requested steps."""


def measure_loop(
    config: PretrainConfig,
    phase: int,
    *,
    steps: int,
    device: torch.device,
    scratch: Path,
    rank: int = 0,
    world: int = 1,
    node_size: int | None = None,
    clock_s: Callable[[], float] = time.monotonic,
) -> tuple[float, int]:
    """The median of images/s of all trainers over `steps` of a phase after warm-up, and pictures at once on a device.

    All trainers call it. The phase is as long as that takes, with its average from the first step on, and without
    what is not part of a step.
    """
    samples = (WARM_UP_STEPS + steps + 2) * config.train.global_batch_size
    quiet = replace(
        config.train,
        checkpoint_steps=samples,
        ema_start_samples=0,
        validation_steps=0,
        validation_rows=0,
        proportion_empty_prompts=0.0,
    )
    one = replace(config, phases=(replace(config.phases[phase], samples=samples),), train=quiet)
    rows: list[Mapping[str, float]] = []

    def report(row: Mapping[str, float]) -> None:
        rows.append(row)
        if len(rows) == WARM_UP_STEPS + steps:
            raise Enough

    run = TrainingRun(
        config=one,
        phases=(RowsOfPhase(seed=0, phase=0, samples=samples, shard_rows=(samples,)),),
        storage=Storage.at(scratch / "run"),
        scratch=scratch,
        digests={},
        scaling=SCALING,
        feeds=synthetic_feeds(one, rank=rank, world=world),
        clock_s=clock_s,
        device=device,
        report=report,
        node_size=node_size,
    )
    try:
        train(run)
    except Enough:
        found = [row["images_per_s"] for row in rows[WARM_UP_STEPS:]]
        return statistics.median(found), int(rows[-1]["micro_batch"])
    raise RuntimeError("the phase ended before enough of its steps were measured")


def work(values: Mapping[str, Any]) -> tuple[str, Measurements]:
    """Measure all phases in a trainer's process, which Ray Train started. Returns its device too."""
    import ray
    import ray.train
    import ray.train.torch

    config, channel, found = parse(values["config"]), Channel(), Measurements()
    device, context = ray.train.torch.get_device(), ray.train.get_context()
    for phase, settings in enumerate(config.phases):
        with tempfile.TemporaryDirectory(prefix="giornata-synthetic-", ignore_cleanup_errors=True) as scratch:
            found[settings.name] = measure_loop(
                config,
                phase,
                steps=values["steps"],
                device=device,
                scratch=Path(scratch),
                rank=context.get_world_rank(),
                world=context.get_world_size(),
                node_size=full_nodes(channel.gather_objects(ray.get_runtime_context().get_node_id())),
            )
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU", found


def measure_trainers(config: PretrainConfig, *, trainers: int, steps: int) -> tuple[str, Measurements]:
    """Measure the loop with this number of trainers, and return the first one's device and rates. Raises
    GiornataError."""
    from ray.train import ScalingConfig, TrainingFailedError

    from giornata.pretrain.ray_train.fit import on_trainers

    workers = config.workers
    scaling = ScalingConfig(num_workers=trainers, use_gpu=workers.use_gpu, accelerator_type=workers.accelerator_type)
    try:
        found: tuple[str, Measurements] = on_trainers(work, config, {"steps": steps}, scaling=scaling)
    except TrainingFailedError as error:
        raise GiornataError(f"the trainers could not be measured: {error}") from error
    return found


def encoder_rates(
    config: PretrainConfig, *, batches: int = BATCHES, clock_s: Callable[[], float] = time.monotonic
) -> tuple[str, Measurements]:
    """The device of an encoder; for each phase the median of images/s after warm-up, and the bytes of an encoded row.

    What a picture shows does not change its cost, and captions are always filled up to 77 tokens.
    """
    mode, rows, found = config.encode.mode, config.encode.encode_batch_size, Measurements()
    encode = EncodeRows(config)
    for phase in config.phases:
        made, rates, row_bytes = to_encode(mode, phase.resolution, rows), list[float](), 0
        for _ in range(WARM_UP_BATCHES + batches):
            began_s = clock_s()
            fed = encode(made)
            rates.append(rows / max(1e-9, clock_s() - began_s))
            row_bytes = fed.nbytes // rows
        found[phase.name] = statistics.median(rates[WARM_UP_BATCHES:]), row_bytes
    return torch.cuda.get_device_name() if device_of_an_encoder(config) == "cuda" else "CPU", found


def measure_encoder(config: PretrainConfig) -> tuple[str, Measurements]:
    """`encoder_rates` in a process of its own, on a node such as the run's encoders want."""
    import ray

    from giornata.pretrain.feeding.graph import actor_options

    options = {name: value for name, value in actor_options(config).items() if name != "compute"}
    task = ray.remote(max_calls=1, max_retries=0)(encoder_rates).options(**{"num_cpus": 1, **options})
    found: tuple[str, Measurements] = ray.get(task.remote(config))
    return found


def _refuse_without_room(config: PretrainConfig, trainers: int) -> None:
    """Raise InvalidInput for resources that the Ray lacks: it would wait for them for ever."""
    import ray

    there, workers, where = ray.cluster_resources(), config.workers, config.encode.accelerator_type
    gpus = max(float(trainers) if workers.use_gpu else 0.0, gpus_of_an_encoder(config))
    faults = [
        Fault(
            where=f"Ray's {name}",
            message=f"{need:g} are needed, and {there.get(name, 0):g} are there",
            hint="measure fewer with --trainers 1, or give the --address of a larger Ray",
        )
        for name, need in {"CPU": float(trainers + 1), "GPU": gpus}.items()
        if need > there.get(name, 0)
    ]
    kinds = {"workers.accelerator_type": workers.accelerator_type, "encode.accelerator_type": where}
    faults += [
        Fault(where=name, message=f"no node of this Ray has {kind}", hint="give the --address of one that has")
        for name, kind in kinds.items()
        if kind is not None and f"accelerator_type:{kind}" not in there
    ]
    if faults:
        raise InvalidInput(faults)


def measured_config(config: PretrainConfig, trainers: int | None) -> tuple[PretrainConfig, int, list[str]]:
    """The configuration that is measured, its number of trainers, and notes for people."""
    notes = []
    if config.encode.mode not in BESIDE:
        notes.append(
            f"The mode {config.encode.mode} has no encoders beside the run: the number of encoders is what the mode"
            " online would need."
        )
        config = replace(config, encode=replace(config.encode, mode=Mode.ONLINE))
    count = trainers or config.workers.trainers
    if count < config.workers.trainers:
        # Each has the share of a step that it would have among all.
        batch = max(count, config.train.global_batch_size * count // config.workers.trainers)
        config = replace(config, train=replace(config.train, global_batch_size=batch))
        notes.append(
            f"{count} of {config.workers.trainers} trainers were measured. The rate of all is an estimate without the"
            " network between them."
        )
    if not config.workers.use_gpu:
        notes.append("Each was measured alone: on shared processors trainers and encoders slow one another down.")
    return config, count, notes


def report_of(
    config: PretrainConfig,
    mode: Mode,
    trainers: int,
    *,
    loop: tuple[str, Measurements],
    encoded: tuple[str, Measurements],
    notes: Sequence[str],
) -> dict[str, Any]:
    """The report of the run `config`, of which so many `trainers`, and one encoder in this `mode`, were measured.

    Of each phase: `demand_images_per_s` of all trainers, which leaves out the network between them where not all were
    measured; `encoders` that feed them; `fed_share`, what the `asked` encoders of the run can feed.
    """
    whole, sizes = config.workers.trainers, list[dict[str, Any]]()
    for place, phase in enumerate(config.phases):
        (trained_per_s, micro_batch), (encoded_per_s, row_bytes) = loop[1][phase.name], encoded[1][phase.name]
        demand, asked = trained_per_s * whole / trainers, config.encoders_of(place)
        sizes.append(
            {
                "name": phase.name,
                "resolution": phase.resolution,
                "trainers_images_per_s": trained_per_s,
                "demand_images_per_s": demand,
                "estimated": whole != trainers,
                "encoder_images_per_s": encoded_per_s,
                "micro_batch": micro_batch,
                "encoders": encoders_for(demand, encoded_per_s),
                "bytes_per_s": demand * row_bytes,
                "asked": asked,
                "fed_share": min(1.0, asked * encoded_per_s / demand),
            }
        )
    return {
        "name": config.name,
        "model": config.model.architecture.value,
        "mode": mode.value,
        "trainers": whole,
        "trainers_measured": trainers,
        "trainer_device": loop[0],
        "encoder_device": encoded[0],
        "sizes": sizes,
        "notes": list(notes),
    }


def main(
    config: str,
    address: str | None = None,
    trainers: int | None = None,
    steps: int = STEPS,
    report: Path | None = None,
) -> int:
    def work() -> dict[str, Any]:
        whole = rooted(read_config(config))
        measured, count, notes = measured_config(whole, trainers)
        phases = [f"{phase.name} ({phase.resolution} px)" for phase in measured.phases]
        with connected(address):
            _refuse_without_room(measured, count)
            tell({"what": "trainers", "phases": phases})
            loop = measure_trainers(measured, trainers=count, steps=steps)
            tell({"what": "encoder", "phases": phases})
            encoded = measure_encoder(measured)
        return report_of(whole, measured.encode.mode, count, loop=loop, encoded=encoded, notes=notes)

    return reported(report, work)


if __name__ == "__main__":
    program(main)
