"""The cases that `giornata simulate affinity` plays over several seeds, and the marks that they have to hold."""

import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from giornata.domain.generation.model_routing import RoutingPolicy
from giornata.simulate.affinity.bounds import fewest_loads, random_loads, shortest_drain_s
from giornata.simulate.affinity.routed_fleet import RoutedFleet, ServedRequest
from giornata.simulate.affinity.setting import AffinitySetting

UNSTABLE_FROM = 1.05
"""A run overruns when all that came is drawn only after so many times its length."""
MOST_OF_RANDOM, MOST_OF_BOUND = 0.45, 1.8
OUTAGE_S = 600.0
MOST_WITHIN_TEN_MINUTES, MOST_AFTER_OUTAGE = 1.0, 1.1
"""Loads per request of the 10 minutes after the outage, and of the 20, in those before it."""
MOST_WAIT_AFTER_OUTAGE = 1.5
"""Waits are as before when the p95 of a minute's arrivals is at most so many times that of before the outage."""
MOST_DRAIN_OF_BOUND = 1.4


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityCase:
    """A setting with a name. `random_routing`: requests go to any free node, as the baseline."""

    name: str
    about: str
    setting: AffinitySetting
    random_routing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The figures of one case and one seed; waits in seconds, from arrival to the begin of drawing."""

    seed: int
    requests: int
    loads_per_request: float
    fetches_per_request: float
    mean_wait_s: float
    p95_wait_s: float
    drawing_share: float
    overrun: float
    loads_before_outage: float | None = None
    loads_within_ten_minutes: float | None = None
    loads_in_next_ten_minutes: float | None = None
    loads_after_outage: float | None = None
    drained_after_s: float | None = None
    shortest_drain_s: float | None = None
    waits_back_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityMark:
    """A figure, and the most that it may be."""

    mark: str
    value: float
    at_most: float

    @property
    def holds(self) -> bool:
        """True when the figure is within its bound."""
        return self.value <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityReport:
    """All cases with their figures over the seeds."""

    seeds: tuple[int, ...]
    policy: RoutingPolicy
    cases: tuple[AffinityCase, ...]
    results: tuple[tuple[CaseResult, ...], ...]
    marks: tuple[AffinityMark, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return the report as `giornata simulate affinity --json` prints it."""
        return {
            "scenario": "affinity",
            "seeds": list(self.seeds),
            "policy": asdict(self.policy),
            "cases": [
                {"name": case.name, "about": case.about, "random_routing": case.random_routing}
                | {"setting": asdict(case.setting), **reference(case.setting, self.policy)}
                | {"runs": [asdict(each) for each in results]}
                for case, results in zip(self.cases, self.results, strict=True)
            ],
            "marks": [asdict(each) | {"holds": each.holds} for each in self.marks],
            "ok": all(each.holds for each in self.marks),
        }


def cases(*, nodes: int, measured_s: float) -> tuple[AffinityCase, ...]:
    """Return the cases for a fleet of this size."""
    half = AffinitySetting(nodes=nodes, bases=10 * nodes, measured_s=measured_s)
    full = AffinitySetting(nodes=nodes, bases=10 * nodes, measured_s=measured_s, load=0.8)
    short_lives = AffinitySetting(nodes=nodes, bases=10 * nodes, measured_s=measured_s, node_life_s=1200.0)
    away = AffinitySetting(
        nodes=nodes,
        bases=10 * nodes,
        measured_s=max(measured_s, 3600.0),
        outage_from_s=2400.0,
        outage_s=OUTAGE_S,
    )
    return (
        AffinityCase(name="half", about="half of the fleet's time is drawing", setting=half),
        AffinityCase(name="full", about="0.8 of the fleet's time is drawing", setting=full),
        AffinityCase(name="full-random", about="the same, by random routing", setting=full, random_routing=True),
        AffinityCase(name="short-lives", about="half load, and nodes live 20 minutes", setting=short_lives),
        AffinityCase(name="outage", about="half load, and the server is away for 10 minutes", setting=away),
    )


