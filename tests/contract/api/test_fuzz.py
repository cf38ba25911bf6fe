"""Whatever comes in, the server answers as its own OpenAPI document says.

Requests are drawn from the document, good ones and broken ones, and sent with every kind of key to a real server over
a real socket, once over SQLite and once over PostgreSQL: no 5xx, no status, header or body that the document does not
name, and what it forbids is refused. Both answer with the same status. The draws are the same every time; `make fuzz`
draws many more, and others each time.
"""

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from tests.fixtures.people import ROOT, browser_of, new_person
from tests.fixtures.served import Served, a_dataset, serving

from giornata.api.settings import ApiSettings
from giornata.control.projects.set_quotas import set_quotas
from giornata.protocol.account.people import Role
from giornata.protocol.project.quotas import SetQuotas

SETTINGS = ApiSettings(stream_poll_s=0.01, keep_alive_s=0.05, claim_poll_s=0.01, images_wait_s=0.01)
DEEPER = os.environ.get("GIORNATA_FUZZ_EXAMPLES")
PEOPLE = tuple(f"session of {role}" for role in Role)
SCOPES = ("nobody", "admin", "node", "attempt", *PEOPLE)
ATTEMPT_SCOPES = ("nobody", "node", "attempt")  # to an attempt, one key is as good as any other
HELD = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
GOOD, BROKEN = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
EXAMPLES = {GOOD: int(DEEPER or 8), BROKEN: int(DEEPER or 3)}
DRAWS = settings(
    derandomize=DEEPER is None,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# Nothing in these can be broken: they take no body, and any text will do for what they take.
UNBREAKABLE = {"GET /healthz", "GET /metrics", "GET /readyz", "GET /v1/blobs/{key}", "PUT /v1/blobs/{key}"}
# A good answer of these needs more than a draw: bytes that were uploaded, a signature, a job that has ended, a fleet,
# a password, a person's session, a project's name written twice, a model's name,
# a key or a webhook that was not taken away by a draw before.
HARD_TO_PLEASE = {
    "DELETE /v1/projects/{project_id}",
    "POST /v1/export/files",
    "POST /v1/import/jobs",
    "POST /v1/import/jobs/{job_id}/history",
    "POST /v1/import/jobs/{job_id}/pictures",
    "GET /v1/models/coverage",
    "GET /v1/jobs/{job_id}/provenance",
    "GET /v1/webhooks/{webhook_id}/deliveries",
    "POST /v1/webhooks/{webhook_id}/replay",
    "POST /v1/webhooks/{webhook_id}/rotate",
    "POST /v1/webhooks/{webhook_id}/test",
    "POST /v1/device/token",
    "POST /v1/device/lookup",
    "POST /v1/device/approve",
    "POST /v1/device/deny",
    "POST /v1/oidc/authorizations",
    "POST /v1/session",
    "GET /v1/session",
    "DELETE /v1/session",
    "GET /v1/sessions",
    "DELETE /v1/sessions/{session_id}",
    "POST /v1/me/password",
    "GET /v1/me/notifications",
    "PUT /v1/me/notifications",
    "GET /v1/me/identities",
    "DELETE /v1/me/identities/{identity_id}",
    "POST /v1/invitations/accept",
    "POST /v1/keys/{key_id}/rotate",
    "GET /v1/fleets/{name}",
    "POST /v1/fleets/{name}/roll",
    "POST /v1/fleets/{name}/pause",
    "POST /v1/fleets/{name}/resume",
    "POST /v1/fleets/{name}/scale",
    "GET /v1/blobs/{key}",
    "GET /v1/jobs/{job_id}/pictures/{number}",
    "POST /v1/generations",
    "POST /v1/pictures:mark",
    "POST /v1/pictures:delete",
    "POST /v1/pictures:archive",
    "POST /v1/images/generations",
    "POST /v1/datasets",
    "POST /v1/jobs",
    "POST /v1/jobs/{job_id}/continue",
    "POST /v1/jobs/{job_id}/retry",
    "POST /v1/sweeps",
    "GET /v1/sweeps/{job_id}",
    "GET /v1/jobs:compare",
    "POST /v1/jobs:estimate",
    "POST /v1/models",
    "POST /v1/node/attempts/{attempt_id}/artifacts",
    "POST /v1/node/attempts/{attempt_id}/checkpoints",
    "POST /v1/node/attempts/{attempt_id}/checkpoints/{step}/reject",
    "POST /v1/node/attempts/{attempt_id}/fail",
    "POST /v1/node/attempts/{attempt_id}/uploads/{upload_id}/urls",
    "POST /v1/uploads/{upload_id}/complete",
    "PUT /v1/blobs/{key}",
    "PUT /v1/node/attempts/{attempt_id}/cache/{key}",
}
IMAGES = "/v1/images/generations"  # no node draws here: a good request is a 503 when its time is up
JOB = {"kind": "x-count", "spec": {"steps": 5}}


@dataclass(slots=True)
class ServedInstallation:
    """A served installation in which every id leads somewhere."""

    served: Served
    ids: dict[str, str]
    http: requests.Session
    people: dict[str, dict[str, str]]
    lease: dict[str, Any] = field(default_factory=dict)
    leases: int = 0

    def renew(self) -> None:
        """Make sure that there is an attempt that is alive."""
        beat = f"/v1/node/attempts/{self.lease.get('attempt_id')}/heartbeat"
        if self.lease and self.served.call("POST", beat, self.lease["token"], json={}).status_code == 200:
            return
        self.leases += 1
        job = self.served.call("POST", "/v1/jobs", self.served.keys.member, json={**JOB, "priority": 100}).json()
        node = {"node_id": f"node_{self.leases:08}", "machine_id": f"m-{self.leases}", "name": "n"}
        claim = {"request_id": f"request-{self.leases}", "node": node, "kinds": ["x-count"]}
        reply = self.served.call("POST", "/v1/node/claim", self.served.keys.node, json=claim).json()
        self.lease = reply["lease"]
        self.ids |= {"job_id": job["id"], "target": job["id"], "attempt_id": self.lease["attempt_id"]}
        self.ids |= {"machine_id": node["machine_id"], "node_id": node["node_id"]}

    def lift_limits(self) -> None:
        """Take back limits of requests a second that a draw has set: what counts then is the time between draws."""
        lifted = SetQuotas(max_requests_per_s=None, max_requests_per_s_per_key=None)
        for project_id in ("default", "other"):
            set_quotas(self.served.ctx, ROOT, project_id, lifted)

    def answer(self, case: Case, scope: str, *, known: bool) -> requests.Response:
        """What this installation says to the request, which is at things that there are, if `known`."""
        for name in case.path_parameters if known else ():
            case.path_parameters[name] = self.ids[name]
        return case.call(self.served.url, self.http, self.headers(scope), timeout=20)

    def headers(self, scope: str) -> dict[str, str]:
        """What `scope` shows at the door."""
        keys = self.served.keys
        if scope in self.people:
            return self.people[scope]
        secrets = {"admin": keys.admin, "node": keys.node, "attempt": self.lease["token"]}
        return {"Authorization": f"Bearer {secrets[scope]}"} if scope in secrets else {}


@contextlib.contextmanager
def started_on(folder: Path, database: str | None) -> Iterator[ServedInstallation]:
    """An installation on a database of its own. The ids are counted: they are the same in each."""
    folder.mkdir()
    with serving(folder, SETTINGS, database=database) as served:
        file = {"sha256": "0" * 64, "size_bytes": 3}
        upload = served.call("POST", "/v1/uploads", served.keys.member, json={"files": [file]}).json()
        key = served.call("POST", "/v1/keys", served.keys.admin, json={"scope": "member"}).json()
        secret = served.call("PUT", "/v1/secrets/hub", served.keys.admin, json={"value": "hf_something"}).json()
        invitation = served.call("POST", "/v1/invitations", served.keys.admin, json={"role": "viewer"}).json()
        target = {"target": "https://hooks.example/in"}
        webhook = served.call("POST", "/v1/webhooks", served.keys.admin, json=target).json()
        model = {"name": secret["name"], "reference": "own/er"}
        assert served.call("POST", "/v1/models", served.keys.member, json=model).is_success
        ids = {
            "upload_id": upload["items"][0]["upload_id"],
            "dataset_id": a_dataset(served.client(), folder).id,
            "key_id": key["id"],
            "project_id": "other",
            "user_id": new_person(served.ctx, "eve", {"other": Role.VIEWER}).id,
            "invitation_id": invitation["id"],
            "webhook_id": webhook["id"],
            "session_id": "session_1",
            "identity_id": "identity_1",
            "name": secret["name"],
            "step": "1",
            "number": "0",
            "key": "a.b",
        }
        people = {f"session of {role}": session_of(served, role) for role in Role}
        with requests.Session() as http:
            yield ServedInstallation(served, ids, http, people)


def session_of(served: Served, role: Role) -> dict[str, str]:
    """The headers of a browser in which a person of that role is signed in. The project of the ids has no owners."""
    project = "other" if role is Role.OWNER else "default"
    browser = browser_of(served, new_person(served.ctx, f"one-{role}", {project: role}))
    return {"Cookie": f"giornata-session={browser.secret}", "X-CSRF-Token": browser.csrf_token}


@pytest.fixture
def installations(
    tmp_path: Path, new_postgres: Callable[[], str]
) -> Iterator[tuple[ServedInstallation, ServedInstallation]]:
    with (
        started_on(tmp_path / "sqlite", None) as sqlite,
        started_on(tmp_path / "postgresql", new_postgres()) as postgresql,
    ):
        yield sqlite, postgresql


def askers(path: str, scopes: Sequence[str], number: int) -> Sequence[str]:
    """Who sends the request of this number to the route: everybody the first, and each other one whoever may do most
    there and one of the others in turn. What somebody may not do is refused before anybody looks at the request.
    """
    if DEEPER or number == 0:
        return scopes
    able = "attempt" if scopes is ATTEMPT_SCOPES else "node" if path.startswith("/v1/node/") else "admin"
    others = [scope for scope in scopes if scope != able]
    return able, others[number % len(others)]


def drawn(
    installations: Sequence[ServedInstallation], operation: Any, mode: GenerationMode, seen: Counter[int]
) -> None:
    """Send requests to one route, as everybody; their statuses go into `seen`. Raises what does not hold."""
    scopes = ATTEMPT_SCOPES if "{attempt_id}" in operation.path else SCOPES
    number = itertools.count()
    sets_limits = operation.path.endswith("/quotas")
    for rig in installations:
        rig.lift_limits()

    @settings(DRAWS, max_examples=EXAMPLES[mode])
    @given(case=operation.as_strategy(mode), known=st.sampled_from([True, True, False]))
    def check(case: Case, known: bool) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), int | float):
            case.body["wait_s"] = min(case.body["wait_s"], 0.01)
        # A broken id that was replaced by a good one is broken no more.
        held = [check for check in HELD if not (known and check is checks.negative_data_rejection)]
        if operation.path == IMAGES:
            held.remove(not_a_server_error)
        for rig in installations:
            rig.renew()
            if sets_limits:
                rig.lift_limits()
        for scope in askers(operation.path, scopes, next(number)):
            replies = [rig.answer(case, scope, known=known) for rig in installations]
            for reply in replies:
                seen[reply.status_code] += 1
                case.validate_response(reply, checks=held)
            statuses = [reply.status_code for reply in replies]
            assert len(set(statuses)) == 1, f"{scope}: {statuses}: {[reply.text for reply in replies]}"

    check()


def test_server_answers_conform_to_openapi_document(
    installations: tuple[ServedInstallation, ServedInstallation],
) -> None:
    faults, unbreakable, refused = [], set(), set()
    document = schemathesis.openapi.from_url(f"{installations[0].served.url}/openapi.json")
    for result in document.get_all_operations():
        operation, seen = result.ok(), Counter[int]()
        for mode in EXAMPLES:
            try:
                drawn(installations, operation, mode, seen)
            except Unsatisfiable:
                assert mode is BROKEN
                unbreakable.add(operation.label)
            except AssertionError as fault:
                faults.append(f"{operation.label}: {fault}")
            except BaseExceptionGroup as several:
                faults.append(f"{operation.label}: {several.exceptions}")
        if not any(status < 300 for status in seen):
            refused.add(operation.label)
    assert faults == [], "\n\n".join(faults)
    assert unbreakable == UNBREAKABLE
    assert refused - HARD_TO_PLEASE == set(), "none of the requests drawn for these was a good one"
