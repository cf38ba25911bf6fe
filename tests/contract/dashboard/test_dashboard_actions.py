"""What forms do: with the token and the right role, and never without."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route
from tests.fixtures.dashboard import OTHER, PROJECT, Furnished, furnished
from tests.fixtures.notifier import KeptRuns
from tests.fixtures.people import Browser, browser_of

from giornata.client.archives.provenance import verified_provenance
from giornata.control.caller import Caller
from giornata.control.end_of_life.pins import set_pin
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.dashboard import app as dashboard_app
from giornata.domain.jobs.job import JobState
from giornata.protocol.project.admin import Scope

HERE = f"/dashboard/projects/{PROJECT}"
OWNER = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_owner")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Furnished]:
    with furnished(tmp_path) as made:
        yield made


def state(installation: Furnished, job_id: str) -> JobState:
    return get_job(installation.served.ctx, OWNER, job_id).state


def post(browser: Browser, path: str, fields: dict[str, str | list[str]] | None = None) -> httpx.Response:
    """A form as the page holds it: the token is a field, and no header."""
    data = {"csrf": browser.csrf_token} | (fields or {})
    return browser.call("POST", path, data=data, headers={"X-CSRF-Token": ""})


def job_ids(installation: Furnished) -> list[str]:
    """The ids of the project's jobs."""
    page = list_jobs(installation.served.ctx, OWNER, states=(), labels={}, kind=None, cursor=None, limit=50)
    return [job.id for job in page.items]


def actions(installation: Furnished) -> list[str]:
    """The address of every action of a project."""
    known = {"project_id": PROJECT, "job_id": installation.running_job, "webhook_id": installation.webhook_id}
    routes = [each for each in dashboard_app.PAGES if isinstance(each, Route) and "POST" in (each.methods or ())]
    paths = [each.path for each in routes if "{project_id}" in each.path]
    return ["/dashboard" + re.sub(r"\{(\w+)\}", lambda name: known.get(name[1], "something"), path) for path in paths]


def test_no_action_is_done_without_the_token_or_by_a_stranger_or_a_viewer(home: Furnished) -> None:
    owner, viewer = browser_of(home.served, home.owner), browser_of(home.served, home.viewer)
    stranger = browser_of(home.served, home.stranger)
    jobs = [home.running_job, home.waiting_job, home.failed_job]
    before, jobs_before = [state(home, each) for each in jobs], job_ids(home)
    assert len(actions(home)) > 20
    for path in actions(home):
        unsigned = owner.call("POST", path, data={"job": jobs}, headers={"X-CSRF-Token": "wrong"})
        assert unsigned.status_code == 404, path
        assert post(stranger, path, {"job": jobs}).status_code == 404, path
        refused = post(viewer, path, {"job": jobs, "role": "owner", "scope": "admin", "steps": "5", "budget": "5"})
        assert refused.status_code in {400, 404}, (path, refused.status_code)
    assert [state(home, each) for each in jobs] == before
    assert job_ids(home) == jobs_before


def test_a_member_cancels_a_job_and_is_told_when_that_is_too_late(home: Furnished) -> None:
    member = browser_of(home.served, home.member)
    response = post(member, f"{HERE}/jobs/{home.waiting_job}/cancel")
    assert response.headers["location"] == f"{HERE}/jobs/{home.waiting_job}?said=canceled"
    assert state(home, home.waiting_job) is JobState.CANCELED
    late = post(member, f"{HERE}/jobs/{home.done_job}/cancel")
    assert late.status_code == 409
    assert 'role="alert"' in late.text


def test_a_retry_leads_to_the_new_job(home: Furnished) -> None:
    response = post(browser_of(home.served, home.member), f"{HERE}/jobs/{home.failed_job}/retry")
    new_id = re.search(r"/jobs/(\w+)\?said=retried", response.headers["location"])
    assert new_id is not None
    assert get_job(home.served.ctx, OWNER, new_id[1]).retry_of == home.failed_job


def test_of_several_chosen_jobs_those_that_can_are_canceled_and_the_rest_is_said(home: Furnished) -> None:
    member = browser_of(home.served, home.member)
    chosen = [home.waiting_job, home.done_job, home.stranger_job]
    response = post(member, f"{HERE}/jobs/cancel", {"job": chosen})
    assert response.headers["location"] == f"{HERE}/jobs?said=some-refused"
    assert state(home, home.waiting_job) is JobState.CANCELED
    stranger = Caller(project_id=OTHER, scopes=Scope.ADMIN.reach, key_id="key_other")
    assert get_job(home.served.ctx, stranger, home.stranger_job).state is JobState.RUNNING
    assert post(member, f"{HERE}/jobs/cancel").headers["location"] == f"{HERE}/jobs?said=none-chosen"


def is_there(installation: Furnished, job_id: str) -> bool:
    listed = list_jobs(installation.served.ctx, OWNER, states=(), labels={}, kind=None, cursor=None, limit=50)
    return job_id in {each.id for each in listed.items}