def play(*, seeds: Sequence[int], nodes: int = 100, measured_s: float = 3600.0) -> AffinityReport:
    """Play every case with every seed."""
    policy, played = RoutingPolicy(), cases(nodes=nodes, measured_s=measured_s)
    results = tuple(tuple(play_case(case, policy, seed=seed) for seed in seeds) for case in played)
    marks = _marks(dict(zip((case.name for case in played), zip(played, results, strict=True), strict=True)), policy)
    return AffinityReport(seeds=tuple(seeds), policy=policy, cases=played, results=results, marks=marks)


def play_case(case: AffinityCase, policy: RoutingPolicy, *, seed: int) -> CaseResult:
    """Play one case with one seed."""
    setting = case.setting
    fleet = RoutedFleet(setting, policy, seed=seed, random_routing=case.random_routing)
    fleet.play()
    counted = [each for each in fleet.served if each.arrived_ms >= setting.warm_up_s * 1000]
    waits_s = [each.waited_s for each in counted]
    around = None if setting.outage_from_s is None else around_outage(fleet.served, setting)
    return CaseResult(
        seed=seed,
        requests=len(counted),
        loads_per_request=loads_per_request(counted),
        fetches_per_request=fleet.fetches / max(1, len(fleet.served)),
        mean_wait_s=fmean(waits_s) if waits_s else 0.0,
        p95_wait_s=_p95(waits_s),
        drawing_share=fleet.drawing_s / max(1.0, fleet.drawing_s + fleet.loading_s),
        overrun=fleet.ended_s / (setting.warm_up_s + setting.measured_s),
        **({} if around is None else asdict(around)),
    )


def loads_per_request(served: Sequence[ServedRequest]) -> float:
    """Return the share of requests for which a base was loaded."""
    return fmean(each.loaded for each in served) if served else 0.0


def reference(setting: AffinitySetting, policy: RoutingPolicy) -> dict[str, float]:
    """Return what random routing would load per request, and the least that is possible with the policy's delay."""
    return {
        "random_loads": random_loads(setting),
        "fewest_loads": fewest_loads(setting, wait_s=policy.delay_s),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundOutage:
    """Loads per request before an outage and after it, and the seconds after it until all was well.

    `loads_after_outage` has both: the requests that began within 20 minutes after the outage.
    `drained_after_s`: until no more requests wait than 95 of 100 arrivals found waiting before the outage; no routing
    could have that before `shortest_drain_s`. `waits_back_after_s`: until the first minute whose arrivals have a
    p95 of their waits within 1.5 of that before begins. What never came counts until the last request began.
    """

    loads_before_outage: float
    loads_within_ten_minutes: float
    loads_in_next_ten_minutes: float
    loads_after_outage: float
    drained_after_s: float
    shortest_drain_s: float
    waits_back_after_s: float


def around_outage(served: Sequence[ServedRequest], setting: AffinitySetting) -> AroundOutage:
    """Return what the requests tell of the outage of this setting."""
    from_s = setting.outage_from_s or 0.0
    back_s = from_s + setting.outage_s
    before = [each for each in served if setting.warm_up_s <= each.arrived_ms / 1000 < from_s]
    found_waiting = _found_waiting(served)
    usual = round(_p95([found for at_s, found in found_waiting if setting.warm_up_s <= at_s < from_s]))
    drained = (at_s - back_s for at_s, found in found_waiting if at_s >= back_s and found <= usual)
    ten_s, twenty_s = back_s + OUTAGE_S, back_s + 2 * OUTAGE_S
    return AroundOutage(
        loads_before_outage=loads_per_request(_begun(served, setting.warm_up_s, from_s)),
        loads_within_ten_minutes=loads_per_request(_begun(served, back_s, ten_s)),
        loads_in_next_ten_minutes=loads_per_request(_begun(served, ten_s, twenty_s)),
        loads_after_outage=loads_per_request(_begun(served, back_s, twenty_s)),
        drained_after_s=next(drained, _end_s(served) - back_s),
        shortest_drain_s=shortest_drain_s(setting, waiting=usual),
        waits_back_after_s=_waits_back_s(served, back_s, _p95([each.waited_s for each in before])),
    )


def _found_waiting(served: Sequence[ServedRequest]) -> list[tuple[float, int]]:
    """Return the seconds of each arrival and the number of requests that it found waiting."""
    arrived = sorted(each.arrived_ms for each in served)
    began = sorted(each.began_ms for each in served)
    return [(at_ms / 1000, number - bisect.bisect_right(began, at_ms)) for number, at_ms in enumerate(arrived)]


def _waits_back_s(served: Sequence[ServedRequest], back_s: float, usual_s: float) -> float:
    minutes = defaultdict[int, list[float]](list)
    for each in served:
        if each.arrived_ms / 1000 >= back_s:
            minutes[int(each.arrived_ms / 1000 - back_s) // 60].append(each.waited_s)
    short = (60.0 * number for number in sorted(minutes) if _p95(minutes[number]) <= MOST_WAIT_AFTER_OUTAGE * usual_s)
    return next(short, _end_s(served) - back_s)


def _end_s(served: Sequence[ServedRequest]) -> float:
    return served[-1].began_ms / 1000


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * len(values))] if values else 0.0


