"""Model, optimizer and average of one trainer, and the guard of its steps: what a checkpoint holds of a trainer."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from diffusers import UNet2DConditionModel

from giornata.diffusion.base.regional import compiled, plainly
from giornata.diffusion.draws.determinism import let_cudnn_choose
from giornata.diffusion.encode.captions import Embedding
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.examples import Example, blank, bound_for, examples_of, filled
from giornata.pretrain.feeding.feed import Batch, Feed
from giornata.pretrain.feeding.ledger import Use, UseLedger
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase, share
from giornata.pretrain.run_state.checkpoints import load_tensors
from giornata.pretrain.run_state.committed import CommittedCheckpoint
from giornata.pretrain.run_state.costs import TrainerStart
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress, check_origin
from giornata.pretrain.training.models import held_draws, new_unet, objective_of, widths
from giornata.pretrain.training.optimizer import EMA, Averages, TrainingOptimizer, learning_rate, whole
from giornata.pretrain.training.parallel import micro_batch, shard_model, try_passes
from giornata.pretrain.training.step import Passes
from giornata.protocol.pretraining import LATENT_SIDE_PX, Phase, PretrainConfig, Train

WINDOW_STEPS = 128
"""Steps whose losses give the median."""
LEAST_STEPS = 16
"""Before so many steps only what is not a number is left out: the first losses say little about the next."""
Feeds = Callable[[int, UseLedger], Iterator[Feed]]
"""(place of the phase, its ledger as of this start) to this trainer's feeds; asked once in a phase."""
log = logging.getLogger(__name__)

WEIGHT = "weight."


class TooManyBadSteps(RuntimeError):
    """max_bad_steps steps in a row were left out."""


def fault_of_step(train: Train, progress: TrainingProgress, loss: float, grad_norm: float) -> str | None:
    """Return the reason to skip this step; None for a sound step, which then counts in the median.

    All trainers judge the same numbers, and so alike. Losses of the last sound steps and the number of bad ones in a
    row are kept in the progress. Raises TooManyBadSteps when max_bad_steps in a row were bad.
    """
    why = _why_bad(train, progress.losses, loss, grad_norm)
    if why is None:
        progress.losses, progress.bad_in_row = [*progress.losses, loss][-WINDOW_STEPS:], 0
        return None
    progress.bad_in_row += 1
    if progress.bad_in_row >= train.max_bad_steps:
        hint = "lower phases.*.learning_rate, or look at the data of these steps"
        raise TooManyBadSteps(f"{progress.bad_in_row} steps in a row were left out, the last because {why}: {hint}")
    return why


