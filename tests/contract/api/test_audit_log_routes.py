"""The audit log over HTTP: every route that changes something writes a row, and only those who govern may read it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.fleets import TalkativeFleet, governed, with_fleets
from tests.fixtures.openid import linked_identity
from tests.fixtures.people import PASSWORD, Browser, browser_of, new_person
from tests.fixtures.served import Served, serving
from tests.fixtures.users import claim, end, new_job, progress

from giornata.api.settings import ApiSettings
from giornata.control.access.authenticate import authenticate
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.domain.accounts.audit_log import ChainCheck, ChainLink
from giornata.domain.errors import Forbidden, InvalidInput, NotFound
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.account.people import Role
from giornata.protocol.account.sign_in import DEVICE_GRANT

SETTINGS = ApiSettings(stream_poll_s=0.02, claim_poll_s=0.05, images_wait_s=0.01)
JOB = {"kind": "x-count", "spec": {"steps": 5}}
IMPORT = {
    **JOB,
    "imported_from": "job_elsewhere",
    "state": "succeeded",
    "created_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T01:00:00Z",
}
NODE = {"node_id": "node_00000001", "machine_id": "m-1", "name": "n-1"}
ORDER = {"model": "some/model", "prompt": "a fox", "width": 64, "height": 64}
NODES_WORK = "a node's work on a lease; the job's events tell of it"
BYTES = "bytes that nothing refers to yet; what refers to them is logged"
# Routes that write no row, and why.
EXEMPT = {
    "POST /v1/uploads": BYTES,
    "POST /v1/uploads/{upload_id}/urls": BYTES,
    "POST /v1/uploads/{upload_id}/complete": BYTES,
    "PUT /v1/blobs/{key}": BYTES,
    "POST /v1/jobs:estimate": "it queues nothing",
    "POST /v1/export/files": "it writes nothing",
    "POST /v1/pictures:archive": "it writes nothing",
    "POST /v1/import/jobs/{job_id}/history": "metrics, lines and events of a job whose import is logged",
    "POST /v1/import/jobs/{job_id}/pictures": "pictures of an order whose import is logged",
    "POST /v1/projects/{project_id}/retention/preview": "it deletes nothing",
    "POST /v1/oidc/authorizations": "it signs nobody in; the browser's return from the provider does",
    "POST /v1/device/authorization": "a device of nobody's waits; whoever decides on it is logged",
    "POST /v1/device/lookup": "it decides nothing",
    "POST /v1/node/claim": NODES_WORK,
    "POST /v1/node/checks": NODES_WORK,
}
OF_ATTEMPTS = "/v1/node/attempts/"


@dataclass(frozen=True, kw_only=True)
class AskedInstallation:
    """A served installation whose routes are asked by its admin, with a fleet and a person."""

    served: Served
    folder: Path
    browser: Browser

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self.served.call(method, path, self.served.keys.admin, **({} if body is None else {"json": body}))

    def made(self, path: str, body: Any) -> str:
        """The id of a new thing."""
        return str(self.ask("POST", path, body).json()["id"])

    def job(self) -> str:
        return self.made("/v1/jobs", JOB)

    def upload(self) -> str:
        """The sha256 of a file that the project has."""
        file = self.folder / "a.png"
        file.write_bytes(b"a picture")
        (uploaded,) = self.served.client().upload_files([file])
        return str(uploaded.sha256)

    def pinned_job(self) -> str:
        job_id = self.job()
        self.ask("PUT", f"/v1/pins/{job_id}")
        return job_id

    def canceled_job(self) -> str:
        job_id = self.job()
        self.ask("POST", f"/v1/jobs/{job_id}/cancel")
        return job_id

    def trained_job(self) -> str:
        """A job that failed behind its first checkpoint."""
        ctx = self.served.ctx
        job = new_job(ctx, authenticate(ctx, self.served.keys.member))
        lease = claim(ctx)
        progress(ctx, lease, step=3, committed=b"weights")
        end(ctx, lease, Reason.BAD_SPEC, JobEvent.FAIL, step=3)
        return job.id

    def dataset(self, name: str = "a.png") -> str:
        return self.made("/v1/datasets", {"items": [{"sha256": self.upload(), "name": name}]})

    def device(self) -> dict[str, Any]:
        """The codes of a device that waits for a person."""
        form = {"client_id": "giornata", "scope": "jobs:read"}
        return dict(self.served.call("POST", "/v1/device/authorization", None, data=form).json())

    def decide(self, verb: str, device: dict[str, Any]) -> httpx.Response:
        return self.browser.call("POST", f"/v1/device/{verb}", json={"user_code": device["user_code"]})

    def key(self) -> str:
        return self.made("/v1/keys", {"scope": "member"})

    def invitation(self) -> dict[str, Any]:
        return dict(self.ask("POST", "/v1/invitations", {"role": "viewer"}).json())

    def webhook(self) -> str:
        return self.made("/v1/webhooks", {"target": "https://hooks.example/in"})

    def model(self, name: str) -> str:
        return str(self.ask("POST", "/v1/models", {"name": name, "reference": "own/er"}).json()["name"])

    def node(self) -> str:
        """A node on the machine m-1, which got a job."""
        self.job()
        request = {"request_id": "request-1", "node": NODE, "kinds": ["x-count"]}
        assert self.served.call("POST", "/v1/node/claim", self.served.keys.node, json=request).is_success
        return str(NODE["node_id"])

    def person(self, name: str) -> Browser:
        return browser_of(self.served, new_person(self.served.ctx, name, {"default": Role.MEMBER}))

    def listed_fleet(self) -> str:
        reconcile_fleet(self.served.app.state.context, "gpu")
        return "gpu"


Ask = Callable[[AskedInstallation], httpx.Response]


def sign_in(installation: AskedInstallation, email: str, password: str) -> httpx.Response:
    return installation.served.http.post(
        f"{installation.served.url}/v1/session", json={"email": email, "password": password}
    )


def accepted(installation: AskedInstallation) -> httpx.Response:
    body = {"secret": installation.invitation()["secret"], "email": "guest@example.com", "password": PASSWORD}
    return installation.served.http.post(f"{installation.served.url}/v1/invitations/accept", json=body)


def ended_session(installation: AskedInstallation) -> httpx.Response:
    browser = installation.person("leaver")
    (session,) = browser.call("GET", "/v1/sessions").json()["items"]
    return browser.call("DELETE", f"/v1/sessions/{session['id']}")


def password_changed(installation: AskedInstallation) -> httpx.Response:
    body = {"password": PASSWORD, "new_password": f"{PASSWORD}, longer"}
    return installation.person("changer").call("POST", "/v1/me/password", json=body)


def unlinked(installation: AskedInstallation) -> httpx.Response:
    browser = installation.person("unlinker")
    return browser.call("DELETE", f"/v1/me/identities/{linked_identity(installation.served.ctx, browser.user.id)}")


def device_key_taken(installation: AskedInstallation) -> httpx.Response:
    device = installation.device()
    assert installation.decide("approve", device).is_success
    form = {"grant_type": DEVICE_GRANT, "device_code": device["device_code"], "client_id": "giornata"}
    return installation.served.call("POST", "/v1/device/token", None, data=form)


def swept(installation: AskedInstallation) -> httpx.Response:
    spec = {
        "model": "some/model",
        "instance_prompt": "a fox",
        "max_train_steps": 10,
        "dataset": installation.dataset(),
    }
    return installation.ask("POST", "/v1/sweeps", {"spec": spec, "grid": {"rank": [4, 8]}})


def chosen_picture(installation: AskedInstallation, *, verb: str, **fields: Any) -> httpx.Response:
    order_id = installation.ask("POST", "/v1/generations", ORDER).json()["job"]["id"]
    return installation.ask(
        "POST", f"/v1/pictures:{verb}", {"pictures": [{"order_id": order_id, "number": 0}], **fields}
    )


def project_deleted(installation: AskedInstallation) -> httpx.Response:
    installation.made("/v1/projects", {"id": "fourth"})
    return installation.ask("DELETE", "/v1/projects/fourth?confirm=fourth")


def _asked(method: str, path: str, body: Any = None) -> Ask:
    return lambda installation: installation.ask(method, path, body)


def _on(method: str, path: str, thing: Callable[[AskedInstallation], str], body: Any = None) -> Ask:
    """Ask a route about a thing that is made for it; `*` in the path is its id."""
    return lambda installation: installation.ask(method, path.replace("*", thing(installation)), body)


WRITES: dict[str, tuple[str, Ask]] = {
    "POST /v1/datasets": (
        "dataset.create",
        lambda installation: installation.ask(
            "POST", "/v1/datasets", {"items": [{"sha256": installation.upload(), "name": "a.png"}]}
        ),
    ),
    "POST /v1/jobs": ("job.submit", _asked("POST", "/v1/jobs", JOB)),
    "PATCH /v1/jobs/{job_id}": (
        "job.change",
        _on("PATCH", "/v1/jobs/*", AskedInstallation.job, {"budget_micro_usd": 5_000_000}),
    ),
    "POST /v1/jobs/{job_id}/cancel": ("job.cancel", _on("POST", "/v1/jobs/*/cancel", AskedInstallation.job)),
    "POST /v1/import/jobs": ("job.import", _asked("POST", "/v1/import/jobs", IMPORT)),
    "POST /v1/jobs/{job_id}/retry": ("job.retry", _on("POST", "/v1/jobs/*/retry", AskedInstallation.canceled_job)),
    "POST /v1/jobs/{job_id}/continue": (
        "job.submit",
        _on("POST", "/v1/jobs/*/continue", AskedInstallation.trained_job, {}),
    ),
    "POST /v1/sweeps": ("job.submit", swept),
    "DELETE /v1/jobs/{job_id}": ("job.delete", _on("DELETE", "/v1/jobs/*", AskedInstallation.canceled_job)),
    "DELETE /v1/datasets/{dataset_id}": (
        "dataset.delete",
        _on("DELETE", "/v1/datasets/*", partial(AskedInstallation.dataset, name="gone.png")),
    ),
    "PUT /v1/pins/{target}": ("pin.set", _on("PUT", "/v1/pins/*", AskedInstallation.job)),
    "DELETE /v1/pins/{target}": ("pin.remove", _on("DELETE", "/v1/pins/*", AskedInstallation.pinned_job)),
    "POST /v1/generations": ("job.submit", _asked("POST", "/v1/generations", ORDER)),
    "POST /v1/pictures:mark": ("picture.mark", partial(chosen_picture, verb="mark", starred=True)),
    "POST /v1/pictures:delete": ("picture.delete", partial(chosen_picture, verb="delete")),
    "POST /v1/images/generations": (
        "job.submit",
        _asked("POST", "/v1/images/generations", {"model": "some/model", "prompt": "a fox"}),
    ),
    "POST /v1/models": ("model.add", _asked("POST", "/v1/models", {"name": "base", "reference": "own/er"})),
    "PATCH /v1/models/{name}": (
        "model.change",
        _on("PATCH", "/v1/models/*", partial(AskedInstallation.model, name="pinned"), {"pinned": True}),
    ),
    "DELETE /v1/models/{name}": (
        "model.remove",
        _on("DELETE", "/v1/models/*", partial(AskedInstallation.model, name="gone")),
    ),
    "POST /v1/keys": ("key.create", _asked("POST", "/v1/keys", {"scopes": ["jobs:read"]})),
    "POST /v1/keys/{key_id}/rotate": ("key.rotate", _on("POST", "/v1/keys/*/rotate", AskedInstallation.key, {})),
    "DELETE /v1/keys/{key_id}": ("key.revoke", _on("DELETE", "/v1/keys/*", AskedInstallation.key)),
    "PUT /v1/secrets/{name}": ("secret.set", _asked("PUT", "/v1/secrets/hub", {"value": "hf_something"})),
    "DELETE /v1/secrets/{name}": ("secret.delete", _asked("DELETE", "/v1/secrets/hub")),
    "POST /v1/webhooks": (
        "webhook.create",
        _asked("POST", "/v1/webhooks", {"target": "https://hooks.example/in"}),
    ),
    "PATCH /v1/webhooks/{webhook_id}": (
        "webhook.change",
        _on("PATCH", "/v1/webhooks/*", AskedInstallation.webhook, {"enabled": False}),
    ),
    "POST /v1/webhooks/{webhook_id}/rotate": (
        "webhook.rotate",
        _on("POST", "/v1/webhooks/*/rotate", AskedInstallation.webhook, {}),
    ),
    "POST /v1/webhooks/{webhook_id}/test": (
        "webhook.test",
        _on("POST", "/v1/webhooks/*/test", AskedInstallation.webhook),
    ),
    "POST /v1/webhooks/{webhook_id}/replay": (
        "webhook.replay",
        _on("POST", "/v1/webhooks/*/replay", AskedInstallation.webhook, {}),
    ),
    "DELETE /v1/webhooks/{webhook_id}": (
        "webhook.delete",
        _on("DELETE", "/v1/webhooks/*", AskedInstallation.webhook),
    ),
    "PUT /v1/projects/{project_id}/members/{user_id}": (
        "member.set",
        _on(
            "PUT",
            "/v1/projects/default/members/*",
            lambda installation: installation.person("m").user.id,
            {"role": "viewer"},
        ),
    ),
    "DELETE /v1/projects/{project_id}/members/{user_id}": (
        "member.remove",
        _on("DELETE", "/v1/projects/default/members/*", lambda installation: installation.person("n").user.id),
    ),
    "POST /v1/invitations": ("invitation.create", _asked("POST", "/v1/invitations", {"role": "viewer"})),
    "DELETE /v1/invitations/{invitation_id}": (
        "invitation.revoke",
        _on("DELETE", "/v1/invitations/*", lambda installation: str(installation.invitation()["id"])),
    ),
    "POST /v1/invitations/accept": ("invitation.accept", accepted),
    "POST /v1/users": (
        "user.create",
        _asked("POST", "/v1/users", {"email": "new@example.com", "password": PASSWORD}),
    ),
    "PATCH /v1/users/{user_id}": (
        "user.change",
        _on("PATCH", "/v1/users/*", lambda installation: installation.person("o").user.id, {"operator": True}),
    ),
    "POST /v1/session": (
        "session.open",
        lambda installation: sign_in(installation, installation.browser.user.email, PASSWORD),
    ),
    "DELETE /v1/session": (
        "session.end",
        lambda installation: installation.person("p").call("DELETE", "/v1/session"),
    ),
    "DELETE /v1/sessions/{session_id}": ("session.end", ended_session),
    "POST /v1/me/password": ("password.change", password_changed),
    "PUT /v1/me/notifications": (
        "notifications.set",
        lambda installation: installation.person("told").call("PUT", "/v1/me/notifications", json={"jobs": "none"}),
    ),
    "DELETE /v1/me/identities/{identity_id}": ("identity.unlink", unlinked),
    "POST /v1/projects": ("project.create", _asked("POST", "/v1/projects", {"id": "third"})),
    "PUT /v1/projects/{project_id}/budget": (
        "project.set_budget",
        _asked("PUT", "/v1/projects/other/budget", {"budget_micro_usd": 5}),
    ),
    "PUT /v1/projects/{project_id}/limits": (
        "project.set_limits",
        _asked("PUT", "/v1/projects/other/limits", {"max_pictures": 5}),
    ),
    "PUT /v1/projects/{project_id}/safety": (
        "project.set_safety",
        _asked("PUT", "/v1/projects/other/safety", {"safety": "block"}),
    ),
    "PUT /v1/projects/{project_id}/quotas": (
        "project.set_quotas",
        _asked("PUT", "/v1/projects/other/quotas", {"max_queued_jobs": 5, "allowed_adapters": ["https://a/?t=hf_x"]}),
    ),
    "PUT /v1/projects/{project_id}/retention": (
        "project.set_retention",
        _asked("PUT", "/v1/projects/other/retention", {"logs": 5}),
    ),
    "DELETE /v1/projects/{project_id}": ("project.delete", project_deleted),
    "POST /v1/device/approve": (
        "device.approve",
        lambda installation: installation.decide("approve", installation.device()),
    ),
    "POST /v1/device/deny": ("device.deny", lambda installation: installation.decide("deny", installation.device())),
    "POST /v1/device/token": ("key.create", device_key_taken),
    "POST /v1/fleets/{name}/roll": (
        "fleet.roll",
        _on("POST", "/v1/fleets/*/roll", AskedInstallation.listed_fleet),
    ),
    "POST /v1/fleets/{name}/pause": ("fleet.pause", _asked("POST", "/v1/fleets/gpu/pause")),
    "POST /v1/fleets/{name}/resume": ("fleet.resume", _asked("POST", "/v1/fleets/gpu/resume")),
    "POST /v1/fleets/{name}/scale": ("fleet.scale", _asked("POST", "/v1/fleets/gpu/scale", {"max_nodes": 3})),
    "POST /v1/nodes/{node_id}/drain": ("node.drain", _on("POST", "/v1/nodes/*/drain", AskedInstallation.node)),
    "POST /v1/nodes/{node_id}/undrain": ("node.undrain", _asked("POST", "/v1/nodes/node_00000001/undrain")),
    "POST /v1/machines/{machine_id}/quarantine": (
        "machine.quarantine",
        _asked("POST", "/v1/machines/m-1/quarantine", {}),
    ),
    "POST /v1/machines/{machine_id}/release": ("machine.release", _asked("POST", "/v1/machines/m-1/release")),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AskedInstallation]:
    """An installation on a database of its own."""
    database = request.getfixturevalue("new_postgres")() if request.param == "postgresql" else None
    with serving(tmp_path, SETTINGS, database=database) as served:
        served.app.state.context = with_fleets(served.ctx, {"gpu": governed(TalkativeFleet(), kinds=("x-count",))})
        yield AskedInstallation(
            served=served, folder=tmp_path, browser=browser_of(served, new_person(served.ctx, "boss", operator=True))
        )


def rows_of(installation: AskedInstallation, **query: str) -> list[dict[str, Any]]:
    reply = installation.served.call(
        "GET", "/v1/audit-log", installation.served.keys.admin, params={"limit": "500", **query}
    )
    assert reply.is_success, reply.text
    return list(reply.json()["items"])


def test_every_route_that_changes_something_writes_a_row_or_says_why_not(installation: AskedInstallation) -> None:
    document = installation.served.http.get(f"{installation.served.url}/openapi.json").json()
    changing = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if method != "get" and not path.startswith(OF_ATTEMPTS)
    }
    assert changing == set(WRITES) | set(EXEMPT)
    for route, (verb, ask) in WRITES.items():
        reply = ask(installation)
        waited_in_vain = route == "POST /v1/images/generations"
        assert reply.is_success or waited_in_vain, (route, reply.text)
        request_id = reply.headers["x-request-id"]
        rows = [row for row in rows_of(installation, verb=verb) if row["request_id"] == request_id]
        assert [row["address"] for row in rows] == ["127.0.0.1"], route
        assert rows[0]["actor"] and rows[0]["key_id"] and rows[0]["target"], route


def test_log_holds_no_secret_that_was_sent_or_handed_out(installation: AskedInstallation) -> None:
    for _, ask in WRITES.values():
        ask(installation)
    text = json.dumps(rows_of(installation))
    sent = (PASSWORD, "hf_", "gd_", "a fox", "hooks.example", "example.com")
    assert [secret for secret in (*sent, "gk_", "gs_", "gi_", "whsec_") if secret in text] == []


def test_wrong_password_and_unknown_address_are_logged_alike_but_for_the_person(
    installation: AskedInstallation,
) -> None:
    user = installation.browser.user
    for email in (user.email, "nobody@example.com"):
        assert sign_in(installation, email, "not the password of theirs").status_code == 401
    unknown, known = rows_of(installation, verb="session.refuse")
    assert (known["target"], unknown["target"]) == (user.id, "")
    assert {known["actor_kind"], unknown["actor_kind"]} == {"visitor"}
    assert known["address"] == unknown["address"] == "127.0.0.1"


def test_request_that_is_refused_leaves_no_row(installation: AskedInstallation) -> None:
    before = rows_of(installation)
    assert installation.ask("POST", "/v1/jobs", {"kind": "train", "spec": {}}).status_code == 400
    assert installation.ask("POST", "/v1/jobs/job_none/cancel").status_code == 404
    assert installation.ask("POST", "/v1/projects", {"id": "other"}).status_code == 409
    assert installation.served.call("POST", "/v1/keys", installation.served.keys.member, json={}).status_code == 403
    assert rows_of(installation) == before


def test_row_says_who_did_what_to_what_from_where_by_which_key(installation: AskedInstallation) -> None:
    served = installation.served
    job_id = served.call("POST", "/v1/jobs", served.keys.other_admin, json={**JOB, "priority": 3}).json()["id"]
    (row,) = rows_of(installation, target=job_id)
    key_id = served.call("GET", "/v1/me", served.keys.other_admin).json()["key_id"]
    assert (row["project_id"], row["actor_kind"], row["actor"], row["key_id"]) == ("other", "key", key_id, key_id)
    assert row["changes"] == {"kind": "x-count", "priority": 3}
    installation.browser.call("POST", "/v1/jobs", json=JOB)
    by_person = rows_of(installation, actor=installation.browser.user.id, verb="job.submit")
    assert [each["actor_kind"] for each in by_person] == ["operator"]


def test_owner_reads_own_project_alone_and_an_operator_all(installation: AskedInstallation) -> None:
    served = installation.served
    owner, operator = served.client(served.keys.other_admin), served.client(served.keys.admin)
    owner.submit({"steps": 5}, kind="x-count")
    assert {each.project_id for each in owner.audit_log()} == {"other"}
    assert {each.project_id for each in operator.audit_log()} >= {"other", "default"}
    assert {each.project_id for each in operator.audit_log(project_id="other")} == {"other"}
    assert [head.project_id for head in owner.audit_log_heads()] == ["other"]
    for project_id in ("default", "nowhere"):
        calls = (
            lambda wanted: list(owner.audit_log(project_id=wanted)),
            lambda wanted: owner.audit_log_heads(project_id=wanted),
            lambda wanted: list(owner.export_audit_log(project_id=wanted)),
        )
        for call in calls:
            with pytest.raises(NotFound, match=f"^there is no project {project_id}$"):
                call(project_id)
    with pytest.raises(Forbidden):
        list(served.client().audit_log())


def test_list_is_narrowed_by_time_and_paged(installation: AskedInstallation) -> None:
    client = installation.served.client(installation.served.keys.admin)
    for _ in range(3):
        client.submit({"steps": 5}, kind="x-count")
    newest, second, *_ = client.audit_log(verb="job.submit")
    assert newest.at >= second.at
    assert list(client.audit_log(until=second.at, verb="job.submit", target=newest.target)) == []
    assert newest in list(client.audit_log(since=newest.at))
    first = installation.ask("GET", "/v1/audit-log?limit=2&verb=job.submit").json()
    rest = installation.ask("GET", f"/v1/audit-log?limit=2&verb=job.submit&cursor={first['next']}").json()
    assert [len(first["items"]), len(rest["items"]), rest["next"]] == [2, 1, None]
    assert installation.ask("GET", "/v1/audit-log?verb=job.dance").status_code == 400
    with pytest.raises(InvalidInput):
        list(client.audit_log(verb="job.dance"))


def test_export_comes_in_pages_of_json_lines_that_verify(installation: AskedInstallation) -> None:
    for _ in range(3):
        installation.job()
    reply = installation.ask("GET", "/v1/audit-log/export?limit=2")
    assert reply.headers["content-type"] == "application/jsonl"
    *rows, last = [json.loads(line) for line in reply.text.splitlines()]
    assert [row["number"] for row in rows] == [1, 2]
    assert last["head"]["number"] > 2
    *rows, last = installation.served.client(installation.served.keys.admin).export_audit_log()
    check = ChainCheck()
    for row in rows:
        check.add(row)
    check.end("default", ChainLink(number=last["head"]["number"], sha256=last["head"]["sha256"]))
    assert (check.faults, check.rows) == ({}, last["head"]["number"])


def test_log_of_a_deleted_project_stays_for_operators_alone(installation: AskedInstallation) -> None:
    served = installation.served
    owner = installation.person("owner")
    installation.made("/v1/projects", {"id": "fourth"})
    installation.ask("PUT", f"/v1/projects/fourth/members/{owner.user.id}", {"role": "owner"})
    assert owner.call("DELETE", "/v1/projects/fourth?confirm=fourth", headers={"X-Project": "fourth"}).is_success
    client = served.client(served.keys.admin)
    rows = list(client.audit_log(project_id="fourth"))
    assert [(row.verb, row.actor) for row in rows[:1]] == [("project.delete", owner.user.id)]
    assert rows[-1].verb == "project.create"
    check = ChainCheck()
    *lines, last = client.export_audit_log(project_id="fourth")
    for row in lines:
        check.add(row)
    check.end("fourth", ChainLink(number=last["head"]["number"], sha256=last["head"]["sha256"]))
    assert (check.faults, check.rows) == ({}, len(rows))
    with pytest.raises(NotFound):
        list(served.client(served.keys.other_admin).audit_log(project_id="fourth"))
