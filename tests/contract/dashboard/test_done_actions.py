"""Actions that succeed: what a form asks for is done, and the page that follows shows it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.fixtures.dashboard import PROJECT, Furnished, furnished, pages_of
from tests.fixtures.people import ROOT, Browser, browser_of

from giornata.control.access.invitations import list_invitations
from giornata.control.access.keep_secrets import list_secrets
from giornata.control.access.keys import list_keys
from giornata.control.access.members import list_members
from giornata.control.caller import Caller
from giornata.control.fleets.nodes import list_nodes
from giornata.control.fleets.read_fleets import read_fleet
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.control.notifications.manage_webhooks import list_webhooks, read_webhook
from giornata.domain.accounts.notifications import DeliveryState
from giornata.protocol.account.people import Role
from giornata.protocol.jobs import Job
from giornata.protocol.node.fleets import Fleet
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

HERE = f"/dashboard/projects/{PROJECT}"
GOVERNED = f"/dashboard/projects/{ROOT_PROJECT}/fleet"
OWNER = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_owner")
OPERATOR = replace(ROOT, project_id=ROOT_PROJECT)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Furnished]:
    with furnished(tmp_path) as made:
        yield made


def done(browser: Browser, path: str, said: str, fields: dict[str, str | list[str]] | None = None) -> str:
    """Submit the form, follow it to the page where it leads, and return the text of that page."""
    answer = submitted(browser, path, fields)
    assert answer.status_code == 303, (path, answer.text[:300])
    location = answer.headers["location"]
    assert location.endswith(f"said={said}"), location
    shown = browser.call("GET", location)
    assert shown.status_code == 200, location
    assert 'role="status"' in shown.text, "the page says what was done"
    return shown.text


def submitted(browser: Browser, path: str, fields: dict[str, str | list[str]] | None = None) -> httpx.Response:
    return browser.call("POST", path, data={"csrf": browser.csrf_token} | (fields or {}))


def spot(installation: Furnished) -> Fleet:
    return read_fleet(installation.served.app.state.context, OPERATOR, "spot")


def jobs_of(installation: Furnished) -> list[Job]:
    page = list_jobs(installation.served.ctx, OWNER, states=(), labels={}, kind=None, cursor=None, limit=50)
    return list(page.items)


def test_an_operator_drains_a_node_and_lets_it_work_again(home: Furnished) -> None:
    operator, ctx = browser_of(home.served, home.operator), home.served.ctx

    def state() -> str:
        nodes = list_nodes(ctx, OPERATOR, gone=True, cursor=None, limit=50).items
        return next(str(each.state) for each in nodes if each.id == "node_00000001")

    before = state()
    assert "draining" in done(operator, f"{GOVERNED}/nodes/node_00000001/drain", "drained")
    assert state() == "draining"
    done(operator, f"{GOVERNED}/nodes/node_00000001/undrain", "undrained")
    assert state() == before != "draining"


def test_an_operator_pauses_resumes_and_scales_a_fleet(home: Furnished) -> None:
    operator, page = browser_of(home.served, home.operator), pages_of(home)["operator-one-fleet"]
    done(operator, f"{GOVERNED}/named/spot/pause", "fleet-paused")
    assert spot(home).paused_since is not None
    assert f"{page}/resume" in operator.call("GET", page).text
    done(operator, f"{GOVERNED}/named/spot/resume", "fleet-resumed")
    assert spot(home).paused_since is None
    done(operator, f"{GOVERNED}/named/spot/scale", "fleet-scaled", {"min_nodes": "2", "max_nodes": "4"})
    found = spot(home)
    assert (found.limits.min_nodes, found.limits.max_nodes, found.min_nodes, found.most_nodes) == (2, 4, 2, 4)
    assert 'value="4"' in operator.call("GET", page).text
    done(operator, f"{GOVERNED}/named/spot/scale", "fleet-scaled", {"min_nodes": "", "max_nodes": ""})
    assert (spot(home).limits.min_nodes, spot(home).min_nodes) == (None, 1), "as the settings say"


def test_an_owner_makes_a_webhook_whose_secret_is_shown_once_and_deletes_it(home: Furnished) -> None:
    owner, path = browser_of(home.served, home.owner), f"{HERE}/settings/webhooks"
    made = submitted(owner, path, {"target": "https://hooks.example/second", "format": "standard"})
    secret = re.search(r'<code class="secret">([^<]+)</code>', made.text)
    assert (made.status_code, secret is not None) == (200, True)
    new = [each for each in list_webhooks(home.served.ctx, OWNER, None, 50).items if each.id != home.webhook_id]
    assert [each.target for each in new] == ["https://hooks.example/second"]
    later = owner.call("GET", path).text
    assert "https://hooks.example/second" in later
    assert secret is not None and secret[1] not in later
    assert "hooks.example/second" not in done(owner, f"{path}/{new[0].id}/delete", "removed")
    assert [each.id for each in list_webhooks(home.served.ctx, OWNER, None, 50).items] == [home.webhook_id]


def test_dead_deliveries_wait_again_after_a_replay(home: Furnished) -> None:
    ctx, path = home.served.ctx, f"{HERE}/settings/webhooks/{home.webhook_id}"
    dead = {
        "webhook_id": home.webhook_id,
        "chain": "a",
        "type": "job.ended",
        "body": "{}",
        "state": DeliveryState.DEAD,
    }
    dead |= {"tries": 9, "due_at_ms": 1, "error": "refused", "created_at_ms": 1, "ended_at_ms": 2}
    with ctx.store.begin() as tx:
        rows = [dead | {"event_id": f"event_{number}"} for number in range(3)]
        tx.connection.execute(schema.webhook_deliveries.insert(), rows)  # type: ignore[attr-defined]
    assert (read_webhook(ctx, OWNER, home.webhook_id).dead) == 3
    before = read_webhook(ctx, OWNER, home.webhook_id).waiting
    done(browser_of(home.served, home.owner), f"{path}/replay", "replayed")
    found = read_webhook(ctx, OWNER, home.webhook_id)
    assert (found.dead, found.waiting) == (0, before + 3)


def test_an_owner_keeps_and_deletes_a_secret_whose_value_no_page_shows(home: Furnished) -> None:
    owner, path = browser_of(home.served, home.owner), f"{HERE}/settings/secrets"

    def names() -> set[str]:
        return {each.name for each in list_secrets(home.served.ctx, OWNER).items}

    before = names()
    text = done(owner, path, "saved", {"secret_name": "civitai_key", "value": "never-shown-again"})
    assert names() == before | {"civitai_key"}
    assert ("civitai_key" in text, "never-shown-again" in text) == (True, False)
    assert "civitai_key" not in done(owner, f"{path}/civitai_key/delete", "removed")
    assert names() == before


@pytest.mark.parametrize("value", ["short", "two words of a value"])
def test_both_faults_of_a_secret_stand_beside_their_fields(home: Furnished, value: str) -> None:
    owner = browser_of(home.served, home.owner)
    refused = submitted(owner, f"{HERE}/settings/secrets", {"secret_name": "bad name!", "value": value})
    assert refused.status_code == 400
    assert re.findall(r'class="fault" id="(\w+)-fault"', refused.text) == ["secret_name", "value"]
    assert 'value="bad name!"' in refused.text
    assert value not in refused.text


def test_an_owner_gives_a_member_another_role_and_removes_the_member(home: Furnished) -> None:
    owner, path = browser_of(home.served, home.owner), f"{HERE}/settings/members/{home.viewer.id}"

    def role() -> Role | None:
        found = list_members(home.served.ctx, OWNER, PROJECT).items
        return next((each.role for each in found if each.user_id == home.viewer.id), None)

    done(owner, path, "saved", {"role": "member"})
    assert role() is Role.MEMBER
    viewer = browser_of(home.served, home.viewer)
    assert viewer.call("GET", f"{HERE}/train").status_code == 200, "a member may train"
    assert home.viewer.email not in done(owner, f"{path}/remove", "removed")
    assert role() is None
    assert viewer.call("GET", HERE).status_code in {303, 404}, "the session sees the project no more"


def test_an_invitation_is_made_with_a_link_and_revoked(home: Furnished) -> None:
    owner, path = browser_of(home.served, home.owner), f"{HERE}/settings/invitations"
    ctx = home.served.ctx
    before = {each.id for each in list_invitations(ctx, OWNER, None, 50).items}
    made = submitted(owner, path, {"role": "member"})
    assert (made.status_code, "/invitation#" in made.text) == (200, True)
    (new,) = [each for each in list_invitations(ctx, OWNER, None, 50).items if each.id not in before]
    assert (new.role, new.revoked_at) == (Role.MEMBER, None)
    assert f"{path}/{new.id}/revoke" in made.text
    assert f"{path}/{new.id}/revoke" not in done(owner, f"{path}/{new.id}/revoke", "revoked")
    (revoked,) = [each for each in list_invitations(ctx, OWNER, None, 50).items if each.id == new.id]
    assert revoked.revoked_at is not None


def test_a_revoked_key_is_refused_at_once(home: Furnished) -> None:
    member, path = browser_of(home.served, home.member), f"{HERE}/settings/keys"
    made = submitted(member, path, {"name": "laptop", "scope": "jobs:read"}).text
    secret = re.findall(r"gk_[0-9a-f]{8}_\w+", made)[0]
    assert home.served.call("GET", "/v1/jobs", secret).status_code == 200
    key = next(each for each in list_keys(home.served.ctx, OWNER, None, 50).items if each.name == "laptop")
    assert "revoked" in done(member, f"{path}/{key.id}/revoke", "revoked")
    assert home.served.call("GET", "/v1/jobs", secret).status_code == 401


def test_several_jobs_are_tried_again_together(home: Furnished) -> None:
    chosen = [home.failed_job, home.hostile_job]
    done(browser_of(home.served, home.member), f"{HERE}/jobs/retry", "several-retried", {"job": chosen})
    assert {each.retry_of for each in jobs_of(home)} >= set(chosen)


def test_a_finished_training_goes_on_for_so_many_steps(home: Furnished) -> None:
    answer = submitted(
        browser_of(home.served, home.member), f"{HERE}/jobs/{home.done_job}/continue", {"steps": "250"}
    )
    assert answer.status_code == 303
    job_id = re.findall(r"/jobs/(\w+)\?said=saved", answer.headers["location"])[0]
    new = get_job(home.served.ctx, OWNER, job_id)
    assert (new.id != home.done_job, new.spec["max_train_steps"], bool(new.spec["init_lora"])) == (True, 250, True)
    page = browser_of(home.served, home.viewer).call("GET", f"{HERE}/jobs/{job_id}").text
    origin = re.findall(r"It began with the weights of step (\d+) of <a href=\"([^\"]+)\"", page)
    assert origin == [("350", f"{HERE}/jobs/{home.done_job}")]
