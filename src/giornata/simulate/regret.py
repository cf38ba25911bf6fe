"""How much better somebody could have done who knew everything beforehand: a bound, not a plan."""

import itertools
from dataclasses import dataclass

from giornata.simulate.provider import Container
from giornata.simulate.world import Ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Ratios to the bound, less 1. `bound_h` and `bound_billed_s` are the bound itself."""

    bound_h: float
    bound_billed_s: float
    makespan: float
    billed: float


def regret_of(ran: Ran) -> Regret | None:
    """Against the fluid bound: the very instances that ran, at their own speeds, for as long as they ran.

    In the bound steps are divisible at will between machines, nothing is prepared, saved or lost, and the jobs' steps
    are done as soon as the instances could have computed them. The makespan's bound is that moment; the bound of
    what is billed is the time that the fastest of these machines would need for all steps, each for as long as it was
    there. No policy reaches it with this fleet; one that is given a better fleet may.
    """
    containers = [each for fleet in ran.world.fleets.values() for each in fleet.past if each.running_since_ms]
    steps = float(ran.scenario.steps * len(ran.world.chronicle.jobs))
    done_ms = _fluid_end_ms(containers, steps, ran.scenario.trainer.step_s * 1000)
    if done_ms is None:
        return None
    bound_s = (done_ms - ran.world.agenda.start_ms) / 1000
    billed_s = _fewest_billed_s(containers, steps, ran.scenario.trainer.step_s * 1000)
    return Regret(
        bound_h=bound_s / 3600,
        bound_billed_s=billed_s,
        makespan=ran.makespan_s / bound_s - 1,
        billed=ran.world.tally.billed_ms / 1000 / billed_s - 1,
    )


def _fluid_end_ms(containers: list[Container], steps: float, step_ms: float) -> float | None:
    """When all steps could have been done by whoever ran."""
    changes = []
    for each in containers:
        speed = 1.0 / (step_ms * each.machine.slowness)
        changes += [(each.running_since_ms or 0, speed), (each.ended_at_ms or 0, -speed)]
    changes.sort()
    speed = 0.0
    for (at_ms, change), (until_ms, _) in itertools.pairwise(changes):
        speed += change
        if speed > 0 and steps <= speed * (until_ms - at_ms) * (1 + 1e-9):
            return at_ms + steps / speed
        steps -= speed * (until_ms - at_ms)
    return None


def _fewest_billed_s(containers: list[Container], steps: float, step_ms: float) -> float:
    """Seconds that the fastest of them would be billed for."""
    billed_ms = 0.0
    for each in sorted(containers, key=lambda container: container.machine.slowness):
        there_ms = (each.ended_at_ms or 0) - (each.running_since_ms or 0)
        needed_ms = steps * step_ms * each.machine.slowness
        billed_ms += min(there_ms, needed_ms)
        steps -= there_ms / (step_ms * each.machine.slowness)
        if steps <= 0:
            break
    return billed_ms / 1000
