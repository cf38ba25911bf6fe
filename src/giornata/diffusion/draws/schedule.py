"""The learning rate as a function of the step: nothing to save, nothing to restore."""

import math

from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimization import LrScheduler

POLYNOMIAL_END_LR = 1e-7


def learning_rate_factor(spec: TrainSpec, step: int) -> float:
    """Return the factor of the learning rates in optimizer step `step` of spec.max_train_steps, counted from 0."""
    return factor(
        spec.lr_scheduler,
        step,
        warmup=spec.lr_warmup_steps,
        total=spec.max_train_steps,
        cycles=spec.lr_num_cycles,
        power=spec.lr_power,
        rate=spec.learning_rate,
    )


def factor(
    schedule: LrScheduler,
    step: int,
    *,
    warmup: int,
    total: int,
    cycles: int = 1,
    power: float = 1.0,
    rate: float = 1.0,
) -> float:
    """Return the factor of a learning rate in step `step` of `total`, counted from 0.

    The formulas are those of diffusers.optimization.get_scheduler, with the number of training steps set to `total`:
    step 0 of a warm-up has a factor of 0. The polynomial ends at POLYNOMIAL_END_LR (of `rate`), or stays where it is
    when `rate` is lower than that.
    """
    if step < warmup and schedule is not LrScheduler.CONSTANT:
        return step / max(1, warmup)
    done = (step - warmup) / max(1, total - warmup)
    if schedule in {LrScheduler.CONSTANT, LrScheduler.CONSTANT_WITH_WARMUP}:
        return 1.0
    if schedule is LrScheduler.LINEAR:
        return max(0.0, (total - step) / max(1, total - warmup))
    if schedule is LrScheduler.COSINE:
        # half a period, whatever `cycles` says: diffusers' "cosine" ignores it too
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))
    if schedule is LrScheduler.COSINE_WITH_RESTARTS:
        place = (cycles * done) % 1.0
        return 0.0 if done >= 1.0 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * place)))
    end = min(POLYNOMIAL_END_LR, rate)
    left: float = max(0.0, 1.0 - done) ** power
    return ((rate - end) * left + end) / rate
