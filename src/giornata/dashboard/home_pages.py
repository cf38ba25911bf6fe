"""The first page: for a tenant the jobs that run and those that ended, for the operator the installation besides.

Bars show the use of billed time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from urllib.parse import quote

from fastapi import Response

from giornata.control.fleets.operator_actions import list_machines
from giornata.control.fleets.read_fleets import fleets_in_words
from giornata.control.jobs.reading.read_jobs import list_jobs
from giornata.control.jobs.reading.read_queue import read_oldest_waiting
from giornata.control.monitoring import read_budgets, read_installation, read_last_day
from giornata.control.ports.user_queries.money_store import FleetTime
from giornata.dashboard.fleet_pages import loops_of
from giornata.dashboard.rendering import render
from giornata.dashboard.shared_parts import LIST_KEPT_MS
from giornata.dashboard.visit import Visit, page, part, project_url, see
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import MachineState
from giornata.protocol.jobs import JobPage
from giornata.protocol.project.admin import Scope

BAR_WIDTH = 1000.0
"""Of the bar of a fleet's billed time, in the units of the drawing."""
USES = ("useful", "startup", "idle", "lost", "at_risk")
WORDS = {"useful": "useful", "startup": "start-up", "idle": "idle", "lost": "lost", "at_risk": "not safe yet"}
ACTIVE = (JobState.RUNNING, JobState.QUEUED, JobState.PAUSED)
ENDED = tuple(state for state in JobState if state not in ACTIVE)
SHOWN = 8
SHEETS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart:
    """One use of the time: its place in the bar, its seconds, and its share in percent."""

    use: str
    words: str
    x: float
    width: float
    seconds: float
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBar:
    """The billed time of a fleet, or of all of them, and what it cost."""

    name: str
    parts: Sequence[TimePart]
    seconds: float
    billed_micro_usd: int


def time_bars(fleets: Sequence[FleetTime]) -> list[TimeBar]:
    """Return a bar of all fleets, and one of each where there are several; none where nothing was billed."""
    billed = [each for each in fleets if each.billed_ms]
    if not billed:
        return []
    bars = [_bar(each.fleet, [each]) for each in sorted(billed, key=lambda each: (-each.billed_ms, each.fleet))]
    return bars if len(bars) == 1 else [_bar("All fleets", billed), *bars]


def _bar(name: str, fleets: Sequence[FleetTime]) -> TimeBar:
    whole_ms = sum(each.billed_ms for each in fleets)
    used_ms = [sum(getattr(each, f"{use}_ms") for each in fleets) for use in USES]
    begins = accumulate(used_ms, initial=0)
    parts = [
        TimePart(
            use=use,
            words=WORDS[use],
            x=round(BAR_WIDTH * begin / whole_ms, 1),
            width=round(BAR_WIDTH * used / whole_ms, 1),
            seconds=used / 1000,
            percent=100 * used / whole_ms,
        )
        for use, used, begin in zip(USES, used_ms, begins, strict=False)
    ]
    cost = sum(each.billed_micro_usd for each in fleets)
    return TimeBar(name=name, parts=parts, seconds=whole_ms / 1000, billed_micro_usd=cost)


def enter(visit: Visit) -> Response:
    """Lead to the person's first project. A person without one is told what to do."""
    if visit.project_id:
        return see(visit.url())
    return render(visit, "no_project.html")


def open_project(visit: Visit) -> Response:
    """Lead an operator to the project that was typed."""
    return see(project_url(quote(visit.query("project") or visit.project_id, safe="")))


def show(visit: Visit) -> Response:
    """Show the jobs of the project."""
    if not visit.may(Scope.JOBS_READ):
        return render(visit, "no_project.html")
    active = _jobs(visit, ACTIVE)
    drawing = [job for job in active.items if job.kind == "train" and job.state is JobState.RUNNING][:SHEETS]
    return render(visit, "home.html", active=active, drawing=drawing)


def show_active(visit: Visit) -> Response:
    """Show the jobs that run and wait, which the first page loads again and again."""
    return render(visit, "home_active.html", active=_jobs(visit, ACTIVE))


def show_ended(visit: Visit) -> Response:
    """Show the jobs that ended lately, which the first page loads by itself."""
    return render(visit, "home_ended.html", ended=_jobs(visit, ENDED))


def show_installation(visit: Visit) -> Response:
    """Show the operator's part, which the first page loads by itself."""
    gauges = read_installation(visit.ctx, visit.caller)
    quarantined = list_machines(visit.ctx, visit.caller, state=MachineState.QUARANTINED, cursor=None, limit=SHOWN)
    counts: Counter[str] = Counter()
    for (_, state), count in gauges.jobs.items():
        counts[state] += count
    return render(
        visit,
        "installation.html",
        gauges=gauges,
        counts=counts,
        quarantined=quarantined.items,
        budgets=read_budgets(visit.ctx, visit.caller),
        shown=SHOWN,
        time_bars=time_bars(gauges.fleet_time),
    )


def show_queue(visit: Visit) -> Response:
    """Show the operator why the queue waits, and what the fleets have, which the first page loads by itself."""
    gauges = read_installation(visit.ctx, visit.caller)
    oldest = read_oldest_waiting(visit.ctx, visit.caller, gauges)
    return render(
        visit,
        "installation_queue.html",
        oldest=oldest,
        oldest_url=project_url(oldest.project_id, f"/jobs/{oldest.job_id}") if oldest else "",
        fleets=fleets_in_words(visit.ctx, visit.caller, gauges),
        shown=SHOWN,
    )


def show_day(visit: Visit) -> Response:
    """Show the operator how attempts of the last day ended, and what each loop of this server did last."""
    ended = read_last_day(visit.ctx, visit.caller)
    bad = {reason: count for reason, count in ended.by_reason.items() if reason != Reason.SUCCEEDED}
    return render(
        visit,
        "installation_day.html",
        ended=ended,
        bad=sorted(bad.items(), key=lambda each: (-each[1], each[0])),
        succeeded=ended.by_reason.get(Reason.SUCCEEDED, 0),
        **loops_of(visit),
    )


def _jobs(visit: Visit, states: tuple[JobState, ...]) -> JobPage:
    return list_jobs(visit.ctx, visit.caller, states=states, labels={}, kind=None, cursor=None, limit=SHOWN)


ROUTES = (
    page("/", enter),
    page("/open", open_project),
    page("/projects/{project_id}", show),
    part("/projects/{project_id}/active", show_active, kept_ms=LIST_KEPT_MS),
    part("/projects/{project_id}/ended", show_ended, kept_ms=LIST_KEPT_MS),
    part("/projects/{project_id}/installation", show_installation),
    part("/projects/{project_id}/installation/queue", show_queue),
    part("/projects/{project_id}/installation/day", show_day),
)
