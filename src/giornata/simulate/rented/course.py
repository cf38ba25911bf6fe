"""The duration of an attempt's steps on a machine that differs from step to step and from hour to hour.

Noise is a function of (seed, machine, step of the attempt) and of (seed, machine, hour of the clock), and no state. A
machine without noise and heat takes the same time for each step.
"""

import functools
import itertools
import math
from bisect import bisect_right

from giornata.simulate.draws import rng
from giornata.simulate.rented.machines import SimulatedMachine

HOUR_MS = 3_600_000
BLOCK_STEPS = 256


def around_one(draw_of: object, *, seed: int, purpose: str, sigma: float) -> float:
    """A log-normal factor with mean 1."""
    return math.exp(rng(seed, purpose, draw_of).gauss(-sigma * sigma / 2, sigma)) if sigma else 1.0


@functools.lru_cache(maxsize=65_536)
def hour_factor(machine: SimulatedMachine, hour: int) -> float:
    """Return the factor by which the steps of this hour (since the epoch) take longer on this machine."""
    return around_one(f"{machine.id} {hour}", seed=machine.seed, purpose="hour", sigma=machine.hour_noise)


@functools.lru_cache(maxsize=16_384)
def _usual_steps(machine: SimulatedMachine, blocks: int) -> tuple[float, ...]:
    """Return, for each n, the worth of the first n steps of an attempt in usual steps, with heat and noise."""
    factors = (each for block in range(blocks) for each in _block(machine, block))
    hot = (machine.hot_by if step >= machine.hot_from_step else 1.0 for step in range(blocks * BLOCK_STEPS))
    return tuple(itertools.accumulate((a * b for a, b in zip(factors, hot, strict=True)), initial=0.0))


def _block(machine: SimulatedMachine, block: int) -> list[float]:
    """The noise of so many steps: one generator for all of them costs less than one for each."""
    sigma = machine.step_noise
    if not sigma:
        return [1.0] * BLOCK_STEPS
    draw = rng(machine.seed, "step", f"{machine.id} {block}")
    return [math.exp(draw.gauss(-sigma * sigma / 2, sigma)) for _ in range(BLOCK_STEPS)]


class StepTimeline:
    """The steps of one attempt against the clock. `step_ms` is what a step takes before noise and heat."""

    def __init__(self, machine: SimulatedMachine, *, start_ms: int, step_ms: float, steps: int) -> None:
        self._machine, self._start_ms, self._step_ms, self._steps = machine, start_ms, step_ms, steps
        self._worth = _usual_steps(machine, math.ceil(steps / BLOCK_STEPS))

    def done_at(self, now_ms: int) -> int:
        """Return the number of steps that are done at `now_ms`."""
        worth, at_ms = 0.0, self._start_ms
        while at_ms < now_ms:
            until_ms = min(now_ms, _next_hour_ms(at_ms))
            worth += (until_ms - at_ms) / self._pace_ms(at_ms)
            at_ms = until_ms
        return min(self._steps, bisect_right(self._worth, worth + 1e-6) - 1)

    def reaches_ms(self, step: int) -> int:
        """Return the instant at which the attempt has done so many steps."""
        left, at_ms = self._worth[step], self._start_ms
        while left > 0:
            pace_ms, until_ms = self._pace_ms(at_ms), _next_hour_ms(at_ms)
            if left * pace_ms <= until_ms - at_ms:
                return at_ms + math.ceil(left * pace_ms - 1e-6)
            left -= (until_ms - at_ms) / pace_ms
            at_ms = until_ms
        return at_ms

    def _pace_ms(self, at_ms: int) -> float:
        return self._step_ms * hour_factor(self._machine, at_ms // HOUR_MS)


def _next_hour_ms(at_ms: int) -> int:
    return (at_ms // HOUR_MS + 1) * HOUR_MS
