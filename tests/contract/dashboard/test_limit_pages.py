"""Quotas, retention, pins and the audit log on pages of a project."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fixtures.dashboard import CLOSING, PROJECT, SCRIPT, Furnished, furnished
from tests.fixtures.people import Browser, browser_of

from giornata.control.access.keys import create_key
from giornata.control.caller import Caller
from giornata.control.end_of_life.pins import list_pins
from giornata.control.end_of_life.retention import read_retention_of
from giornata.control.projects.set_quotas import read_quotas
from giornata.dashboard.project_area import audit_log_page
from giornata.protocol.project.admin import CreateKey, Scope

HERE = f"/dashboard/projects/{PROJECT}/settings"
OWNER = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_owner")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Furnished]:
    with furnished(tmp_path) as made:
        yield made


def post(browser: Browser, path: str, fields: dict[str, str]) -> httpx.Response:
    return browser.call("POST", HERE + path, data={"csrf": browser.csrf_token} | fields)


def test_an_operator_sets_quotas_and_everybody_sees_their_use(home: Furnished) -> None:
    operator, viewer = browser_of(home.served, home.operator), browser_of(home.served, home.viewer)
    wrong = {"max_queued_jobs": "many", "max_priority": "1e9", "max_running_jobs": CLOSING}
    refused = post(operator, "/quotas", wrong)
    assert refused.status_code == 400
    assert all(f'id="{name}-fault"' in refused.text for name in wrong)
    assert 'value="many"' in refused.text
    assert CLOSING not in refused.text
    too_much = post(operator, "/quotas", {"max_priority": "1000"})
    assert (too_much.status_code, 'id="max_priority-fault"' in too_much.text) == (400, True)
    assert post(browser_of(home.served, home.owner), "/quotas", {"max_queued_jobs": "9"}).status_code == 404
    assert post(operator, "/quotas", {"max_queued_jobs": "4", "max_stored_bytes": "1048576"}).status_code == 303
    found = read_quotas(home.served.ctx, OWNER, PROJECT)
    assert (found.queued_jobs.limit, found.stored_bytes.limit, found.running_jobs.limit) == (4, 1_048_576, None)
    text = viewer.call("GET", f"{HERE}/quotas").text
    assert 'max="4"' in text
    assert "1.0 MiB" in text
    assert "Set the limits" not in text


def test_a_preview_of_retention_changes_nothing_and_keeps_what_was_typed(home: Furnished) -> None:
    owner = browser_of(home.served, home.owner)
    shown = post(owner, "/retention/preview", {"checkpoints": "1", "logs": "30"})
    assert shown.status_code == 200
    assert "What would go now: " in shown.text
    assert 'value="30"' in shown.text
    assert read_retention_of(home.served.ctx, OWNER, PROJECT).logs is None
    refused = post(owner, "/retention", {"checkpoints": "0", "logs": SCRIPT, "events": "7"})
    assert refused.status_code == 400
    assert 'id="logs-fault"' in refused.text
    assert 'value="7"' in refused.text
    assert SCRIPT not in refused.text
    assert 'id="checkpoints-fault"' in post(owner, "/retention", {"checkpoints": "0"}).text
    assert post(owner, "/retention", {"checkpoints": "14", "logs": ""}).status_code == 303
    kept = read_retention_of(home.served.ctx, OWNER, PROJECT)
    assert (kept.checkpoints, kept.logs) == (14, None)


def test_a_member_pins_and_unpins_and_a_name_that_is_nothing_is_said(home: Furnished) -> None:
    member, ctx = browser_of(home.served, home.member), home.served.ctx
    assert post(member, "/pins", {"pin": home.done_job}).status_code == 303
    assert [each.target for each in list_pins(ctx, OWNER).items] == [home.done_job]
    assert home.done_job in member.call("GET", f"{HERE}/retention").text
    for wrong in (CLOSING, home.stranger_job, "job_none", ""):
        refused = post(member, "/pins", {"pin": wrong})
        assert (refused.status_code, 'id="pin-fault"' in refused.text) == (400, True), wrong
        assert CLOSING not in refused.text
    assert post(member, "/pins/remove", {"target": home.done_job}).status_code == 303
    assert list_pins(ctx, OWNER).items == []


def test_the_audit_log_is_filtered_and_a_filter_of_no_use_is_said_beside_its_field(home: Furnished) -> None:
    owner = browser_of(home.served, home.owner)
    create_key(home.served.ctx, OWNER, CreateKey(name=SCRIPT[:100]))
    every = owner.call("GET", f"{HERE}/audit-log").text
    assert ">key.create</td>" in every
    assert ">webhook.create</td>" in every
    keys = owner.call("GET", f"{HERE}/audit-log?verb=key.create").text
    assert ">key.create</td>" in keys
    assert ">webhook.create</td>" not in keys
    none = owner.call("GET", f"{HERE}/audit-log?since=2999-01-01").text
    assert "No row is like this." in none
    refused = owner.call("GET", f"{HERE}/audit-log?verb=dance&since=yesterday&actor={'x' * 300}")
    assert refused.status_code == 400
    for field in ("verb", "since", "actor"):
        assert f'id="{field}-fault"' in refused.text, field
    assert 'value="yesterday"' in refused.text


def test_the_audit_log_is_paged(home: Furnished) -> None:
    owner = browser_of(home.served, home.owner)
    for number in range(audit_log_page.PER_PAGE + 1):
        create_key(home.served.ctx, OWNER, CreateKey(name=f"key {number}"))
    first = owner.call("GET", f"{HERE}/audit-log?verb=key.create").text
    older = re.search(r'href="([^"]+)" rel="next"', first)
    assert older is not None
    assert first.count(">key.create</td>") == audit_log_page.PER_PAGE
    second = owner.call("GET", older[1].replace("&amp;", "&")).text
    assert second.count(">key.create</td>") == 2
    assert "Newest" in second


def test_the_export_of_the_audit_log_is_the_whole_chain_and_only_for_those_who_govern(home: Furnished) -> None:
    assert browser_of(home.served, home.member).call("GET", f"{HERE}/audit-log/export").status_code == 404
    for number in range(audit_log_page.PER_READ + 5):
        create_key(home.served.ctx, OWNER, CreateKey(name=f"key {number}"))
    sent = browser_of(home.served, home.owner).call("GET", f"{HERE}/audit-log/export")
    assert sent.headers["content-disposition"].startswith("attachment; ")
    rows = [json.loads(line) for line in sent.text.splitlines()]
    assert [each["number"] for each in rows[:-1]] == list(range(1, len(rows)))
    assert len(rows) > audit_log_page.PER_READ + 5
    assert rows[-1]["head"]["sha256"] == rows[-2]["sha256"]
