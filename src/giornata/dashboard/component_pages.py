"""The page `/ui` for developers: every component in every state, and the tokens of the style sheet."""

from datetime import UTC, datetime, timedelta

from fastapi import Response
from fastapi.responses import JSONResponse

from giornata.control.jobs.reading.job_life import AuditedStretch, JobLife, SilentTime
from giornata.dashboard.forms import number_in
from giornata.dashboard.job_pages.timeline import TimelineSpan, draw_timeline
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, page
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.audits import AuditState
from giornata.domain.jobs.job import JobState

MOST_STEPS = 200
BEGAN = datetime(2026, 1, 5, 8, tzinfo=UTC)
COLORS = ("plaster", "raised", "wet", "line", "ink", "soft", "on-pigment", "focus")
PIGMENTS = ("terra", "ochre", "verdigris", "lapis", "sinopia", "violet", "umber")
OTHERS = ("shadow", "radius", "gap", "serif", "sans", "mono")
TOKENS = (*COLORS, *PIGMENTS, *OTHERS)
EXAMPLES = (Fault(where="rank", message="is 0", hint="at least 1"), Fault(where="IMG_1.jpg", message="is cut off"))


def show(visit: Visit) -> Response:
    """Show each component in each of its states."""
    hour = timedelta(hours=1)
    spans = [
        TimelineSpan(number=1, machine="machine-a", began_at=BEGAN, ended_at=BEGAN + 2 * hour, ending="preempted"),
        TimelineSpan(
            number=2, machine="machine-b", began_at=BEGAN + 2.2 * hour, ended_at=BEGAN + 4 * hour, ending=""
        ),
        TimelineSpan(number=3, machine="machine-a", began_at=BEGAN + 4.1 * hour, ended_at=None, ending=""),
    ]
    life = JobLife(
        checkpoints=[(1000, BEGAN + hour), (2000, BEGAN + 3 * hour)],
        validations=[("samples-00001000.png", BEGAN + 1.2 * hour)],
        silent=[SilentTime(attempt=2, since=BEGAN + 2.8 * hour, until=BEGAN + 3.2 * hour)],
        audits=[AuditedStretch(from_step=1000, to_step=2000, state=AuditState.CONFIRMED, at=BEGAN + 5 * hour)],
    )
    timeline = draw_timeline(spans, life, began_at=BEGAN, until=BEGAN + 6 * hour)
    return render(
        visit, "components_page.html", timeline=timeline, states=list(JobState), tokens=TOKENS, examples=EXAMPLES
    )


def show_metrics(visit: Visit) -> Response:
    """Send values for the chart of this page, in the form of a job's metrics."""
    after = number_in(visit.query("after_step") or "-1")
    if after is None:
        raise InvalidInput([Fault(where="after_step", message="is no whole number", hint="such as 100")])
    points = [
        {"step": step, "values": {"loss": 0.05 + 0.1 / (1 + step / 20)}}
        for step in range(max(0, after + 1), MOST_STEPS)
    ]
    return JSONResponse({"items": points, "next": None})


ROUTES = (page("/ui", show), page("/ui/metrics", show_metrics))
