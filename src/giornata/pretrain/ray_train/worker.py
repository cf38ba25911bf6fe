"""One trainer, in a process that Ray Train started: brings rows, device and storage together for the loop."""

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
import ray.train
import ray.train.torch
import torch
from ray.train.v2._internal.execution.context import get_train_context

from giornata.diffusion.draws.determinism import let_libraries_repeat
from giornata.diffusion.encode.captions import Embedding
from giornata.pretrain.data.fence import check as check_owner
from giornata.pretrain.data.manifest import Manifest
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encoding.encode_shards import encoded_here
from giornata.pretrain.encoding.encoded import encoded_manifest, latents_storage, read_empty, source_manifest
from giornata.pretrain.encoding.encoder import Encoder, open_encoder
from giornata.pretrain.feeding.feed import Batch, Feed, Feeder
from giornata.pretrain.feeding.graph import validation_batches
from giornata.pretrain.feeding.ledger import UseLedger
from giornata.pretrain.feeding.rows_of_phase import rows_of_phases, share
from giornata.pretrain.run_state.committed import newest, run_storage
from giornata.pretrain.run_state.costs import TrainerStart
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.run_state.proof import FOLDER, Trace
from giornata.pretrain.training.loop import train
from giornata.pretrain.training.models import peak_flops_per_s
from giornata.pretrain.training.parallel import full_nodes
from giornata.pretrain.training.trainer import TrainingRun
from giornata.protocol.pretraining import Mode, Parallel, PretrainConfig
from giornata.protocol.pretraining_checks import parse

log = logging.getLogger(__name__)


def announced() -> object | None:
    """Ray Train's notice to this trainer of a node that is taken away. Every trainer gets it.

    The public `ray.train.get_preemption_info` is a broadcast for which all trainers wait. The loop makes all trainers
    agree before each step anyway, so that each looks only at what itself was told.
    """
    return get_train_context().preemption_context.preemption_info


class Notices:
    """Tells whether the trainers are to leave: the command asks for it, or a cloud takes a node away.

    Asked before every step, without waiting. Only the first trainer looks at the actor: the loop tells the others.
    `leave` is what the actor asked for.
    """

    def __init__(self, actor: Any, *, first: bool, announced: Callable[[], object] = announced) -> None:
        self._actor: Any = actor if first else None
        self._announced, self._asked, self.leave = announced, None, ""

    def __call__(self) -> bool:
        if self._actor is not None:
            self._look()
        return bool(self.leave) or self._announced() is not None

    def _look(self) -> None:
        """Take the answer to an earlier question, and ask anew."""
        if self._asked is not None:
            ready, _ = ray.wait([self._asked], timeout=0)
            if not ready:
                return
            self.leave = ray.get(ready[0])
        self._asked = self._actor.leave.remote()


def work(values: Mapping[str, Any]) -> str:
    """Train in one trainer's process, which Ray Train started.

    `values` has the configuration as JSON, the actor, when the command that trains began (epoch ms), and its token as
    `owner` of the storage. Returns the outcome, or the actor's request: STOP, or RESIZE when the number of trainers
    changes.
    """
    let_libraries_repeat(os.environ)
    logging.getLogger("giornata").setLevel(logging.INFO)
    config, channel = parse(values["config"]), Channel()
    notices = Notices(values["actor"], first=channel.rank == 0)
    outcome = train(_run(config, values, channel, notices))
    asked: str = channel.gather_objects(notices.leave)[0] if outcome is TrainingOutcome.PREEMPTED else ""
    return asked or str(outcome)


