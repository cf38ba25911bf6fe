"""The machines that a provider may give: how fast, how steady, how well connected, how sound.

Published of machines of one model: over 18,800 hours on five clusters, GPUs of one kind differ by 8 % on average and
by 22 % at most, and outliers are up to 1.5 times as slow as the median, by manufacture, power management and cooling
(Sinha et al., "Not All GPUs Are Created Equal", SC22, arXiv 2208.11035). How a residential machine differs from step
to step and from hour to hour was not found published: `STEP_NOISE` and `HOUR_NOISE` are assumptions.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from giornata.domain.jobs.reasons import Reason
from giornata.simulate.draws import rng

SLOW = 1.4
STEP_NOISE = 0.2  # assumed: data loading and what else the owner runs; 20 steps average it to 4 %
HOUR_NOISE = 0.05  # assumed: within the published 8 %, of which it takes a part


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachine:
    """Hardware. `slowness` multiplies the time of a step; a machine with `breaks` ends every attempt with it.

    `step_noise` and `hour_noise` are the sigmas of log-normal factors for each step and each hour, drawn by `seed`.
    Unless it `starts`, each node's process on it ends before it asks for work.
    From `hot_from_step` of an attempt on, heat makes each step take `hot_by` times as long.
    """

    id: str
    seed: int = 0
    slowness: float = 1.0
    step_noise: float = 0.0
    hour_noise: float = 0.0
    hot_from_step: int = 1000
    hot_by: float = 1.0
    down_mbps: float = 300.0
    up_mbps: float = 20.0
    breaks: Reason | None = None
    breaks_after_s: float = 8.0
    starts: bool = True

    @property
    def sound(self) -> bool:
        """True when the machine starts, never breaks and is not slow. The median machine has slowness 1."""
        return self.starts and self.breaks is None and self.slowness * self.hot_by < SLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePool:
    """The distribution of the machines of a provider.

    Slowness: never below `fastest`, above it a log-normal whose median machine is 1, with `spread` as the sigma of
    its logarithm, and a share `throttled` of machines that are always hot, slower by up to `throttled_by`. A share
    `heats_up` of machines gets hot from step 1,000 of an attempt on, and is slower by up to `hot_by` from then on.
    The first `in_order` machines are handed out in their order, so that a scenario surely meets what is `notable`
    among them.
    """

    machines: int = 400
    in_order: int = 40
    fastest: float = 0.8
    spread: float = 0.5
    throttled: float = 0.05
    throttled_by: float = 2.0
    heats_up: float = 0.05
    hot_by: float = 1.5  # the published outliers
    step_noise: float = STEP_NOISE
    hour_noise: float = HOUR_NOISE
    notable: Mapping[int, Mapping[str, object]] = field(default_factory=dict)

    def machine(self, seed: int, number: int, *, of: str = "machine") -> SimulatedMachine:
        """The same one each time. `of`: whose it is."""
        draw = rng(seed, of, number)
        slowness = self.fastest + (1.0 - self.fastest) * math.exp(draw.gauss(0.0, self.spread))
        if draw.random() < self.throttled:
            slowness *= draw.uniform(1.0, self.throttled_by)
        heat = rng(seed, "heat", f"{of} {number}")
        machine = SimulatedMachine(
            id=f"{of}-{number:05d}",
            seed=seed,
            slowness=slowness,
            step_noise=self.step_noise,
            hour_noise=self.hour_noise,
            hot_by=heat.uniform(1.0, self.hot_by) if heat.random() < self.heats_up else 1.0,
            down_mbps=min(900.0, 40.0 + 260.0 * math.exp(draw.gauss(0.0, 0.6))),
            up_mbps=min(200.0, 8.0 + 12.0 * math.exp(draw.gauss(0.0, 0.7))),
        )
        special = self.notable.get(number)
        return machine if special is None else dataclasses.replace(machine, **special)  # type: ignore[arg-type]
