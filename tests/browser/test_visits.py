"""What people do in a browser: sign in, watch a job, choose and cancel, with the mouse and without."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.browsing import BrowserWindow
from tests.fixtures.dashboard import PROJECT, STEPS, Furnished, pages_of
from tests.fixtures.people import PASSWORD

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.report import add_log_lines, put_metrics
from giornata.protocol.node.work import CompleteAttempt, Heartbeat, LogLines, MetricBatch, StepMetrics
from giornata.store import schema

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = getattr(sync_api, "expect", None)
IS_HEAD = re.compile(r"/jobs/[^/]+/head$")
HINT_MS = 2_000
"""By then a page has told its parts to load again."""
# What a console says while there is no server.
NO_SERVER = ("ERR_CONNECTION_", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "htmx:")


def test_a_sign_in_leads_back_to_the_page_that_was_wanted(
    installation: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    here = window(installation)
    here.page.goto(here.url + pages_of(installation)["job"])
    here.page.get_by_label("Mail address").fill(installation.viewer.email)
    here.page.get_by_label("Password").fill(PASSWORD)
    here.page.get_by_role("button", name="Sign in").click()
    expect(here.page.get_by_role("heading", name="portrait of a red fox")).to_be_visible()


def test_ages_go_on_while_the_server_sends_nothing_new(
    museum: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    here = window(museum)
    here.page.clock.install()
    here.sign_in(museum.owner)
    here.go(f"/dashboard/projects/{PROJECT}/jobs?state=failed")
    age = here.page.locator("#job-list time").first
    expect(age).to_have_text(re.compile(r"ago|now"))
    with here.page.expect_response(lambda reply: "/jobs/rows" in reply.url) as reply:
        here.page.clock.fast_forward(49 * 3_600_000)
    assert reply.value.status in {200, 304}
    with here.page.expect_response(lambda reply: "/jobs/rows" in reply.url) as reply:
        here.page.clock.fast_forward(11_000)
    assert reply.value.status == 304
    expect(age).to_have_text(re.compile(r"^2 d \d+ h ago$"))


def test_a_job_is_watched_to_its_end_without_a_reload(
    installation: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    here, ctx, attempt_id = window(installation), installation.served.ctx, installation.running.attempt_id
    page = here.page
    here.sign_in(installation.owner)
    with page.expect_response(IS_HEAD):  # what the page loads when its stream opens
        here.go(pages_of(installation)["job-running"])
    expect(page.locator("#liveness")).to_have_text("live")
    expect(page.locator(".wide-progress")).to_contain_text(f"121 / {STEPS}")
    page.evaluate("window.kept = 'this document'")
    heartbeat(ctx, attempt_id, Heartbeat(step=260, total_steps=STEPS, phase="training"))
    points = tuple(StepMetrics(step=step, values={"loss": 0.07}) for step in range(121, 261))
    put_metrics(ctx, attempt_id, MetricBatch(points=points))
    add_log_lines(ctx, attempt_id, LogLines(first=50, lines=("a line that came just now",)))
    expect(page.locator(".wide-progress")).to_contain_text(f"260 / {STEPS}")
    complete(ctx, attempt_id, CompleteAttempt(step=STEPS))
    installation.served.app.state.wakeup.notify()
    expect(page.locator("#job-head .badge").first).to_have_text("succeeded")
    expect(page.locator(".chart-said").first).to_contain_text("at step 260")
    expect(page.locator("[data-log]")).to_contain_text("a line that came just now")
    assert page.evaluate("window.kept") == "this document"


def test_a_hint_that_comes_while_a_part_is_loaded_has_the_part_loaded_once_more(
    installation: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    here, held = window(installation), list[Any]()
    page = here.page
    here.sign_in(installation.owner)
    page.clock.install()
    page.route("**/v1/jobs/*/events", lambda route: route.abort())  # no hints but those of this test
    page.route(IS_HEAD, lambda route: route.continue_() if held else held.append(route))
    here.go(pages_of(installation)["job-running"])
    with page.expect_request(IS_HEAD):
        page.evaluate("dispatchEvent(new Event('online'))")
        page.clock.run_for(HINT_MS)
    while not held:
        page.evaluate("0")  # the request is seen before it is held
    before = held[0].fetch()
    heartbeat(installation.served.ctx, installation.running.attempt_id, Heartbeat(step=260, total_steps=STEPS))
    page.evaluate("dispatchEvent(new Event('online'))")
    page.clock.run_for(HINT_MS)
    held[0].fulfill(response=before)
    expect(page.locator(".wide-progress")).to_contain_text(f"260 / {STEPS}")
    here.complaints.clear()  # of the streams that were cut off


def test_a_page_without_a_connection_says_so_and_goes_on_by_itself(
    installation: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    here, ctx = window(installation), installation.served.ctx
    page = here.page
    here.sign_in(installation.owner)
    here.go(pages_of(installation)["job-running"])
    expect(page.locator("#liveness")).to_have_text("live")
    here.context.set_offline(True)
    expect(page.locator("#liveness")).to_have_text("not live")
    heartbeat(ctx, installation.running.attempt_id, Heartbeat(step=300, total_steps=STEPS, phase="training"))
    expect(page.locator(".wide-progress")).to_contain_text(f"121 / {STEPS}")  # what was true when it was live
    here.context.set_offline(False)
    expect(page.locator("#liveness")).to_have_text("live")
    expect(page.locator(".wide-progress")).to_contain_text(f"300 / {STEPS}")
    here.complaints[:] = [each for each in here.complaints if "ERR_INTERNET_DISCONNECTED" not in each]


def test_pages_of_a_restarted_server_go_on_by_themselves_and_show_no_wrong_number(
    installation: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    job, listed, ctx = window(installation), window(installation), installation.served.ctx
    for here, name in ((job, "job-running"), (listed, "jobs")):
        here.sign_in(installation.owner)
        here.go(pages_of(installation)[name])
        here.page.evaluate("window.kept = 'this document'")
    row = listed.page.get_by_role("row", name="watercolor style")
    expect(job.page.locator("#liveness")).to_have_text("live")
    expect(row).to_contain_text(f"121 / {STEPS}")
    installation.served.stop()
    heartbeat(ctx, installation.running.attempt_id, Heartbeat(step=310, total_steps=STEPS, phase="training"))
    for here in (job, listed):
        expect(here.page.locator("#liveness")).to_have_text("not live")
    expect(job.page.locator(".wide-progress")).to_contain_text(f"121 / {STEPS}")  # what was true when it was live
    expect(row).to_contain_text(f"121 / {STEPS}")
    installation.served.start()
    expect(job.page.locator(".wide-progress")).to_contain_text(f"310 / {STEPS}")
    expect(row).to_contain_text(f"310 / {STEPS}")
    for here in (job, listed):
        expect(here.page.locator("#liveness")).to_have_text("live")
        assert here.page.evaluate("window.kept") == "this document"
        here.complaints[:] = [said for said in here.complaints if not any(each in said for each in NO_SERVER)]


def test_curves_of_a_long_job_reach_its_last_step_and_say_that_they_are_thinned(
    museum: Furnished, window: Callable[..., BrowserWindow]
) -> None:
    job_id, last = museum.hostile_job, 40_000
    rows = [{"step": step, "values": {"loss": 1 / step}} for step in range(1_000, last + 1)]
    with museum.served.ctx.store.begin() as tx:
        common = {"job_id": job_id, "attempt_number": 1, "at_ms": 1}
        tx.connection.execute(schema.metrics.insert(), [row | common for row in rows])  # type: ignore[attr-defined]
    here = window(museum)
    here.sign_in(museum.viewer)
    here.go(pages_of(museum)["job-hostile"])
    said = here.page.locator(".chart-said").first
    expect(said).to_contain_text("loss 0.00002500 at step 40,000; one point for every 50 steps is drawn")
    here.go(f"/dashboard/projects/{PROJECT}/compare?job={museum.done_job}&job={job_id}")
    expect(here.page.locator(".chart-said")).to_contain_text("one point for up to 100 steps")


def test_a_chosen_theme_stays(museum: Furnished, window: Callable[..., BrowserWindow]) -> None:
    here = window(museum)
    here.sign_in(museum.viewer)
    before = here.page.evaluate("getComputedStyle(document.body).backgroundColor")
    here.page.get_by_label("Change between light and dark").click()
    here.page.reload()
    assert here.page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_a_one_time_link_signs_in_once(museum: Furnished, window: Callable[..., BrowserWindow]) -> None:
    first, second = window(museum), window(museum)
    first.follow_link()
    expect(first.page.get_by_role("heading", name="Today")).to_be_visible()
    used = first.page.evaluate("performance.getEntriesByType('navigation')[0].name")
    assert "link=" not in used  # the address that stays in the window holds no secret
    second.page.goto(f"{second.url}/dashboard/enter?link=guessed")
    expect(second.page.get_by_role("alert")).to_contain_text("used, or is too old")
    second.complaints[:] = [said for said in second.complaints if "401" not in said]
