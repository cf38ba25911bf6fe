"""The machines that a provider may give: how fast, how well connected, how sound."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from giornata.domain.reasons import Reason
from giornata.simulate.draws import rng

SLOW = 1.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware. `slowness` multiplies the time of a step; a machine with `breaks` ends every attempt with it."""

    id: str
    slowness: float = 1.0
    down_mbps: float = 300.0
    up_mbps: float = 20.0
    breaks: Reason | None = None
    breaks_after_s: float = 8.0

    @property
    def sound(self) -> bool:
        """Whether there is nothing to hold against it. The median machine has slowness 1."""
        return self.breaks is None and self.slowness < SLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """What the machines of a provider are like.

    Slowness: never below `fastest`, above it a log-normal whose median machine is 1, with `spread` as the sigma of
    its logarithm, and a share `throttled` of machines that get hot, slower by up to `throttled_by`. The first
    `in_order` machines are handed out in their order, so that a scenario surely meets what is `notable` among them.
    """

    machines: int = 400
    in_order: int = 40
    fastest: float = 0.8
    spread: float = 0.5
    throttled: float = 0.05
    throttled_by: float = 2.0
    notable: Mapping[int, Mapping[str, object]] = field(default_factory=dict)

    def machine(self, seed: int, number: int, *, of: str = "machine") -> Machine:
        """The same one each time. `of`: whose it is."""
        draw = rng(seed, of, number)
        slowness = self.fastest + (1.0 - self.fastest) * math.exp(draw.gauss(0.0, self.spread))
        if draw.random() < self.throttled:
            slowness *= draw.uniform(1.0, self.throttled_by)
        machine = Machine(
            id=f"{of}-{number:05d}",
            slowness=slowness,
            down_mbps=min(900.0, 40.0 + 260.0 * math.exp(draw.gauss(0.0, 0.6))),
            up_mbps=min(200.0, 8.0 + 12.0 * math.exp(draw.gauss(0.0, 0.7))),
        )
        special = self.notable.get(number)
        return machine if special is None else dataclasses.replace(machine, **special)  # type: ignore[arg-type]


Speed = Callable[[Machine], float]
"""Seconds of a step on a machine."""
