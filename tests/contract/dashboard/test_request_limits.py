"""Pages count against the requests a second of a project and of a session, as routes do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.dashboard import PROJECT, Furnished, furnished
from tests.fixtures.people import ROOT, browser_of

from giornata.control.projects.set_quotas import set_quotas
from giornata.protocol.project.quotas import SetQuotas

JOBS = f"/dashboard/projects/{PROJECT}/jobs"
SHARED_PER_S, OWN_PER_S = 50, 40
AHEAD_MS = 60_000


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Furnished]:
    with furnished(tmp_path) as made:
        limits = SetQuotas(max_requests_per_s=SHARED_PER_S, max_requests_per_s_per_key=OWN_PER_S)
        set_quotas(made.served.ctx, ROOT, PROJECT, limits)
        yield made


def spend_all(home: Furnished) -> None:
    """The project has sent what it may send for the next minute."""
    ctx = home.served.ctx
    at_ms = ctx.clock.now_ms() + AHEAD_MS
    for _ in range(SHARED_PER_S):
        ctx.request_rates.take({("project", PROJECT): SHARED_PER_S}, at_ms=at_ms)


def test_page_takes_a_request_of_its_session_and_a_static_file_takes_none(home: Furnished) -> None:
    owner = browser_of(home.served, home.owner)
    shown = owner.call("GET", JOBS)
    assert shown.status_code == 200
    assert (shown.headers["ratelimit-limit"], shown.headers["ratelimit-remaining"]) == ("40", "39")
    assert "ratelimit-limit" not in owner.call("GET", "/dashboard/static/dashboard.css").headers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", JOBS),
        ("POST", f"{JOBS}/job_none/cancel"),
        ("PUT", f"/dashboard/projects/{PROJECT}/uploads/upl_none"),
        ("GET", "/v1/jobs"),
    ],
)
def test_pages_beyond_the_rate_are_told_when_to_come_back(home: Furnished, method: str, path: str) -> None:
    owner = browser_of(home.served, home.owner, PROJECT)
    spend_all(home)
    reply = owner.call(method, path)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert "more than 50 requests a second came; wait 1 s" in reply.text
    assert owner.call("GET", "/dashboard/static/dashboard.css").status_code == 200
