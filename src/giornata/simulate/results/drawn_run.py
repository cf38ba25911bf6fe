"""The curves of a run that its pictures show, and marks for the events of the run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import sqlalchemy as sa

from giornata.simulate.run import SimulationResult
from giornata.store.schema import machines

T = TypeVar("T")
MOST_POINTS = 600
MarkKind = Literal["price", "quarantine", "replaced", "trouble"]
TROUBLES = {
    "server-away": "the server is away",
    "provider-away": "the provider is away",
    "region-lost": "a region is lost",
    "evening": "owners come home",
    "sold-out": "no machine is to be had",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """Something that happened at one moment of a run."""

    hour: float
    kind: MarkKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRun:
    """The curves of one run under one policy.

    `hours`, `queued` and `running` have one value for each look at the whole: jobs that wait, nodes that run.
    `job_minutes` are the jobs' times from first start to end, in order.
    """

    name: str
    hours: Sequence[float]
    queued: Sequence[int]
    running: Sequence[int]
    job_minutes: Sequence[float]
    marks: Sequence[RunMark]

    def as_json(self) -> dict[str, Any]:
        """Return the object that the page's script reads."""
        return asdict(self)


def drawn(ran: SimulationResult, *, name: str) -> DrawnRun:
    """Return what is drawn of a run that has ended, with at most MOST_POINTS values of each curve.

    The installation of the run has to be open still.
    """
    samples = thinned(ran.world.trace.samples)
    minutes = sorted(m for story in ran.world.trace.jobs.values() if (m := story.minutes) is not None)
    return DrawnRun(
        name=name,
        hours=[round(each.at_s / 3600, 4) for each in samples],
        queued=[each.queued for each in samples],
        running=[each.running for each in samples],
        job_minutes=[round(each, 2) for each in thinned(minutes)],
        marks=sorted([*_planned(ran), *_found(ran)], key=lambda mark: (mark.hour, mark.text)),
    )


def thinned(values: Sequence[T]) -> Sequence[T]:
    """Return at most MOST_POINTS of the values, evenly, with the first and the last of them."""
    if len(values) <= MOST_POINTS:
        return values
    apart = (len(values) - 1) / (MOST_POINTS - 1)
    return [values[round(number * apart)] for number in range(MOST_POINTS)]


def _planned(ran: SimulationResult) -> list[RunMark]:
    """Return the changes of prices and the troubles that the scenario has."""
    found = []
    for offer in ran.scenario.offers:
        if offer.spike is not None:
            from_s, to_s, times = offer.spike
            found.append(RunMark(hour=from_s / 3600, kind="price", text=f"{offer.name}: {times:g} times the price"))
            found.append(RunMark(hour=to_s / 3600, kind="price", text=f"{offer.name}: the old price again"))
    for trouble in ran.scenario.troubles:
        text = TROUBLES[trouble.kind]
        found.append(RunMark(hour=trouble.at_s / 3600, kind="trouble", text=text))
        if trouble.for_s:
            end_s = trouble.at_s + trouble.for_s
            found.append(RunMark(hour=round(end_s / 3600, 4), kind="trouble", text=f"{text}: over"))
    return found


def _found(ran: SimulationResult) -> list[RunMark]:
    """Return the machines that were replaced, and those that are quarantined at the end."""
    start_ms = ran.world.agenda.start_ms
    found = [
        RunMark(hour=_hour(at_ms, start_ms), kind="replaced", text=f"{machine} was replaced")
        for fleet in ran.world.manual
        for machine, at_ms in fleet.replaced_at_ms
    ]
    if ran.installation is not None:
        query = sa.select(machines.c.machine_id, machines.c.since_ms, machines.c.reason)
        for machine, at_ms, reason in ran.installation.rows(query.where(machines.c.state == "quarantined")):
            text = f"{machine} is quarantined" + (f": {reason}" if reason else "")
            found.append(RunMark(hour=_hour(at_ms, start_ms), kind="quarantine", text=text))
    return found


def _hour(at_ms: int, start_ms: int) -> float:
    return round((at_ms - start_ms) / 3_600_000, 4)
