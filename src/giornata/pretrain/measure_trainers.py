"""What trainers could train if rows were always at hand: the loop itself, fed with synthetic latents.

Everything but data, encoders and checkpoints is as in the run: model, sharding, compilation, micro-batch, draws,
average. Shapes: B rows of one size; C = 4, h, w = pixels / 8; L = 77 tokens; D, P widths of the text.
"""

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.batch import Batch, Feed
from giornata.pretrain.feeding.examples import EmptyPrompt
from giornata.pretrain.feeding.ledger import Ledger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.pretrain.feeding.schedule import share
from giornata.pretrain.training.loop import Run, train
from giornata.pretrain.training.models import TOKENS, unet_on_meta, widths
from giornata.pretrain.training.parallel import full_nodes
from giornata.pretrain.training.peers import Peers
from giornata.protocol.pretraining import LATENT_SIDE_PX, Architecture, PretrainConfig
from giornata.protocol.pretraining_checks import parse

WARM_UP_STEPS = 5
"""Compilation, the choice of kernels and the first allocations are in the first steps."""
SCALING = (0.0, 0.18215)


class Enough(Exception):
    """So many steps were asked for."""


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
) -> list[float]:
    """Images/s of all trainers in each of so many steps of a phase, after warm-up. Called by all trainers."""
    one = _only(config, phase, steps)
    found: list[float] = []

    def report(row: Mapping[str, float]) -> None:
        found.append(row["images_per_s"])
        if len(found) == WARM_UP_STEPS + steps:
            raise Enough

    run = Run(
        config=one,
        phases=(RowsOfPhase(seed=0, phase=0, samples=one.samples, shard_rows=(one.samples,)),),
        storage=Storage.at(scratch / "run"),
        scratch=scratch,
        digests={},
        scaling=SCALING,
        empty=_empty(config.model.architecture),
        feeds=synthetic_feeds(one, rank=rank, world=world),
        clock_s=clock_s,
        device=device,
        report=report,
        node_size=node_size,
    )
    try:
        train(run)
    except Enough:
        return found[WARM_UP_STEPS:]
    raise RuntimeError("the phase ended before enough of its steps were measured")


def _only(config: PretrainConfig, phase: int, steps: int) -> PretrainConfig:
    """One phase that is long enough, with its average from the first step on, and without what is not part of a
    step."""
    batch = config.train.global_batch_size
    samples = (WARM_UP_STEPS + steps + 2) * batch
    return replace(
        config,
        phases=(replace(config.phases[phase], samples=samples),),
        train=replace(
            config.train, checkpoint_steps=samples, ema_start_samples=0, validation_steps=0, validation_rows=0
        ),
    )


def synthetic_feeds(config: PretrainConfig, *, rank: int, world: int) -> Callable[[int, Ledger], Iterator[Feed]]:
    """Rows of nothing, at once, in batches as they come from a real stream."""
    batch = config.train.global_batch_size
    mine = share(batch, rank=rank, world=world)
    before = sum(share(batch, rank=other, world=world) for other in range(rank))

    def feeds(phase: int, _: Ledger) -> Iterator[Feed]:
        settings = config.phases[phase]
        at_once = settings.train_batch_size or mine
        for first in range(before, settings.samples, batch):
            sizes = [min(at_once, mine - done) for done in range(0, mine, at_once)]
            starts = [first + sum(sizes[:place]) for place in range(len(sizes))]
            batches = [
                synthetic_batch(config.model.architecture, settings.resolution, start, rows)
                for start, rows in zip(starts, sizes, strict=True)
            ]
            yield Feed(batches=batches, unreadable=(), wait_s=0.0)

    return feeds


def synthetic_batch(architecture: Architecture, resolution: int, first: int, rows: int) -> Batch:
    """Rows `first` and following of one long shard."""
    side = resolution // LATENT_SIDE_PX
    text, pooled = widths(unet_on_meta(architecture))
    place = [resolution, resolution, 0, 0, resolution, resolution]
    return Batch(
        uses=[(0, row) for row in range(first, first + rows)],
        keys=[f"synthetic-{row}" for row in range(first, first + rows)],
        epochs=[0] * rows,
        mean_BCHW=torch.zeros(rows, 4, side, side, dtype=torch.float16),
        logvar_BCHW=torch.zeros(rows, 4, side, side, dtype=torch.float16),
        prompt_BLD=torch.zeros(rows, TOKENS, text, dtype=torch.float16),
        pooled_BP=None if pooled is None else torch.zeros(rows, pooled, dtype=torch.float16),
        time_ids_B6=torch.tensor([place] * rows, dtype=torch.float32),
    )


def _empty(architecture: Architecture) -> EmptyPrompt:
    text, pooled = widths(unet_on_meta(architecture))
    return EmptyPrompt(
        prompt_LD=torch.zeros(TOKENS, text, dtype=torch.float16),
        pooled_P=None if pooled is None else torch.zeros(pooled, dtype=torch.float16),
    )


def work(values: Mapping[str, Any]) -> None:
    """What Ray Train calls in every trainer's process: each phase in its turn."""
    import ray
    import ray.train
    import ray.train.torch

    config, board = parse(values["config"]), values["board"]
    channel = Peers().channel()
    device, context = ray.train.torch.get_device(), ray.train.get_context()
    rank = context.get_world_rank()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    for phase, settings in enumerate(config.phases):
        scratch = Path(tempfile.mkdtemp(prefix="giornata-size-"))
        try:
            found = measure_loop(
                config,
                phase,
                steps=values["steps"],
                device=device,
                scratch=scratch,
                rank=rank,
                world=context.get_world_size(),
                node_size=full_nodes(channel.gather_objects(ray.get_runtime_context().get_node_id())),
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if rank == 0:
            message = {"event": "trainers", "phase": settings.name, "images_per_s": found, "device": name}
            ray.get(board.pin.remote(message))


def measure_trainers(config: PretrainConfig, *, trainers: int, steps: int) -> tuple[str, dict[str, list[float]]]:
    """On the Ray that is there, with so many trainers: their device, and images/s of all of them by phase and step.

    Raises what Ray Train raises.
    """
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from giornata.pretrain.board import board_here
    from giornata.pretrain.fit import BACKENDS, NOTES
    from giornata.pretrain.run_storage import run_storage

    workers, run = config.workers, run_storage(config)
    board, notes = board_here(), f"{NOTES}/{uuid.uuid4().hex}"
    trainer = TorchTrainer(
        work,
        train_loop_config={"config": config.to_json(), "board": board, "steps": steps},
        torch_config=TorchConfig(backend=BACKENDS[workers.use_gpu]),
        scaling_config=ScalingConfig(
            num_workers=trainers, use_gpu=workers.use_gpu, accelerator_type=workers.accelerator_type
        ),
        run_config=RunConfig(name="size", storage_path=run.path(notes), storage_filesystem=run.filesystem),
    )
    try:
        trainer.fit()
    finally:
        run.remove_all(notes)
    messages = ray.get(board.take.remote())
    return messages[0]["device"], {each["phase"]: each["images_per_s"] for each in messages}
