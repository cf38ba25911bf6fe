"""Learning rate as a function of the step: nothing to save, nothing to restore."""

import math

from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimisation import LrScheduler

POLYNOMIAL_END_LR = 1e-7


def learning_rate_factor(spec: TrainSpec, step: int) -> float:
    """What the learning rates are multiplied by in optimizer step `step`, counted from 0.

    The formulas are those of diffusers.optimization.get_scheduler, with the number of training steps set to
    spec.max_train_steps: step 0 of a warm-up has a factor of 0. The polynomial ends at POLYNOMIAL_END_LR (of the
    UNet's rate), or stays where it is when the learning rate is lower than that.
    """
    warmup, total = spec.lr_warmup_steps, spec.max_train_steps
    if step < warmup and spec.lr_scheduler is not LrScheduler.CONSTANT:
        return step / max(1, warmup)
    done = (step - warmup) / max(1, total - warmup)
    if spec.lr_scheduler in {LrScheduler.CONSTANT, LrScheduler.CONSTANT_WITH_WARMUP}:
        return 1.0
    if spec.lr_scheduler is LrScheduler.LINEAR:
        return max(0.0, (total - step) / max(1, total - warmup))
    if spec.lr_scheduler is LrScheduler.COSINE:
        # half a period, whatever lr_num_cycles says: diffusers' "cosine" ignores it too
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))
    if spec.lr_scheduler is LrScheduler.COSINE_WITH_RESTARTS:
        place = (spec.lr_num_cycles * done) % 1.0
        return 0.0 if done >= 1.0 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * place)))
    return _polynomial(spec, done)


def _polynomial(spec: TrainSpec, done: float) -> float:
    start = spec.learning_rate
    end = min(POLYNOMIAL_END_LR, start)
    left: float = max(0.0, 1.0 - done) ** spec.lr_power
    return ((start - end) * left + end) / start