def _why_bad(train: Train, losses: Sequence[float], loss: float, grad_norm: float) -> str | None:
    if not math.isfinite(loss):
        return f"its loss is {loss}"
    if not math.isfinite(grad_norm):
        return f"the norm of its gradient is {grad_norm}"
    if len(losses) >= LEAST_STEPS and loss > train.max_loss_ratio * (usual := median(losses)):
        return f"its loss of {loss:.4g} is more than {train.max_loss_ratio:g} times the usual {usual:.4g}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """The inputs of a trainer. All trainers get the same inputs, but for feeds and held rows.

    `storage` is the run's own folder; `scratch` a local one, for this node. `digests` say what the rows are made of
    (`manifest`, `encoder`), `scaling` is the encoder's, `empty` its encoding of "". `held(phase)` are this trainer's
    rows of validation. `start` is the checkpoint to go on from (giornata.pretrain.run_state.committed.newest); None:
    from the beginning. `now_s` is the time in seconds since 1970, for the metrics. `report` gets the metrics of every
    step, `preempted` is asked once before every step, in all trainers; `traced` is told (phase, step, rows) of what
    this trainer trained. `node` names the machine that this trainer is on. `fence` raises InvalidInput when another
    command owns the storage by now; the first trainer asks it before it writes a checkpoint, and before the commit.

    `attempt` says since when this start costs money; None: since the call of `train`.
    """

    config: PretrainConfig
    phases: Sequence[RowsOfPhase]
    storage: Storage
    scratch: Path
    digests: Mapping[str, str]
    scaling: tuple[float, float]
    feeds: Feeds
    clock_s: Callable[[], float]
    now_s: Callable[[], float] = time.time
    device: torch.device
    empty: Embedding | None = None
    held: Callable[[int], Iterable[Batch]] = lambda _: ()
    report: Callable[[Mapping[str, float]], None] = lambda _: None
    preempted: Callable[[], bool] = lambda: False
    traced: Callable[[int, int, Sequence[Use]], None] = lambda _phase, _step, _uses: None
    fence: Callable[[], None] = lambda: None
    start: CommittedCheckpoint | None = None
    node: str = ""
    node_size: int | None = None
    peak_flops_per_s: float | None = None
    attempt: TrainerStart | None = None


class Trainer:
    """The model, its optimizer and averages on one device. All trainers make each call at the same place."""

    def __init__(self, run: TrainingRun, channel: Channel, stack: ExitStack) -> None:
        self._run, self._channel = run, channel
        config, train = run.config, run.config.train
        let_cudnn_choose(run.device, bits_promised=train.pinned_order)
        unet = new_unet(config.model.architecture, config.seed).to(run.device)
        self._widths = widths(unet)
        self._micro_batches = [self._micro_batch(unet, each) for each in config.phases]
        if train.torch_compile:
            stack.enter_context(compiled(unet, bits_promised=train.pinned_order))
        self._sharding = shard_model(unet, train, channel, run.device, node_size=run.node_size)
        self._parameters = self._sharding.parameters()
        self._optimizer = TrainingOptimizer(self._parameters, train, fused=run.device.type == "cuda")
        self._averages = Averages(self._parameters, decay=train.ema_decay)
        self._passes = Passes(self._sharding, objective_of(config), channel, self._kernels)
        self._held_draws = held_draws(config, run.scaling)
        self.draws = replace(
            self._held_draws,
            purpose="pretrain",
            proportion_empty_prompts=train.proportion_empty_prompts,
            empty=run.empty,
        )

    def restore(self) -> TrainingProgress:
        """Load the checkpoint to start from, and return its progress."""
        start, run = self._run.start, self._run
        if start is None:
            return TrainingProgress()
        progress = start.progress(run.storage)
        check_origin(progress, run.config, run.digests, where=f"{run.storage}/checkpoints/{start.name}")
        self._optimizer.begin(progress.updates)
        self._averages.begin(progress.ema_steps)
        load_tensors(run.storage, start, self.tensors(), run.scratch, self._channel, node=run.node)
        return progress

    def tensors(self) -> dict[str, torch.Tensor]:
        """`weight.<parameter>`, moments and, once it has begun, `ema.<parameter>`: themselves, where they are."""
        weights = {WEIGHT + name: each.detach() for name, each in self._parameters.items()}
        averages = {EMA + name: each for name, each in self._averages.tensors.items()}
        return {**weights, **self._optimizer.tensors(), **averages}

    def prepare(self, progress: TrainingProgress) -> int:
        """Prepare the current phase, and return its micro-batch."""
        self._phase = self._run.config.phases[progress.phase]
        rows = self._micro_batches[progress.phase]
        mine = share(self._run.config.train.global_batch_size, rank=self._channel.rank, world=self._channel.world)
        self._usual_rows = {rows, mine % rows}
        wanted = self._run.config.train.validation_steps
        held = self._run.held(progress.phase) if wanted else ()
        self._held = bound_for(self._run.device, examples_of(list(held), self._held_draws, rows))
        nothing = blank(self._widths, rows=1, side=self._phase.resolution // LATENT_SIDE_PX)
        (self.blank,) = bound_for(self._run.device, [nothing])
        return rows

    def step(
        self, progress: TrainingProgress, examples: Sequence[Example], rows: int
    ) -> tuple[bool, dict[str, float]]:
        """Train on this trainer's examples of a step that has so many rows over all. Returns whether the weights took
        it, and its numbers. Raises TooManyBadSteps."""
        losses = self._passes.train(examples, rows=rows)
        norm = self._optimizer.norm()
        steps = -(-self._phase.samples // self._run.config.train.global_batch_size)
        grad_norm, rate = whole(norm), learning_rate(self._phase, progress.step_in_phase, steps=steps)
        why = fault_of_step(self._run.config.train, progress, losses.mean, grad_norm)
        if why is None:
            self._optimizer.update(norm, rate)
            progress.samples += rows
            progress.updates = self._optimizer.steps
            self._average(progress)
        else:
            log.warning("step %d is left out: %s", progress.step + 1, why)
            progress.skipped_steps += 1
            progress.skipped_rows += rows
        self._optimizer.forget_gradients()
        progress.step += 1
        progress.step_in_phase += 1
        return why is None, {**losses.numbers(), "learning_rate": rate, "grad_norm": grad_norm}

    def validated(self, progress: TrainingProgress) -> Mapping[str, float]:
        """`validation_loss`, and by level of noise, with the averaged weights; nothing between its steps."""
        every = self._run.config.train.validation_steps
        if not every or progress.step % every:
            return {}
        passes = max(each[0] for each in self._channel.gather([len(self._held)]))
        if not passes:
            return {}
        self._sharding.gather_anew()
        with self._averages.swapped_in():
            losses = self._passes.judge(filled(self._held, self.blank, passes))
            self._sharding.gather_anew()
        return losses.numbers("validation_")

    def _average(self, progress: TrainingProgress) -> None:
        train = self._run.config.train
        if train.use_ema and progress.samples >= train.ema_start_samples:
            self._averages.update()
            progress.ema_steps = self._averages.steps

    def _kernels(self, rows: int) -> AbstractContextManager[None]:
        """Passes of unusual sizes (a step's rows that are fewer, the last step's, an empty pass) run without compiled
        kernels. So there are at most two sets of kernels for each size of picture, whatever rows come."""
        unusual = self._run.config.train.torch_compile and rows not in self._usual_rows
        return plainly(self._sharding.unet) if unusual else nullcontext()

    def _micro_batch(self, unet: UNet2DConditionModel, phase: Phase) -> int:
        most = share(self._run.config.train.global_batch_size, rank=0, world=self._channel.world)
        if phase.train_batch_size is not None:
            return min(most, phase.train_batch_size)
        attempt = partial(try_passes, unet, self._run.config.train, self._channel, phase.resolution)
        return micro_batch(most, self._run.device, attempt, self._channel)
