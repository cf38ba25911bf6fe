"""Every route of the OpenAPI document, asked by somebody who may not.

The table is held against the document: a route that has no row here fails the first test.
"""

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.people import PASSWORD, Browser, browser_of, new_person
from tests.fixtures.served import Served, a_dataset

from giornata.protocol.account.people import Role

SHA = "0" * 64
FILE = {"sha256": SHA, "size_bytes": 3}
JOB = {"kind": "x-count", "spec": {"steps": 5}}
IMPORT = {
    **JOB,
    "imported_from": "job_elsewhere",
    "state": "succeeded",
    "created_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T01:00:00Z",
}
NODE = {"node_id": "node_00000001", "machine_id": "m-1", "name": "n-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`needs` names the verbs of which one is enough, or `person` or `operator`; `body` is one that would be good."""

    needs: tuple[str, ...] = ("jobs:read",)
    body: Any = None
    query: str = ""

    def takes(self, words: Collection[str]) -> bool:
        """True for a caller of these words."""
        return "any" in self.needs or not set(self.needs).isdisjoint(words)


VERBS, OPERATOR, PERSON = ("jobs:read", "jobs:write", "datasets", "generate"), ("operator",), ("person",)
WORDS: dict[str, tuple[str, ...]] = {
    "admin": (*VERBS, "admin", "operator"),
    "member": VERBS,
    "node": ("node",),
    "other_admin": (*VERBS, "admin"),
    "other_node": ("node",),
}
ACCOUNT = {"email": "new@example.com", "password": PASSWORD}
CHOSEN = {"pictures": [{"order_id": "job_1", "number": 0}]}
WEBHOOK = {"target": "https://hooks.example/in"}

USER_ROUTES: dict[str, Route] = {
    "POST /v1/uploads": Route(needs=("datasets",), body={"files": [FILE]}),
    "POST /v1/uploads/{upload_id}/urls": Route(needs=("datasets",), body={}),
    "POST /v1/uploads/{upload_id}/complete": Route(needs=("datasets",), body={}),
    "POST /v1/datasets": Route(needs=("datasets",), body={"items": [{"sha256": SHA, "name": "a.png"}]}),
    "GET /v1/datasets": Route(needs=("jobs:read", "datasets")),
    "GET /v1/datasets/{dataset_id}": Route(needs=("jobs:read", "datasets")),
    "POST /v1/jobs": Route(needs=("jobs:write",), body=JOB),
    "POST /v1/jobs:estimate": Route(needs=("jobs:write",), body=JOB),
    "GET /v1/jobs:compare": Route(query="?job=job_none"),
    "POST /v1/sweeps": Route(needs=("jobs:write",), body={"spec": {}, "changes": [{"rank": 8}]}),
    "GET /v1/sweeps/{job_id}": Route(),
    "GET /v1/jobs": Route(),
    "GET /v1/jobs/{job_id}": Route(),
    "PATCH /v1/jobs/{job_id}": Route(needs=("jobs:write", "generate"), body={"budget_micro_usd": 5}),
    "POST /v1/jobs/{job_id}/cancel": Route(needs=("jobs:write", "generate")),
    "POST /v1/jobs/{job_id}/retry": Route(needs=("jobs:write", "generate")),
    "POST /v1/jobs/{job_id}/continue": Route(needs=("jobs:write",), body={}),
    "GET /v1/jobs/{job_id}/events": Route(),
    "GET /v1/jobs/{job_id}/logs": Route(),
    "GET /v1/jobs/{job_id}/metrics": Route(),
    "GET /v1/jobs/{job_id}/checkpoints": Route(),
    "GET /v1/jobs/{job_id}/artifacts": Route(),
    "GET /v1/jobs/{job_id}/provenance": Route(),
    "GET /v1/provenance-key": Route(),
    "GET /v1/jobs/{job_id}/pictures": Route(needs=("jobs:read", "generate")),
    "GET /v1/jobs/{job_id}/pictures/{number}": Route(needs=("jobs:read", "generate")),
    "GET /v1/pictures": Route(needs=("jobs:read", "generate")),
    "POST /v1/pictures:mark": Route(needs=("generate",), body={**CHOSEN, "starred": True}),
    "POST /v1/pictures:delete": Route(needs=("generate",), body=CHOSEN),
    "POST /v1/pictures:archive": Route(needs=("jobs:read", "generate"), body=CHOSEN),
    "POST /v1/generations": Route(needs=("generate",), body={"model": "some/model", "prompt": "a fox"}),
    "GET /v1/nodes": Route(),
    "GET /v1/machines": Route(needs=OPERATOR),
    "POST /v1/machines/{machine_id}/quarantine": Route(needs=OPERATOR, body={}),
    "POST /v1/machines/{machine_id}/release": Route(needs=OPERATOR),
    "GET /v1/loops": Route(needs=OPERATOR),
    "GET /v1/fleets": Route(needs=OPERATOR),
    "GET /v1/fleets/{name}": Route(needs=OPERATOR),
    "POST /v1/fleets/{name}/roll": Route(needs=OPERATOR),
    "POST /v1/fleets/{name}/pause": Route(needs=OPERATOR),
    "POST /v1/fleets/{name}/resume": Route(needs=OPERATOR),
    "POST /v1/fleets/{name}/scale": Route(needs=OPERATOR, body={"max_nodes": 3}),
    "POST /v1/nodes/{node_id}/drain": Route(needs=OPERATOR),
    "POST /v1/nodes/{node_id}/undrain": Route(needs=OPERATOR),
    "POST /v1/projects": Route(needs=OPERATOR, body={"id": "third"}),
    "GET /v1/projects": Route(needs=VERBS),
    "PUT /v1/projects/{project_id}/budget": Route(needs=OPERATOR, body={"budget_micro_usd": 5}),
    "PUT /v1/projects/{project_id}/limits": Route(needs=OPERATOR, body={"max_pictures": 5}),
    "PUT /v1/projects/{project_id}/safety": Route(needs=OPERATOR, body={"safety": "block"}),
    "GET /v1/projects/{project_id}/quotas": Route(needs=VERBS),
    "PUT /v1/projects/{project_id}/quotas": Route(needs=OPERATOR, body={"max_queued_jobs": 5}),
    "GET /v1/costs": Route(),
    "GET /v1/costs/days": Route(),
    "POST /v1/keys": Route(needs=("admin", "person"), body={"scopes": ["jobs:read"]}),
    "GET /v1/keys": Route(needs=("admin", "person")),
    "DELETE /v1/keys/{key_id}": Route(needs=("admin", "person")),
    "POST /v1/models": Route(needs=("datasets",), body={"name": "base", "reference": "own/er"}),
    "GET /v1/models": Route(needs=VERBS),
    "GET /v1/models/coverage": Route(needs=VERBS, query="?name=base"),
    "PATCH /v1/models/{name}": Route(needs=("datasets",), body={"pinned": True}),
    "DELETE /v1/models/{name}": Route(needs=("datasets",)),
    "GET /v1/secrets": Route(needs=("admin",)),
    "PUT /v1/secrets/{name}": Route(needs=("admin",), body={"value": "hf_something"}),
    "DELETE /v1/secrets/{name}": Route(needs=("admin",)),
    "DELETE /v1/jobs/{job_id}": Route(needs=("jobs:write", "generate")),
    "DELETE /v1/datasets/{dataset_id}": Route(needs=("datasets",)),
    "DELETE /v1/projects/{project_id}": Route(needs=("admin",), query="?confirm=none"),
    "GET /v1/projects/{project_id}/retention": Route(),
    "PUT /v1/projects/{project_id}/retention": Route(needs=("admin",), body={"logs": 30}),
    "GET /v1/projects/{project_id}/retention/preview": Route(needs=("admin",)),
    "POST /v1/projects/{project_id}/retention/preview": Route(needs=("admin",), body={"logs": 30}),
    "POST /v1/export/files": Route(needs=("admin",), body={"sha256s": [SHA]}),
    "POST /v1/import/jobs": Route(needs=("admin",), body=IMPORT),
    "POST /v1/import/jobs/{job_id}/history": Route(needs=("admin",), body={}),
    "POST /v1/import/jobs/{job_id}/pictures": Route(
        needs=("admin",), body={"pictures": [{"number": 0, "state": "failed", "place": 1}]}
    ),
    "GET /v1/pins": Route(),
    "PUT /v1/pins/{target}": Route(needs=("jobs:write", "datasets")),
    "DELETE /v1/pins/{target}": Route(needs=("jobs:write", "datasets")),
    "POST /v1/webhooks": Route(needs=("admin",), body=WEBHOOK),
    "GET /v1/webhooks": Route(needs=("admin",)),
    "GET /v1/webhooks/{webhook_id}": Route(needs=("admin",)),
    "PATCH /v1/webhooks/{webhook_id}": Route(needs=("admin",), body={"enabled": False}),
    "DELETE /v1/webhooks/{webhook_id}": Route(needs=("admin",)),
    "POST /v1/webhooks/{webhook_id}/rotate": Route(needs=("admin",), body={}),
    "POST /v1/webhooks/{webhook_id}/test": Route(needs=("admin",)),
    "POST /v1/webhooks/{webhook_id}/replay": Route(needs=("admin",), body={}),
    "GET /v1/webhooks/{webhook_id}/deliveries": Route(needs=("admin",)),
    "GET /v1/audit-log": Route(needs=("admin",)),
    "GET /v1/audit-log/heads": Route(needs=("admin",)),
    "GET /v1/audit-log/export": Route(needs=("admin",)),
    "GET /v1/node/policy": Route(needs=("node",)),
    "POST /v1/node/checks": Route(needs=("node",), body={"node": NODE}),
    "POST /v1/node/claim": Route(
        needs=("node",), body={"request_id": "request-1", "node": NODE, "kinds": ["x-count"]}
    ),
    "POST /v1/keys/{key_id}/rotate": Route(needs=("admin", "person"), body={"overlap_s": 60}),
    "GET /v1/me": Route(needs=("any",)),
    "POST /v1/me/password": Route(needs=PERSON, body={"password": PASSWORD, "new_password": PASSWORD}),
    "GET /v1/me/notifications": Route(needs=PERSON),
    "PUT /v1/me/notifications": Route(needs=PERSON, body={"jobs": "failures"}),
    "GET /v1/me/identities": Route(needs=PERSON),
    "DELETE /v1/me/identities/{identity_id}": Route(needs=PERSON),
    "GET /v1/session": Route(needs=PERSON),
    "GET /v1/sessions": Route(needs=PERSON),
    "DELETE /v1/sessions/{session_id}": Route(needs=PERSON),
    "POST /v1/users": Route(needs=OPERATOR, body=ACCOUNT),
    "GET /v1/users": Route(needs=OPERATOR),
    "PATCH /v1/users/{user_id}": Route(needs=OPERATOR, body={"operator": True}),
    "GET /v1/projects/{project_id}/members": Route(),
    "PUT /v1/projects/{project_id}/members/{user_id}": Route(needs=("admin",), body={"role": "viewer"}),
    "DELETE /v1/projects/{project_id}/members/{user_id}": Route(needs=("admin",)),
    "POST /v1/invitations": Route(needs=("admin",), body={"role": "viewer"}),
    "GET /v1/invitations": Route(needs=("admin",)),
    "DELETE /v1/invitations/{invitation_id}": Route(needs=("admin",)),
    "POST /v1/device/lookup": Route(needs=PERSON, body={"user_code": "BCDF-GHJK"}),
    "POST /v1/device/approve": Route(needs=PERSON, body={"user_code": "BCDF-GHJK"}),
    "POST /v1/device/deny": Route(needs=PERSON, body={"user_code": "BCDF-GHJK"}),
    "DELETE /v1/session": Route(needs=PERSON),  # the last: it ends what the others need
}

_COMMIT = {"sha256": SHA, "size_bytes": 3}
_ATTEMPT = "/v1/node/attempts/{attempt_id}"
PICTURE = {"order_id": "job_1", "number": 0, "sha256": "0" * 64, "size_bytes": 1}
ATTEMPT_ROUTES: dict[str, Any] = {
    f"POST {_ATTEMPT}/heartbeat": {},
    f"POST {_ATTEMPT}/log": {"first": 0, "lines": ["hello"]},
    f"POST {_ATTEMPT}/metrics": {"points": [{"step": 1, "values": {"loss": 0.5}}]},
    f"POST {_ATTEMPT}/notice": {"name": "note"},
    f"POST {_ATTEMPT}/uploads": {"files": [FILE]},
    f"POST {_ATTEMPT}/uploads/{{upload_id}}/urls": {},
    f"POST {_ATTEMPT}/checkpoints": {"step": 1, **_COMMIT},
    f"POST {_ATTEMPT}/checkpoints/{{step}}/reject": {"message": "torn"},
    f"POST {_ATTEMPT}/artifacts": {"name": "a", **_COMMIT},
    f"POST {_ATTEMPT}/picture-uploads": {"pictures": [PICTURE]},
    f"POST {_ATTEMPT}/pictures": {"drawn": [PICTURE]},
    f"GET {_ATTEMPT}/cache/{{key}}": None,
    f"PUT {_ATTEMPT}/cache/{{key}}": _COMMIT,
    f"POST {_ATTEMPT}/complete": {"step": 1},
    f"POST {_ATTEMPT}/fail": {"reason": "crashed", "message": "boom"},
    f"POST {_ATTEMPT}/release": {},
}

OPEN_ROUTES = {"GET /healthz", "GET /readyz", "GET /metrics"}
PASSWORD_ROUTES = {"POST /v1/session", "POST /v1/invitations/accept"}  # test_sessions.py has them
# test_device_routes.py and test_oidc_sign_in.py have them
SIGN_IN_ROUTES = {"POST /v1/device/authorization", "POST /v1/device/token", "POST /v1/oidc/authorizations"}
SIGNED_ROUTES = {"GET /v1/blobs/{key}", "PUT /v1/blobs/{key}"}
# What is put under a name is put there for one's own project; fleets, machines, projects' budgets are the operator's.
OWNERLESS = (
    "DELETE /v1/me/identities",  # test_oidc_sign_in.py asks for another person's
    "PUT /v1/secrets",
    "GET /v1/fleets",
    "POST /v1/fleets",
    "POST /v1/machines",
    "PUT /v1/projects/{project_id}/budget",
    "PUT /v1/projects/{project_id}/limits",
    "PUT /v1/projects/{project_id}/safety",
    "PUT /v1/projects/{project_id}/quotas",
    "DELETE /v1/sessions",
    "PATCH /v1/users",
    "POST /v1/nodes",
)
OPENAI_ROUTES = {"POST /v1/images/generations"}  # errors of another shape: test_openai_images.py has them
FOREIGN = [route for route in USER_ROUTES if "{" in route and not route.startswith(OWNERLESS)]
NAMED = (
    "upload_id",
    "dataset_id",
    "job_id",
    "key_id",
    "node_id",
    "session_id",
    "user_id",
    "invitation_id",
    "project_id",
    "webhook_id",
    "identity_id",
)
UNKNOWN = {name: f"{name[:-3]}_none" for name in NAMED} | {"name": "none", "target": "ds_none"}


def is_problem(response: httpx.Response, status: int, code: str) -> bool:
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail", "code", "retryable", "faults"}
    assert body["type"] == f"urn:giornata:problem:{body['code']}"
    assert (response.status_code, body["status"], body["code"]) == (status, status, code), body
    return True


def ask(served: Served, route: str, key: str | None, ids: dict[str, str], body: Any) -> httpx.Response:
    method, path = route.split(" ")
    more = {} if body is None else {"json": body}
    return served.call(method, filled(path, ids) + query_of(route), key, **more)


def query_of(route: str) -> str:
    """The query that the route cannot do without."""
    return USER_ROUTES[route].query if route in USER_ROUTES else ""


def filled(path: str, ids: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: ids.get(match[1], "1"), path)


def own_things(served: Served, folder: Path) -> dict[str, str]:
    """One of each, in the first project."""
    call = partial(served.call, key=served.keys.admin)
    dataset_id = a_dataset(served.client(), folder).id
    return {
        "upload_id": call("POST", "/v1/uploads", json={"files": [FILE]}).json()["items"][0]["upload_id"],
        "dataset_id": dataset_id,
        "target": dataset_id,
        "job_id": call("POST", "/v1/jobs", json=JOB).json()["id"],
        "key_id": call("POST", "/v1/keys", json={"scope": "member"}).json()["id"],
        "invitation_id": call("POST", "/v1/invitations", json={"role": "viewer"}).json()["id"],
        "user_id": new_person(served.ctx, "them", {"default": Role.MEMBER}).id,
        "project_id": "default",
        "webhook_id": call("POST", "/v1/webhooks", json=WEBHOOK).json()["id"],
        "name": _two_named_hub(call),
    }


def _two_named_hub(call: Callable[..., httpx.Response]) -> str:
    """A secret and a model of one name, which is returned."""
    model = call("POST", "/v1/models", json={"name": "hub", "reference": "own/er"}).json()["name"]
    assert call("PUT", f"/v1/secrets/{model}", json={"value": "hf_something"}).json()["name"] == model
    return str(model)


def lease(served: Served, number: int = 1) -> dict[str, Any]:
    served.call("POST", "/v1/jobs", served.keys.member, json=JOB)
    node = {**NODE, "node_id": f"node_0000000{number}", "machine_id": f"m-{number}"}
    claim = {"request_id": f"request-{number}", "node": node, "kinds": ["x-count"]}
    reply = served.call("POST", "/v1/node/claim", served.keys.node, json=claim)
    assert reply.json()["lease"] is not None, reply.text
    return dict(reply.json()["lease"])


def test_no_route_is_forgotten(served: Served) -> None:
    document = served.http.get(f"{served.url}/openapi.json").json()
    found = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert (
        found
        == set(USER_ROUTES)
        | set(ATTEMPT_ROUTES)
        | OPEN_ROUTES
        | PASSWORD_ROUTES
        | SIGN_IN_ROUTES
        | SIGNED_ROUTES
        | OPENAI_ROUTES
    )


def test_request_without_valid_key_gets_401_on_every_route(served: Served) -> None:
    for route, row in USER_ROUTES.items():
        for key in (None, "gk_00000000_unknown", "nonsense"):
            response = ask(served, route, key, UNKNOWN, row.body)
            assert is_problem(response, 401, "unauthenticated"), route
            assert response.headers["www-authenticate"] == "Bearer"


def test_key_of_each_scope_gets_403_where_the_scope_does_not_reach(served: Served) -> None:
    keys = {name: getattr(served.keys, name) for name in WORDS}
    words = {**WORDS, **{verb: (verb,) for verb in VERBS}}
    for verb in VERBS:
        made = served.call("POST", "/v1/keys", served.keys.other_admin, json={"scopes": [verb]})
        keys[verb] = made.json()["secret"]
    for route, row in USER_ROUTES.items():
        for name, key in keys.items():
            response = ask(served, route, key, UNKNOWN, row.body)
            if row.takes(words[name]):
                assert response.status_code not in (401, 403), (route, name, response.text)
            else:
                assert is_problem(response, 403, "forbidden"), (route, name)


def test_person_of_each_role_gets_403_where_the_role_does_not_reach(served: Served) -> None:
    words = {Role.VIEWER: VERBS[:1], Role.MEMBER: VERBS, Role.OWNER: (*VERBS, "admin")}
    people = {role: browser_of(served, new_person(served.ctx, role, {"other": role})) for role in Role}
    reach = {people[role]: (*words[role], "person") for role in Role}
    boss = browser_of(served, new_person(served.ctx, "boss", operator=True))
    reach[boss] = (*VERBS, "admin", "operator", "person")
    reach[browser_of(served, new_person(served.ctx, "nobody"))] = ("person",)
    for route, row in USER_ROUTES.items():
        for browser, has in reach.items():
            response = browser_asks(browser, route, UNKNOWN, row.body)
            own_keys = "keys" in route and browser.user.name == "nobody"  # a person of no project has none
            if row.takes(has) and not own_keys:
                assert response.status_code not in (401, 403), (route, browser.user.email, response.text)
            else:
                assert is_problem(response, 403, "forbidden"), (route, browser.user.email)


def test_session_without_its_csrf_token_changes_nothing(served: Served) -> None:
    browser = browser_of(served, new_person(served.ctx, "boss", operator=True))
    for wrong in ("", "0" * 64):
        for route, row in USER_ROUTES.items():
            method, _ = route.split(" ")
            if method != "GET":
                response = browser_asks(replace(browser, csrf_token=wrong), route, UNKNOWN, row.body)
                assert is_problem(response, 403, "forbidden"), route
                assert "X-CSRF-Token" in response.json()["detail"], route


def browser_asks(browser: Browser, route: str, ids: dict[str, str], body: Any) -> httpx.Response:
    method, path = route.split(" ")
    return browser.call(method, filled(path, ids) + query_of(route), **({} if body is None else {"json": body}))


def test_id_of_another_project_gets_404_like_an_unknown_id(served: Served, tmp_path: Path) -> None:
    own = own_things(served, tmp_path)
    for route in FOREIGN:
        ask_other = partial(ask, served, route, served.keys.other_admin, body=USER_ROUTES[route].body)
        assert_tells_nothing(route, own, ask_other)
    assert_untouched(served, own)


def test_another_projects_id_404_for_a_person_of_each_role(served: Served, tmp_path: Path) -> None:
    own = own_things(served, tmp_path)
    words = {Role.VIEWER: VERBS[:1], Role.MEMBER: VERBS, Role.OWNER: (*VERBS, "admin")}
    for role in Role:
        browser = browser_of(served, new_person(served.ctx, role, {"other": role}))
        for route in FOREIGN:
            if USER_ROUTES[route].takes((*words[role], "person")):
                asks = partial(browser_asks, browser, route, body=USER_ROUTES[route].body)
                assert_tells_nothing(route, own, asks)
        stranger = replace(browser, project_id="default")
        assert is_problem(stranger.call("GET", "/v1/jobs"), 404, "not-found")
        unknown = replace(browser, project_id="nowhere").call("GET", "/v1/jobs").json()["detail"]
        assert stranger.call("GET", "/v1/jobs").json()["detail"].replace("default", "nowhere") == unknown
    assert_untouched(served, own)


def assert_tells_nothing(route: str, own: dict[str, str], asks: Callable[..., httpx.Response]) -> None:
    foreign, unknown = asks(ids=own), asks(ids=UNKNOWN)
    assert is_problem(foreign, 404, "not-found"), route
    name = route[route.index("{") + 1 : route.index("}")]
    said = foreign.json()["detail"].replace(own[name], UNKNOWN[name])
    assert said == unknown.json()["detail"], "a foreign id must not be told from one that does not exist"


def assert_untouched(served: Served, own: dict[str, str]) -> None:
    assert served.client().get_job(own["job_id"]).state == "queued"
    keys = served.call("GET", "/v1/keys", served.keys.admin).json()["items"]
    assert [key["revoked_at"] for key in keys if key["id"] == own["key_id"]] == [None]
    (member,) = served.call("GET", "/v1/projects/default/members", served.keys.admin).json()["items"]
    assert (member["user_id"], member["role"]) == (own["user_id"], "member")


def test_dataset_or_blob_of_another_project_in_request_body_is_refused(served: Served, tmp_path: Path) -> None:
    own = own_things(served, tmp_path)
    spec = {"model": "some/model", "dataset": own["dataset_id"], "instance_prompt": "a", "max_train_steps": 1}
    names = ("a.png", "b.png", "c.png")
    items = [{"name": name, "sha256": hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()} for name in names]
    for route, body in (
        ("POST /v1/jobs", {"kind": "train", "spec": spec}),
        ("POST /v1/datasets", {"items": items}),
    ):
        assert ask(served, route, served.keys.member, {}, body).is_success, route
        foreign = ask(served, route, served.keys.other_admin, {}, body)
        assert is_problem(foreign, 400, "invalid-input"), route
    files = [{**FILE, "sha256": items[0]["sha256"]}]
    asked = ask(served, "POST /v1/uploads", served.keys.other_admin, {}, {"files": files})
    assert not asked.json()["items"][0]["exists"], "who has which bytes is nobody else's business"
    body = {"scope": "admin", "project_id": "default"}
    assert ask(served, "POST /v1/keys", served.keys.other_admin, {}, body).status_code in (403, 404)


def of_other(served: Served, node: dict[str, Any], request: str = "request-other") -> httpx.Response:
    """The other project's node asks for work."""
    claim = {"request_id": request, "node": node, "kinds": ["x-count"]}
    return served.call("POST", "/v1/node/claim", served.keys.other_node, json=claim)


def test_a_projects_node_cannot_speak_for_the_operators_machine(served: Served) -> None:
    lease(served)  # on m-1, with the operator's key
    served.call("POST", "/v1/jobs", served.keys.other_admin, json=JOB)
    liar = {**NODE, "node_id": "node_00000009"}
    assert is_problem(of_other(served, liar), 403, "forbidden")
    checks = served.call("POST", "/v1/node/checks", served.keys.other_node, json={"node": liar})
    assert is_problem(checks, 403, "forbidden")
    for name in ("m-1@default", "operator~0123456789abcdef"):
        assert is_problem(of_other(served, {**liar, "machine_id": name}), 400, "invalid-input")
    assert [node["machine_id"] for node in served.call("GET", "/v1/nodes", served.keys.admin).json()["items"]] == [
        "m-1"
    ]


def test_a_project_is_not_told_which_machines_of_the_operators_did_its_job(served: Served) -> None:
    job_id = served.call("POST", "/v1/jobs", served.keys.other_admin, json=JOB).json()["id"]
    node = {**NODE, "name": "attic"}
    claim = {"request_id": "request-1", "node": node, "kinds": ["x-count"]}
    held = served.call("POST", "/v1/node/claim", served.keys.node, json=claim).json()["lease"]
    assert held["job_id"] == job_id
    served.call("POST", f"/v1/jobs/{job_id}/cancel", served.keys.other_admin)
    own = f"/v1/jobs/{job_id}"
    paths = [own, "/v1/jobs", f"{own}/events", f"{own}/logs", f"{own}/artifacts", f"{own}/checkpoints", "/v1/costs"]
    told = [served.call("GET", path, served.keys.other_admin) for path in [*paths, "/v1/nodes"]]
    stream = {"Accept": "text/event-stream"}
    told.append(served.call("GET", f"{own}/events", served.keys.other_admin, headers=stream))
    for reply in told:
        assert reply.is_success, reply.url
        assert not {"attic", "m-1", NODE["node_id"]} & set(re.findall(r"[\w-]+", reply.text)), reply.url
    (attempt,) = told[0].json()["attempts"]
    assert attempt["machine_id"] in told[-1].text
    assert is_problem(of_other(served, {**node, "machine_id": attempt["machine_id"]}), 400, "invalid-input")


def test_a_projects_node_key_quarantines_its_own_machine_and_no_other(served: Served) -> None:
    client = served.client(served.keys.other_admin)
    for number in range(2):
        client.submit(JOB["spec"], kind="x-count")
        held = of_other(served, {**NODE, "node_id": "node_00000009"}, f"request-{number}").json()["lease"]
        path = f"/v1/node/attempts/{held['attempt_id']}/fail"
        served.call("POST", path, held["token"], json={"reason": "node_driver", "message": "it broke"})
    (machine,) = served.client(served.keys.admin).machines()
    assert (machine.machine_id, machine.state) == ("m-1@other", "quarantined")
    assert lease(served)["job_id"], "the operator's machine m-1 works on"
    served.client(served.keys.admin).release_machine("m-1@other")


def test_a_node_that_names_a_price_beyond_its_key_is_refused(served: Served) -> None:
    served.call("POST", "/v1/jobs", served.keys.member, json=JOB)
    dear = {**NODE, "price_micro_usd_per_hour": 100_000_000_000}
    claim = {"request_id": "request-1", "node": dear, "kinds": ["x-count"]}
    for key in (served.keys.node, served.keys.other_node):
        reply = served.call("POST", "/v1/node/claim", key, json=claim)
        assert is_problem(reply, 403, "forbidden")
        assert "this key allows $100.00" in reply.json()["detail"]


def test_lists_hold_nothing_of_another_project(served: Served, tmp_path: Path) -> None:
    own_things(served, tmp_path)
    for path in (
        "/v1/jobs",
        "/v1/datasets",
        "/v1/nodes",
        "/v1/secrets",
        "/v1/webhooks",
        "/v1/invitations",
        "/v1/models",
    ):
        assert served.call("GET", path, served.keys.admin).json()["items"] or path == "/v1/nodes", path
        assert served.call("GET", path, served.keys.other_admin).json()["items"] == [], path
    projects = served.call("GET", "/v1/projects", served.keys.other_admin).json()["items"]
    assert [project["id"] for project in projects] == ["other"]


def test_a_key_in_the_other_header_is_as_good(served: Served) -> None:
    headers = {"X-API-Key": served.keys.member}
    assert served.call("GET", "/v1/jobs", None, headers=headers).status_code == 200


@pytest.mark.parametrize("kind", ["none", "user", "node", "nonsense", "another"])
def test_an_attempts_routes_take_its_own_token_only(served: Served, kind: str) -> None:
    mine, another = lease(served, 1), lease(served, 2)
    keys = {"none": None, "user": served.keys.admin, "node": served.keys.node, "nonsense": f"{mine['token']}0"}
    key = another["token"] if kind == "another" else keys[kind]
    for route, body in ATTEMPT_ROUTES.items():
        response = ask(served, route, key, {"attempt_id": mine["attempt_id"], "upload_id": "upload_x"}, body)
        assert is_problem(response, 401, "unauthenticated"), route


def test_a_token_of_an_ended_attempt_is_lease_lost(served: Served) -> None:
    mine = lease(served)
    served.call("POST", f"/v1/jobs/{mine['job_id']}/cancel", served.keys.member)
    ends = {f"POST {_ATTEMPT}/{end}" for end in ("complete", "fail", "release")}
    for route, body in ATTEMPT_ROUTES.items():
        ids = {"attempt_id": mine["attempt_id"], "upload_id": "upload_x"}
        response = ask(served, route, mine["token"], ids, body)
        if route not in ends:
            assert is_problem(response, 409, "lease-lost"), route
        else:
            assert response.status_code == 409, (route, response.text)


def test_a_signed_url_takes_no_key_and_no_change(served: Served) -> None:
    for route in SIGNED_ROUTES:
        response = ask(served, route, served.keys.admin, {"key": "default/x"}, None)
        assert is_problem(response, 403, "forbidden"), route
