"""Model, optimizer, average and guard of one trainer: what a step changes, and what a checkpoint holds of it."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

from giornata.diffusion.determinism import let_cudnn_choose
from giornata.diffusion.objective import Objective
from giornata.diffusion.regional import compiled, plainly
from giornata.pretrain.feeding.examples import Draws, Example, blank, bound_for, examples_of, filled
from giornata.pretrain.feeding.rows_of_phase import share
from giornata.pretrain.training.averages import EMA, Averages
from giornata.pretrain.training.checkpoints import load_tensors
from giornata.pretrain.training.guard import Guard
from giornata.pretrain.training.micro_batch import Trial, micro_batch, share_of
from giornata.pretrain.training.models import TOKENS, new_unet, noise_scheduler, widths
from giornata.pretrain.training.optimizer import Optimizer, learning_rate, whole
from giornata.pretrain.training.parallel import spread
from giornata.pretrain.training.peers import Channel, Peers
from giornata.pretrain.training.progress import Progress, check_origin
from giornata.pretrain.training.step import Passes
from giornata.pretrain.training.token_routing import TokenRouting
from giornata.pretrain.training.training_run import Run
from giornata.protocol.pretraining import LATENT_SIDE_PX, Phase

log = logging.getLogger(__name__)

WEIGHT = "weight."


class Trainer:
    """Everything on one device. Calls are made by all trainers at the same place."""

    def __init__(self, run: Run, peers: Peers, channel: Channel, stack: ExitStack) -> None:
        self._run, self._channel = run, channel
        config, train = run.config, run.config.train
        let_cudnn_choose(run.device, bits_promised=train.pinned_order)
        unet = new_unet(config.model.architecture, config.seed).to(run.device)
        self._widths = widths(unet)
        self._micro_batches = [
            self._micro_batch(Trial(unet, train, run.device, peers), each) for each in config.phases
        ]
        routed = train.token_routing
        routing = TokenRouting(unet, share=routed, seed=config.seed) if routed else None
        if train.torch_compile:
            stack.enter_context(compiled(unet, bits_promised=train.pinned_order))
        self._spread = spread(unet, train, peers, run.device, node_size=run.node_size)
        self._parameters = self._spread.parameters()
        self._optimizer = Optimizer(self._parameters, train, fused=run.device.type == "cuda")
        self._averages = Averages(self._parameters, decay=train.ema_decay)
        self._guard = self._new_guard(Progress())
        self._passes = Passes(self._spread, self._objective(), channel, routing, self._kernels)
        timesteps = noise_scheduler(config.model.prediction_type).config.num_train_timesteps
        self._held_draws = Draws(
            seed=config.seed, timesteps=timesteps, scaling=run.scaling, purpose="pretrain/validation"
        )
        self.draws = Draws(
            seed=config.seed,
            timesteps=timesteps,
            scaling=run.scaling,
            proportion_empty_prompts=train.proportion_empty_prompts,
            empty=run.empty,
        )

    def restore(self) -> Progress:
        """Everything as in the checkpoint to start from, and how far that is."""
        start, run = self._run.start, self._run
        if start is None:
            return Progress()
        progress = start.progress(run.storage)
        check_origin(progress, run.config, run.digests, where=f"{run.storage}/checkpoints/{start.name}")
        self._optimizer.begin(progress.updates)
        self._averages.begin(progress.ema_steps)
        load_tensors(run.storage, start, self.tensors(), run.scratch, self._channel, node=run.node)
        self._guard = self._new_guard(progress)
        return progress

    def tensors(self) -> dict[str, torch.Tensor]:
        """`weight.<parameter>`, moments and, once it has begun, `ema.<parameter>`: themselves, where they are."""
        weights = {WEIGHT + name: each.detach() for name, each in self._parameters.items()}
        averages = {EMA + name: each for name, each in self._averages.tensors.items()}
        return {**weights, **self._optimizer.tensors(), **averages}

    def prepare(self, progress: Progress) -> int:
        """Be ready for the phase; returns its micro-batch."""
        self._phase = self._run.config.phases[progress.phase]
        rows = self._micro_batches[progress.phase]
        mine = share(self._run.config.train.global_batch_size, rank=self._channel.rank, world=self._channel.world)
        self._usual_rows = {rows, mine % rows}
        wanted = self._run.config.train.validation_steps
        held = self._run.held(progress.phase) if wanted else ()
        self._held = bound_for(self._run.device, examples_of(list(held), self._held_draws, rows))
        text, pooled = self._widths
        side = self._phase.resolution // LATENT_SIDE_PX
        nothing = blank(rows=1, side=side, tokens=TOKENS, text=text, pooled=pooled)
        (self._blank,) = bound_for(self._run.device, [nothing])
        return rows

    def blank(self) -> Example:
        """One row that weighs nothing."""
        return self._blank

    def step(self, progress: Progress, examples: Sequence[Example], rows: int) -> tuple[bool, dict[str, float]]:
        """Train on this trainer's examples of a step that has so many rows over all. Returns whether the weights took
        it, and its numbers. Raises TooManyBadSteps."""
        losses = self._passes.train(examples, rows=rows)
        norm = self._optimizer.norm()
        steps = -(-self._phase.samples // self._run.config.train.global_batch_size)
        grad_norm, rate = whole(norm), learning_rate(self._phase, progress.step_in_phase, steps=steps)
        why = self._guard.fault(losses.mean, grad_norm)
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
        progress.losses, progress.bad_in_row = self._guard.losses, self._guard.bad_in_row
        return why is None, {**losses.numbers(), "learning_rate": rate, "grad_norm": grad_norm}

    def validated(self, progress: Progress) -> Mapping[str, float]:
        """`validation_loss`, and by level of noise, with the averaged weights; nothing between its steps."""
        every = self._run.config.train.validation_steps
        if not every or progress.step % every:
            return {}
        passes = max(each[0] for each in self._channel.gather([len(self._held)]))
        if not passes:
            return {}
        self._spread.gather_anew()
        with self._averages.worn():
            losses = self._passes.judge(filled(self._held, self.blank, passes))
            self._spread.gather_anew()
        return losses.numbers("validation_")

    def _average(self, progress: Progress) -> None:
        train = self._run.config.train
        if train.use_ema and progress.samples >= train.ema_start_samples:
            self._averages.update()
            progress.ema_steps = self._averages.steps

    def _kernels(self, rows: int) -> AbstractContextManager[None]:
        """Passes of unusual sizes (a step's rows that are fewer, the last step's, an empty pass) run without compiled
        kernels. So there are at most two sets of kernels for each size of picture, whatever rows come."""
        unusual = self._run.config.train.torch_compile and rows not in self._usual_rows
        return plainly(self._spread.unet) if unusual else nullcontext()

    def _micro_batch(self, trial: Trial, phase: Phase) -> int:
        most = share_of(self._run.config.train.global_batch_size, self._channel.world)
        if phase.train_batch_size is not None:
            return min(most, phase.train_batch_size)
        return micro_batch(most, self._run.device, trial.of(phase.resolution), self._channel)

    def _objective(self) -> Objective:
        kind = self._run.config.model.prediction_type
        return Objective(
            scheduler=noise_scheduler(kind),
            prediction_type=kind,
            snr_gamma=self._run.config.train.snr_gamma,
        )

    def _new_guard(self, progress: Progress) -> Guard:
        train = self._run.config.train
        return Guard(
            max_loss_ratio=train.max_loss_ratio,
            max_bad_steps=train.max_bad_steps,
            losses=progress.losses,
            bad_in_row=progress.bad_in_row,
        )
