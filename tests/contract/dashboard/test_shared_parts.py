"""Parts of pages that everybody with equal rights shares: one reading for all, and nothing of a person in it."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.fixtures.dashboard import PROJECT, Furnished, pages_of
from tests.fixtures.people import ROOT, Browser, browser_of, new_person
from tests.fixtures.rows_read import sent_statements

from giornata.control.projects.set_quotas import set_quotas
from giornata.dashboard.shared_parts import KEPT_MS, LIST_KEPT_MS, PartKey, SharedParts, tag_of
from giornata.protocol.account.people import Role
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.quotas import SetQuotas

ROWS, ACTIVE, NODES = (f"/dashboard/projects/{PROJECT}/{part}" for part in ("jobs/rows", "active", "fleet/nodes"))
OPEN_PAGES = 20
MOVING = re.compile(r"(expires|signature|sig)=\w+|<time.*?</time>|\d+( (d|h|min|s)\b)?")
"""Signatures, times and numbers, which may differ between two readings."""
SHARED = (
    *("home-active", "home-ended", "job-rows", "fleet-nodes", "job-pictures", "job-timeline", "job-newest"),
    *("job-files", "job-audits", "operator-installation", "operator-queue", "operator-day", "operator-fleet-nodes"),
    *("operator-loops", "operator-pretraining", "operator-pretrain-pictures"),
)
"""Parts that are made once, by their names in `pages_of`."""


class StillClock:
    """A clock that a test moves."""

    def __init__(self, at_ms: int = 1) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms


@pytest.fixture
def clock(installation: Furnished) -> Iterator[StillClock]:
    """Of the parts alone: they grow old when the test says so."""
    state, still = installation.served.app.state, StillClock()
    known, state.shared_parts = state.shared_parts, SharedParts(still)
    yield still
    state.shared_parts = known


def key(address: str = "/x", project_id: str = PROJECT) -> PartKey:
    return PartKey(project_id, address, frozenset({Scope.JOBS_READ}), False)


def readings(browsers: list[Browser], path: str) -> int:
    """How often the store is asked for jobs or nodes when each of these loads the part."""
    with sent_statements() as sent:
        assert {each.call("GET", path).status_code for each in browsers} == {200}
    return sum(re.search(r"FROM (jobs|nodes)\b", text) is not None for text, _ in sent.statements)


@pytest.mark.parametrize("path", [ROWS, ACTIVE, NODES])
def test_open_pages_of_a_project_cost_one_reading(installation: Furnished, clock: StillClock, path: str) -> None:
    people = [new_person(installation.served.ctx, f"p{path[-3:]}{n}", {PROJECT: Role.MEMBER}) for n in range(2)]
    browsers = [browser_of(installation.served, each) for each in people]
    alone = readings(browsers[:1], path)
    assert alone > 0
    clock.at_ms += LIST_KEPT_MS - 1
    assert readings(browsers * OPEN_PAGES, path) == 0
    clock.at_ms += 1
    assert readings(browsers * OPEN_PAGES, path) == alone


def test_part_holds_nothing_of_a_person(installation: Furnished) -> None:
    people = [new_person(installation.served.ctx, f"o{n}", operator=True) for n in range(2)]
    browsers = [browser_of(installation.served, each) for each in people]
    state, pages = installation.served.app.state, pages_of(installation)
    for name in SHARED:
        bodies = []
        for browser in browsers:
            state.shared_parts = SharedParts(StillClock())
            reply = browser.call("GET", pages[name])
            assert reply.headers["etag"], name
            bodies.append(MOVING.sub("", reply.text))
            shown = [browser.csrf_token, browser.user.email, 'name="csrf"']
            assert [each for each in shown if each in reply.text] == [], name
        assert bodies[0] == bodies[1], name


def test_rights_are_checked_though_the_part_is_there(installation: Furnished, clock: StillClock) -> None:
    member, viewer = (browser_of(installation.served, each) for each in (installation.member, installation.viewer))
    stranger = browser_of(installation.served, installation.stranger)
    assert 'type="checkbox"' in member.call("GET", ROWS).text
    shown = viewer.call("GET", ROWS)
    assert (shown.status_code, 'type="checkbox"' in shown.text) == (200, False)
    assert stranger.call("GET", ROWS).status_code == 404
    leaving = browser_of(installation.served, installation.member)
    assert leaving.call("GET", ROWS).status_code == 200
    assert leaving.call("DELETE", "/v1/session").status_code == 204
    assert leaving.call("GET", ROWS).status_code != 200
    assert clock.at_ms == 1


def test_person_who_changes_something_sees_the_change_at_once(installation: Furnished, clock: StillClock) -> None:
    member = browser_of(installation.served, installation.member)
    named = member.call("GET", ROWS, params={"match": installation.waiting_job})
    assert "queued" in named.text
    done = member.call(
        "POST",
        f"/dashboard/projects/{PROJECT}/jobs/{installation.waiting_job}/cancel",
        data={"csrf": member.csrf_token},
    )
    assert done.status_code == 303
    assert "canceled" in member.call("GET", ROWS, params={"match": installation.waiting_job}).text
    assert clock.at_ms == 1


def test_part_that_is_the_same_is_not_sent_again(installation: Furnished, clock: StillClock) -> None:
    member = browser_of(installation.served, installation.member)

    def ask(tag: str) -> httpx.Response:
        return member.call("GET", f"{ROWS}?state=failed", headers={"If-None-Match": tag})

    first = ask('"another"')
    clock.at_ms += LIST_KEPT_MS
    second = ask(first.headers["etag"])
    assert (first.status_code, second.status_code, second.content) == (200, 304, b"")
    assert second.headers["cache-control"] == "no-store"
    assert member.call("GET", f"{ROWS}?state=queued").headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize("path", [ROWS, ACTIVE, f"/dashboard/projects/{PROJECT}/ended"])
def test_list_that_differs_in_ages_alone_is_not_sent_again(
    installation: Furnished, clock: StillClock, path: str
) -> None:
    reply = browser_of(installation.served, installation.member).call("GET", path)
    ages = re.compile(rb"(<time [^>]*>)[^<]+(</time>)")
    older, instant = ages.sub(rb"\g<1>999 d 1 h ago\2", reply.content), ages.search(reply.content)
    assert older != reply.content
    assert tag_of(older) == reply.headers["etag"]
    assert instant is not None
    another = reply.content.replace(instant[1], b'<time datetime="2026-01-01T00:00:00+00:00">', 1)
    assert tag_of(another) != reply.headers["etag"]
    assert tag_of(reply.content.replace(b"succeeded", b"failed").replace(b"running", b"paused")) != tag_of(older)
    assert clock.at_ms == 1


def test_part_that_is_there_counts_against_the_rate(installation: Furnished, clock: StillClock) -> None:
    owner, ctx = browser_of(installation.served, installation.owner), installation.served.ctx
    assert owner.call("GET", ACTIVE).status_code == 200
    set_quotas(ctx, ROOT, PROJECT, SetQuotas(max_requests_per_s=5))
    try:
        for _ in range(5):
            ctx.request_rates.take({("project", PROJECT): 5}, at_ms=ctx.clock.now_ms() + 60_000)
        assert owner.call("GET", ACTIVE).status_code == 429
    finally:
        set_quotas(ctx, ROOT, PROJECT, SetQuotas())
    assert clock.at_ms == 1


def test_one_thread_makes_a_part_while_the_others_wait() -> None:
    parts, made, released = SharedParts(StillClock()), list[int](), threading.Event()

    def make() -> bytes:
        released.wait(60)
        made.append(1)
        return b"a part"

    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(parts.read, key(), make) for _ in range(8)]
        released.set()
        assert {each.result().body for each in waiting} == {b"a part"}
    assert made == [1]
    assert not parts._makers and not parts._waiting


def test_part_that_was_made_during_a_change_is_not_kept() -> None:
    parts = SharedParts(StillClock())

    def make() -> bytes:
        parts.forget("another")
        return b"of before"

    assert parts.read(key(), make).body == b"of before"
    assert parts.fresh(key()) is None


def test_part_is_forgotten_with_its_project_alone_and_after_its_time() -> None:
    clock = StillClock()
    parts = SharedParts(clock)
    for project_id in ("a", "b"):
        parts.read(key(project_id=project_id), lambda: b"a part")
    parts.forget("a")
    assert parts.fresh(key(project_id="a")) is None
    assert parts.fresh(key(project_id="b")) is not None
    clock.at_ms += KEPT_MS
    assert parts.fresh(key(project_id="b")) is None
    clock.at_ms = 0
    assert parts.fresh(key(project_id="b")) is None, "the clock was set back"