def _begun(served: Sequence[ServedRequest], from_s: float, to_s: float) -> list[ServedRequest]:
    return [each for each in served if from_s <= each.began_ms / 1000 < to_s]


def _marks(
    played: dict[str, tuple[AffinityCase, tuple[CaseResult, ...]]], policy: RoutingPolicy
) -> tuple[AffinityMark, ...]:
    marks = []
    for name in ("half", "short-lives"):
        case, results = played[name]
        loads, against = fmean(each.loads_per_request for each in results), reference(case.setting, policy)
        of_random, of_bound = loads / against["random_loads"], loads / against["fewest_loads"]
        marks.append(AffinityMark(mark=f"{name}: loads of random's", value=of_random, at_most=MOST_OF_RANDOM))
        marks.append(AffinityMark(mark=f"{name}: loads of the bound", value=of_bound, at_most=MOST_OF_BOUND))
    overrun = max(each.overrun for each in played["full"][1])
    marks.append(AffinityMark(mark="full: overrun", value=overrun, at_most=UNSTABLE_FROM))
    random_overrun = min(each.overrun for each in played["full-random"][1])
    # Random routing has to be unstable there, or the case shows nothing.
    marks.append(AffinityMark(mark="full-random: stable", value=float(random_overrun < UNSTABLE_FROM), at_most=0.0))
    return (*marks, *outage_marks(played["outage"][1]))


def outage_marks(outages: Sequence[CaseResult]) -> tuple[AffinityMark, ...]:
    """Return the marks of the outage; each holds for the worst seed.

    The waits have none: a queue of ten minutes outlasts ten minutes with any routing, as `shortest_drain_s` says.
    """

    def of_before(loads: Callable[[CaseResult], float | None]) -> float:
        return max((loads(each) or 0.0) / (each.loads_before_outage or 1.0) for each in outages)

    ten = of_before(lambda each: each.loads_within_ten_minutes)
    twenty = of_before(lambda each: each.loads_after_outage)
    drained = max((each.drained_after_s or 0.0) / (each.shortest_drain_s or 1.0) for each in outages)
    return (
        AffinityMark(
            mark="outage: loads within 10 minutes of those before", value=ten, at_most=MOST_WITHIN_TEN_MINUTES
        ),
        AffinityMark(mark="outage: loads within 20 minutes of those before", value=twenty, at_most=MOST_AFTER_OUTAGE),
        AffinityMark(mark="outage: drain of the shortest", value=drained, at_most=MOST_DRAIN_OF_BOUND),
    )