def test_a_job_that_has_ended_is_deleted_and_one_that_is_pinned_or_runs_stays(home: Furnished) -> None:
    member, path = browser_of(home.served, home.member), f"{HERE}/jobs"
    assert post(member, f"{path}/{home.failed_job}/delete").headers["location"] == f"{path}?said=deleted"
    assert not is_there(home, home.failed_job)
    assert member.call("GET", f"{path}/{home.failed_job}").status_code == 404
    running = post(member, f"{path}/{home.running_job}/delete")
    assert (running.status_code, 'role="alert"' in running.text) == (409, True)
    set_pin(home.served.ctx, OWNER, home.done_job, pinned=True)
    pinned = post(member, f"{path}/{home.done_job}/delete")
    assert (pinned.status_code, "is pinned" in pinned.text) == (409, True)
    chosen = [home.done_job, home.running_job, home.hostile_job, home.stranger_job]
    assert post(member, f"{path}/delete", {"job": chosen}).headers["location"] == f"{path}?said=some-refused"
    assert [is_there(home, each) for each in chosen[:3]] == [True, True, False]
    assert (
        f"{home.done_job}/delete"
        not in browser_of(home.served, home.viewer).call("GET", f"{path}/{home.done_job}").text
    )


def test_the_signed_record_is_sent_as_a_file_that_verifies(home: Furnished, tmp_path: Path) -> None:
    viewer, path = browser_of(home.served, home.viewer), f"{HERE}/jobs/{home.done_job}/provenance"
    sent = viewer.call("GET", path)
    assert sent.headers["content-disposition"] == f'attachment; filename="provenance-{home.done_job}.json"'
    record = tmp_path / "record.json"
    record.write_bytes(sent.content)
    assert verified_provenance(record, public_key=sent.json()["public_key"], files=()).job_id == home.done_job
    assert browser_of(home.served, home.stranger).call("GET", path).status_code == 404


def test_a_job_in_doubt_says_so_and_offers_a_retry(home: Furnished) -> None:
    owner, path = browser_of(home.served, home.owner), f"{HERE}/jobs/{home.done_job}"
    assert "In doubt:" not in owner.call("GET", path).text
    assert "in doubt" not in owner.call("GET", f"{HERE}/jobs").text
    with home.served.ctx.store.begin() as tx:
        tx.jobs.update(home.done_job, suspect=True)
    text = owner.call("GET", path).text
    assert "In doubt:" in text
    assert "in doubt" in owner.call("GET", f"{HERE}/jobs").text
    assert f"{home.done_job}/retry" in text


def test_a_budget_is_set_or_said_to_be_wrong_beside_its_field(home: Furnished) -> None:
    member, path = browser_of(home.served, home.member), f"{HERE}/jobs/{home.running_job}/budget"
    for wrong in ("much", "-1", "0", "1e400", "NaN"):
        refused = post(member, path, {"budget": wrong})
        assert refused.status_code == 400, wrong
        assert 'id="budget-fault"' in refused.text
        assert f'value="{wrong}"' in refused.text
    assert post(member, path, {"budget": "3.50"}).status_code == 303
    assert get_job(home.served.ctx, OWNER, home.running_job).budget_micro_usd == 3_500_000


def test_a_key_is_shown_once_and_never_reaches_further_than_its_maker(home: Furnished) -> None:
    member = browser_of(home.served, home.member)
    made = post(member, f"{HERE}/settings/keys", {"name": "laptop", "scope": "jobs:read", "days": "30"})
    secret = re.search(r"gk_[0-9a-f]{8}_\w+", made.text)
    assert secret is not None
    assert home.served.call("GET", "/v1/jobs", secret[0]).status_code == 200
    assert secret[0] not in member.call("GET", f"{HERE}/settings/keys").text
    assert post(member, f"{HERE}/settings/keys", {"name": "more", "scope": "admin"}).status_code == 404
    wrong = post(member, f"{HERE}/settings/keys", {"name": "x" * 200, "scope": "jobs:read", "days": "many"})
    assert wrong.status_code == 400


ABSURD = ("9" * 5000, "1e999999999", "٣", "4.5", "-7", "999999999999")


def test_an_absurd_number_is_a_fault_beside_its_field_and_stays_there(home: Furnished) -> None:
    operator, default = browser_of(home.served, home.operator), "/dashboard/projects/default"
    places = {
        f"{HERE}/jobs/{home.done_job}/continue": "steps",
        f"{HERE}/settings/keys": "days",
        f"{default}/fleet/named/spot/scale": "min_nodes",
    }
    for (path, field), typed in product(places.items(), ABSURD):
        refused = post(operator, path, {"name": "key", "scope": "jobs:read"} | {field: typed})
        assert refused.status_code == 400, (path, typed[:20])
        assert re.search(rf'id="[\w-]*{field}-fault"', refused.text), (path, typed[:20])
        assert f'value="{typed}"' in refused.text, (path, typed[:20])
        assert 'class="toast bad"' not in refused.text, (path, typed[:20])


