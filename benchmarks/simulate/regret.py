"""How much better anybody could have done with what the provider offers: a bound, not a plan.

The bound knows the offer: the machine pool, the start curve, the price and how many nodes there may be at a time. It
knows nothing of the run, so that too few nodes, late nodes and slow machines that stayed all count as regret.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from giornata.domain.billing.money import MICRO_USD
from giornata.simulate.draws import by_curve
from giornata.simulate.rented.provider import SimulatedOffer
from giornata.simulate.run import SimulationResult
from giornata.simulate.scenario import Scenario

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What nobody does better: hours until all steps are done, and dollars for them; each alone."""

    makespan_h: float
    usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Ratios to the bound, less 1. `bound_h` and `bound_usd` are the bound itself."""

    bound_h: float
    bound_usd: float
    makespan: float
    cost: float


def regret_of(ran: SimulationResult) -> Regret:
    """Of a run, against `bound_of` its scenario."""
    bound = bound_of(ran.scenario, seed=ran.seed)
    return Regret(
        bound_h=bound.makespan_h,
        bound_usd=bound.usd,
        makespan=ran.makespan_s / HOUR_S / bound.makespan_h - 1,
        cost=ran.world.billed_time.billed_micro_usd / MICRO_USD / bound.usd - 1,
    )


def bound_of(scenario: Scenario, *, seed: int) -> Bound:
    """The fluid bound of an offer.

    Steps are divisible at will between machines; nothing is prepared, saved, interrupted or lost. Makespan: the
    fastest machines of each pool, as many as may be there at a time, all asked for at once; the n-th of them comes
    when a share of (n - 1) / nodes has come by the start curve. Cost: the machine that does a step for the least
    money does all of them, at the lowest price that is ever asked.
    """
    steps, step_s = scenario.jobs * scenario.steps, scenario.trainer.step_s
    fleet = [each for offer in scenario.offers for each in _best_fleet(offer, nodes=scenario.nodes, seed=seed)]
    cheapest = min(_least_micro_usd_per_hour(offer) * slowness for offer, slowness, _ in fleet)
    return Bound(
        makespan_h=_fluid_end_s([(start_s, 1 / (step_s * slowness)) for _, slowness, start_s in fleet], steps)
        / HOUR_S,
        usd=steps * step_s * cheapest / HOUR_S / MICRO_USD,
    )


def _best_fleet(offer: SimulatedOffer, *, nodes: int, seed: int) -> Iterator[tuple[SimulatedOffer, float, float]]:
    """(offer, slowness, second of its start) of the fastest machines, the fastest first. Broken ones are none."""
    pool = (offer.pool.machine(seed, number, of=offer.machines) for number in range(offer.pool.machines))
    fastest = sorted(machine.slowness for machine in pool if machine.breaks is None)[:nodes]
    for number, slowness in enumerate(fastest):
        yield offer, slowness, by_curve(number / nodes, offer.start_min) * 60


def _least_micro_usd_per_hour(offer: SimulatedOffer) -> float:
    times = 1.0 if offer.spike is None else min(1.0, offer.spike[2])
    return offer.price_micro_usd_per_hour * times


def _fluid_end_s(starts: list[tuple[float, float]], steps: float) -> float:
    """When all steps are done by machines of (start in seconds, steps a second)."""
    speed = 0.0
    for (start_s, more), (until_s, _) in itertools.pairwise([*sorted(starts), (float("inf"), 0.0)]):
        speed += more
        if steps <= speed * (until_s - start_s):
            return start_s + steps / speed
        steps -= speed * (until_s - start_s)
    raise ValueError("a fleet without machines does no steps")


def regret_words(told: Mapping[str, Any]) -> str:
    """Against the bound of the offer."""
    regret = told["regret"]
    return (
        f"regret against what the offer allows (its fastest machines at the start curve, its lowest price, no loss, "
        f"steps divisible at will): makespan {regret['makespan']:+.1%} of {regret['bound_h']:.2f} h, "
        f"cost {regret['cost']:+.1%} of ${regret['bound_usd']:.2f}"
    )