def _run(config: PretrainConfig, values: Mapping[str, Any], channel: Channel, notices: Notices) -> TrainingRun:
    device, source = ray.train.torch.get_device(), source_manifest(config)
    phases, storage = rows_of_phases(config, source), run_storage(config)
    start = channel.gather_objects(newest(storage) if channel.rank == 0 else None)[0]
    frozen = frozen_parts(config, source, device)
    if config.encode.mode is not Mode.COLOCATED:
        frozen = replace(frozen, encoder=None)  # it would lie in the device's memory while others encode
    trace = _trace(config, storage.path(), 0 if start is None else start.step, channel)
    total = sum(-(-phase.samples // config.train.global_batch_size) for phase in config.phases)

    def report(row: Mapping[str, float]) -> None:
        if channel.rank == 0:
            values["actor"].add.remote(
                {"event": "progress", "step": int(row["step"]), "total": total, "metrics": dict(row)}
            )

    def held(phase: int) -> list[Batch]:
        encoder = frozen.encoder
        if encoder is None and config.encode.mode is not Mode.OFFLINE:
            encoder = open_encoder(config.model, seed=config.seed, device=device)
        return validation_batches(
            config, phase, phases[phase], source, encoder, rank=channel.rank, world=channel.world
        )

    return TrainingRun(
        config=config,
        phases=phases,
        storage=storage,
        scratch=Path(tempfile.gettempdir()) / "giornata-pretrain" / config.name,
        digests={"manifest": source.digest, "encoder": frozen.digest},
        scaling=frozen.scaling,
        empty=frozen.empty,
        feeds=feeds(config, frozen.encoder, rank=channel.rank, world=channel.world),
        held=held,
        clock_s=time.monotonic,
        device=device,
        report=report,
        preempted=notices,
        traced=trace,
        start=start,
        node=ray.get_runtime_context().get_node_id(),
        node_size=_node_size(config, channel),
        peak_flops_per_s=peak_flops_per_s(device),
        attempt=_attempt(storage, values["command_ms"]) if channel.rank == 0 else None,
        fence=partial(check_owner, storage, values["owner"]) if values["owner"] else lambda: None,
    )


def _attempt(storage: Storage, command_ms: int) -> TrainerStart:
    process_ms = round(psutil.Process().create_time() * 1000)
    now_ms = time.time_ns() // 1_000_000
    return TrainerStart.begun(
        storage, command_ms=command_ms, process_ms=process_ms, now_ms=now_ms, now_s=time.monotonic
    )


def _node_size(config: PretrainConfig, channel: Channel) -> int | None:
    # Ray Train goes by addresses, which two nodes may share, and gives ranks by nodes.
    nodes = channel.gather_objects(ray.get_runtime_context().get_node_id())
    found = full_nodes(nodes)
    if found is None and config.train.parallel is Parallel.HSDP and channel.rank == 0:
        log.warning("nodes have %s trainers: with unequal nodes all shard together", sorted(Counter(nodes).values()))
    return found


def feeds(
    config: PretrainConfig, encoder: Encoder | None, *, rank: int, world: int
) -> Callable[[int, UseLedger], Iterator[Feed]]:
    """This trainer's stream of each phase, a step's share at a time."""
    rows = share(config.train.global_batch_size, rank=rank, world=world)
    colocated = config.encode.mode is Mode.COLOCATED

    def of_phase(phase: int, _: UseLedger) -> Iterator[Feed]:
        settings = config.phases[phase]
        batch_rows = None if config.train.pinned_order else settings.train_batch_size
        stream = ray.train.get_dataset_shard(settings.name)
        batches = stream.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=4)
        feeder = Feeder(encoded_here(config, batches, encoder) if colocated else batches)
        while True:
            feed = feeder.take(rows, batch_rows)
            if not feed.rows and not feed.unreadable:
                return
            yield feed

    return of_phase


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenParts:
    """Facts of the frozen encoders for the loop. `encoder` is None where every row comes encoded."""

    digest: str
    scaling: tuple[float, float]
    empty: Embedding
    encoder: Encoder | None


def frozen_parts(config: PretrainConfig, source: Manifest, device: torch.device) -> FrozenParts:
    """Return the frozen parts from the encoded shards, or in other modes than offline from the encoders."""
    if config.encode.mode is Mode.OFFLINE:
        resolution = config.phases[0].resolution
        about = encoded_manifest(config, resolution, source).about
        shift, factor = about["scaling"]
        empty = read_empty(latents_storage(config, resolution))
        return FrozenParts(digest=about["encoder"], scaling=(shift, factor), empty=empty, encoder=None)
    encoder = open_encoder(config.model, seed=config.seed, device=device)
    return FrozenParts(
        digest=encoder.digest, scaling=encoder.scaling, empty=encoder.encode_text([""]), encoder=encoder
    )


def _trace(config: PretrainConfig, folder: str, from_step: int, channel: Channel) -> Callable[[int, int, Any], None]:
    began_ms = channel.gather_objects(time.time_ns() // 1_000_000)[0]
    if not config.tracking.trace_rows:
        return lambda _phase, _step, _uses: None
    return Trace(Path(folder) / FOLDER, from_step=from_step, now_ms=began_ms, rank=channel.rank)
