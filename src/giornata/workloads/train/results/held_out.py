"""Measures the loss on pictures that are held out of training.

Which pictures, how they are cropped, their noise and their timesteps are functions of the seed and the same every
time: each picture is looked at once in each quarter of the timesteps. Nothing that the steps draw depends on it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from giornata.diffusion.adapter.lora import Adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import key_of, permutation
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.optim.objective import Objective
from giornata.diffusion.optim.optimizer import JobOptimizer
from giornata.diffusion.sampling.samples import showing
from giornata.domain.errors import Fault
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.train_fields import held_count, validated_steps
from giornata.workloads.interface import Clock, Reporter
from giornata.workloads.train.inputs.encoding import CachedInputs, Tick, cache_inputs
from giornata.workloads.train.inputs.sample_set import SampleSet, refuse_if
from giornata.workloads.train.inputs.sampling_plan import assemble
from giornata.workloads.train.results.checkpoint_writer import CheckpointWriter
from giornata.workloads.train.results.step_metrics import StepMeter, diverged
from giornata.workloads.train.steps import encoded

LOOKS = 4
"""The number of times that each picture is looked at."""
PURPOSE = "held-out"
VALIDATION_LOSS = "validation_loss"
"""The metric."""


def split(sample_set: SampleSet, spec: TrainSpec, seed: int) -> tuple[SampleSet, SampleSet | None]:
    """Split the samples into those to train on, and those held out, if any. Pictures of the same content stay
    together.

    Raises WorkloadFailed(BAD_SPEC) when no picture would be left to train on.
    """
    if spec.validation_split == 0:
        return sample_set, None
    contents = sorted({sample.sha256 for sample in sample_set.samples})
    count = held_count(spec, len(contents))
    if count >= len(contents):
        message = f"holds out {count} of {len(contents)} different pictures, and leaves none to train on"
        fault = Fault(where="spec.validation_split", message=message, hint="hold out fewer, or upload more pictures")
        refuse_if([fault], Reason.BAD_SPEC)
    held = {contents[place] for place in permutation(seed, PURPOSE, n=len(contents))[:count]}
    trained = tuple(sample for sample in sample_set.samples if sample.sha256 not in held)
    looked_at = tuple(replace(sample, repeats=1) for sample in sample_set.samples if sample.sha256 in held)
    return replace(sample_set, samples=trained), replace(sample_set, samples=looked_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The held-out pictures, encoded. `count` is how many samples there are."""

    base: BaseModel
    spec: TrainSpec
    cached_inputs: CachedInputs
    objective: Objective
    count: int

    @classmethod
    def encoded(
        cls, base: BaseModel, spec: TrainSpec, held: SampleSet, objective: Objective, *, seed: int, tick: Tick
    ) -> "HeldOut":
        """Encode the held-out pictures. Raises WorkloadFailed as `encoding.cache_inputs` does."""
        count = len(held.samples)
        plain = spec.model_copy(
            update={
                **{"train_batch_size": 1, "gradient_accumulation_steps": 1, "max_train_steps": LOOKS * count},
                **{"shuffle_caption": False, "caption_dropout_rate": 0.0, "ip_noise_gamma": 0.0},
                **{"network_dropout": 0.0, "rank_dropout": 0.0, "module_dropout": 0.0, "prior_prediction": False},
            }
        )
        own_seed = key_of("integer", seed, PURPOSE, ()) % 2**63
        cached_inputs = cache_inputs(base, plain, (held,), seed=own_seed, first_step=0, tick=tick)
        return cls(base=base, spec=spec, cached_inputs=cached_inputs, objective=objective, count=count)

    @torch.no_grad()
    def loss(self, step: int, adapters: Adapters, result: Mapping[str, torch.Tensor], reporter: Reporter) -> float:
        """Return the mean loss over the pictures, with `result`, the weights that the user would get after this step.

        The adapters are left as they were. Waits for the device once. Raises WorkloadFailed(BAD_SPEC) when the loss
        is not finite.
        """
        total, losses = LOOKS * self.count, []
        # Kernels of the steps are for other shapes.
        with showing(adapters, result), adapters.swapped_in(), torch.compiler.set_stance("force_eager"):
            for number in range(total):
                reporter.phase("validating", number, total)
                losses.append(self._one(number))
        found = float(torch.cat(losses).mean())
        reporter.phase("training", step, self.spec.max_train_steps)
        if not math.isfinite(found):
            raise diverged(self.spec, step, f"the loss on held-out pictures is {found}")
        return found

    def _one(self, number: int) -> torch.Tensor:
        """Return loss_B of the look of this number."""
        draws, base = self.cached_inputs.draws, self.base
        whole, quarter = draws.timesteps, number // self.count
        start, end = (whole.start + len(whole) * (quarter + part) // LOOKS for part in (0, 1))
        drawn = draws.micro_batch(number, 0)
        within = replace(draws, timesteps=range(start, max(end, start + 1)))
        batch = assemble(within, drawn, self.cached_inputs.latents, base.vae.config)
        return self.objective.each(
            base.unet, batch.to(base.device), self._embedding([draw.sample.caption for draw in drawn])
        )

    def _embedding(self, texts: list[str]) -> Embedding:
        if self.cached_inputs.embeddings is not None:
            return self.cached_inputs.embeddings.batch(texts)
        return encoded(self.base, self.spec, texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutEvaluator:
    """Measures the held-out pictures after the steps that want it. `held_out` is None in jobs without any."""

    held_out: HeldOut | None
    adapters: Adapters
    optimizer: JobOptimizer
    writer: CheckpointWriter
    meter: StepMeter
    reporter: Reporter
    clock: Clock

    def after(self, step: int, loss: torch.Tensor) -> dict[str, float]:
        """Return the metric of step number `step` (from 1), which has this loss; empty for most steps. The time that
        it takes is not the step's."""
        if self.held_out is None or step not in validated_steps(self.held_out.spec):
            return {}
        loss.item()  # what is under way is the step's
        began_s = self.clock()
        found = self.held_out.loss(step, self.adapters, self.optimizer.result(), self.reporter)
        self.writer.validated.append(found)
        self.meter.leave_out(self.clock() - began_s)
        return {VALIDATION_LOSS: found}


def validation_of(spec: TrainSpec, losses: Sequence[float]) -> dict[str, Any]:
    """Return an entry for the job's summary: the curve, and the first step with the least loss."""
    if not losses:
        return {}
    curve = list(zip(validated_steps(spec), losses, strict=True))
    best_step, _ = min(curve, key=lambda point: point[1])
    return {VALIDATION_LOSS: [list(point) for point in curve], "validation_best_step": best_step}