def test_an_absurd_amount_of_dollars_is_a_fault_beside_its_field(home: Furnished) -> None:
    operator = browser_of(home.served, home.operator)
    places = {
        f"{HERE}/jobs/{home.running_job}/budget": "budget",
        f"{HERE}/settings/budgets": "monthly_budget",
        f"{HERE}/train": "budget",
    }
    for (path, field), typed in product(places.items(), ("9" * 5000, "1e999999999", "Infinity", "1e10")):
        refused = post(operator, path, {field: typed})
        assert (refused.status_code, f'id="{field}-fault"' in refused.text) == (400, True), (path, typed[:20])
        assert f'value="{typed}"' in refused.text, (path, typed[:20])


def test_a_continuation_has_the_fault_of_its_steps_beside_the_field_and_others_above(home: Furnished) -> None:
    member, path = browser_of(home.served, home.member), f"{HERE}/jobs/{home.done_job}/continue"
    beside = post(member, path, {"steps": "999999999"}).text
    assert re.search(r'id="steps-fault">[^<]*1,?000,?000', beside)
    assert 'class="toast bad"' not in beside
    above = post(member, f"{HERE}/jobs/{home.running_job}/continue", {"steps": "10"})
    assert (above.status_code, 'class="toast bad"' in above.text) == (409, True)


def test_a_picture_with_an_absurd_number_is_no_choice(home: Furnished) -> None:
    member = browser_of(home.served, home.member)
    for number in ("9" * 5000, "x", "-"):
        reply = post(member, f"{HERE}/gallery/star", {"picture": f"{home.grid_job} {number}"})
        assert reply.headers["location"].endswith("said=no-picture-chosen#gallery")


def test_the_chart_of_the_components_refuses_a_step_that_is_no_number(home: Furnished) -> None:
    viewer = browser_of(home.served, home.viewer)
    for after in ("x", "9" * 5000, "1.5"):
        assert viewer.call("GET", f"/dashboard/ui/metrics?after_step={after}").status_code == 400
    points = viewer.call("GET", "/dashboard/ui/metrics?after_step=197").json()["items"]
    assert [each["step"] for each in points] == [198, 199]


def test_the_last_owner_stays(home: Furnished) -> None:
    owner = browser_of(home.served, home.owner)
    response = post(owner, f"{HERE}/settings/members/{home.owner.id}", {"role": "viewer"})
    assert response.status_code == 409
    assert 'role="alert"' in response.text


def test_only_the_operator_sets_budgets_of_a_project_and_governs_machines(home: Furnished) -> None:
    owner, operator = browser_of(home.served, home.owner), browser_of(home.served, home.operator)
    assert post(owner, f"{HERE}/settings/budgets", {"budget": "99"}).status_code == 404
    assert post(operator, f"{HERE}/settings/budgets", {"budget": "99"}).status_code == 303
    assert 'value="99.00"' in operator.call("GET", f"{HERE}/settings/money").text
    default = "/dashboard/projects/default"
    assert post(owner, f"{default}/fleet/machines/machine-2/quarantine").status_code == 404
    response = post(operator, f"{default}/fleet/machines/machine-2/quarantine", {"reason": "<b>loud</b>"})
    assert response.status_code == 303
    text = operator.call("GET", f"{default}/fleet/machines?state=quarantined").text
    assert "machine-2" in text
    assert "<b>loud</b>" not in text
    assert post(operator, f"{default}/fleet/machines/machine-2/release").status_code == 303
    assert "machine-2" not in operator.call("GET", f"{default}/fleet/machines?state=quarantined").text


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=%00", b"&".join([b"a=1"] * 3000)])
def test_a_body_that_is_no_form_is_refused(home: Furnished, body: bytes) -> None:
    owner = browser_of(home.served, home.owner)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    response = owner.call("POST", f"{HERE}/jobs/cancel", content=body, headers=form)
    assert response.status_code == 400


def test_a_viewer_sets_the_own_mails_or_hears_why_not(home: Furnished) -> None:
    viewer = browser_of(home.served, home.viewer)
    home.served.app.state.context = replace(home.served.ctx, notifier=KeptRuns())
    done = post(viewer, f"{HERE}/settings/notifications", {"jobs": "failures", "daily_digest": "1"})
    assert (done.status_code, done.headers["location"]) == (303, f"{HERE}/settings?said=saved")
    text = viewer.call("GET", f"{HERE}/settings").text
    assert 'name="daily_digest" value="1" checked' in text
    assert re.search(r'<option value="failures" selected', text)
    assert post(viewer, f"{HERE}/settings/notifications", {"jobs": "some"}).status_code == 400
