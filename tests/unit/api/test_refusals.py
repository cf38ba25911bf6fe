"""Every route of the OpenAPI document, asked by somebody who may not.

The table is held against the document: a route that has no row here fails the first test.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.served import Served, a_dataset

SHA = "0" * 64
FILE = {"sha256": SHA, "size_bytes": 3}
JOB = {"kind": "x-count", "spec": {"steps": 5}}
NODE = {"node_id": "node_00000001", "machine_id": "m-1", "name": "n-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`allowed` are the keys that have business here; `body` is one that would be good."""

    allowed: frozenset[str] = frozenset({"admin", "member", "other_admin"})
    body: Any = None


ADMINS, OPERATOR = frozenset({"admin", "other_admin"}), frozenset({"admin"})
USER, ADMIN = Route(), Route(allowed=ADMINS)

USER_ROUTES: dict[str, Route] = {
    "POST /v1/uploads": Route(body={"files": [FILE]}),
    "POST /v1/uploads/{upload_id}/urls": Route(body={}),
    "POST /v1/uploads/{upload_id}/complete": Route(body={}),
    "POST /v1/datasets": Route(body={"items": [{"sha256": SHA, "name": "a.png"}]}),
    "GET /v1/datasets": USER,
    "GET /v1/datasets/{dataset_id}": USER,
    "POST /v1/jobs": Route(body=JOB),
    "POST /v1/jobs:estimate": Route(body=JOB),
    "GET /v1/jobs": USER,
    "GET /v1/jobs/{job_id}": USER,
    "PATCH /v1/jobs/{job_id}": Route(body={"budget_micro_usd": 5}),
    "POST /v1/jobs/{job_id}/cancel": USER,
    "POST /v1/jobs/{job_id}/retry": USER,
    "POST /v1/jobs/{job_id}/continue": Route(body={}),
    "GET /v1/jobs/{job_id}/events": USER,
    "GET /v1/jobs/{job_id}/logs": USER,
    "GET /v1/jobs/{job_id}/metrics": USER,
    "GET /v1/jobs/{job_id}/checkpoints": USER,
    "GET /v1/jobs/{job_id}/artifacts": USER,
    "GET /v1/nodes": USER,
    "GET /v1/machines": Route(allowed=OPERATOR),
    "POST /v1/machines/{machine_id}/quarantine": Route(allowed=OPERATOR, body={}),
    "POST /v1/machines/{machine_id}/release": Route(allowed=OPERATOR),
    "GET /v1/fleets": Route(allowed=OPERATOR),
    "GET /v1/fleets/{name}": Route(allowed=OPERATOR),
    "POST /v1/fleets/{name}/roll": Route(allowed=OPERATOR),
    "POST /v1/fleets/{name}/pause": Route(allowed=OPERATOR),
    "POST /v1/fleets/{name}/resume": Route(allowed=OPERATOR),
    "POST /v1/fleets/{name}/scale": Route(allowed=OPERATOR, body={"max_nodes": 3}),
    "POST /v1/nodes/{node_id}/drain": Route(allowed=OPERATOR),
    "POST /v1/nodes/{node_id}/undrain": Route(allowed=OPERATOR),
    "POST /v1/projects": Route(allowed=OPERATOR, body={"id": "third"}),
    "GET /v1/projects": USER,
    "PUT /v1/projects/{project_id}/budget": Route(allowed=OPERATOR, body={"budget_micro_usd": 5}),
    "PUT /v1/projects/{project_id}/limits": Route(allowed=OPERATOR, body={"max_pictures": 5}),
    "GET /v1/costs": USER,
    "POST /v1/keys": Route(allowed=ADMINS, body={"scope": "member"}),
    "GET /v1/keys": ADMIN,
    "DELETE /v1/keys/{key_id}": ADMIN,
    "POST /v1/models": Route(body={"name": "base", "reference": "own/er"}),
    "GET /v1/models": USER,
    "PATCH /v1/models/{name}": Route(body={"pinned": True}),
    "DELETE /v1/models/{name}": USER,
    "GET /v1/secrets": ADMIN,
    "PUT /v1/secrets/{name}": Route(allowed=ADMINS, body={"value": "hf_something"}),
    "DELETE /v1/secrets/{name}": ADMIN,
    "GET /v1/node/policy": Route(allowed=frozenset({"node", "other_node"})),
    "POST /v1/node/checks": Route(allowed=frozenset({"node", "other_node"}), body={"node": NODE}),
    "POST /v1/node/claim": Route(
        allowed=frozenset({"node", "other_node"}),
        body={"request_id": "request-1", "node": NODE, "kinds": ["x-count"]},
    ),
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
SIGNED_ROUTES = {"GET /v1/blobs/{key}", "PUT /v1/blobs/{key}"}
# What is put under a name is put there for one's own project; fleets, machines, projects' budgets are the operator's.
OWNERLESS = (
    "PUT /v1/secrets",
    "GET /v1/fleets",
    "POST /v1/fleets",
    "POST /v1/machines",
    "PUT /v1/projects",
    "POST /v1/nodes",
)
FOREIGN = [route for route in USER_ROUTES if "{" in route and not route.startswith(OWNERLESS)]
NAMED = ("upload_id", "dataset_id", "job_id", "key_id", "node_id")
UNKNOWN = {name: f"{name[:-3]}_none" for name in NAMED} | {"name": "none"}


def is_problem(response: httpx.Response, status: int, code: str) -> bool:
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail", "code", "retryable", "faults"}
    assert body["type"] == f"urn:giornata:problem:{body['code']}"
    assert (response.status_code, body["status"], body["code"]) == (status, status, code), body
    return True


def ask(served: Served, route: str, key: str | None, ids: dict[str, str], body: Any) -> httpx.Response:
    method, path = route.split(" ")
    filled = re.sub(r"\{(\w+)\}", lambda match: ids.get(match[1], "1"), path)
    more = {} if body is None else {"json": body}
    return served.call(method, filled, key, **more)


def own_things(served: Served, folder: Path) -> dict[str, str]:
    """One of each, in the first project."""
    call = partial(served.call, key=served.keys.admin)
    return {
        "upload_id": call("POST", "/v1/uploads", json={"files": [FILE]}).json()["items"][0]["upload_id"],
        "dataset_id": a_dataset(served.client(), folder).id,
        "job_id": call("POST", "/v1/jobs", json=JOB).json()["id"],
        "key_id": call("POST", "/v1/keys", json={"scope": "member"}).json()["id"],
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
    assert found == set(USER_ROUTES) | set(ATTEMPT_ROUTES) | OPEN_ROUTES | SIGNED_ROUTES


def test_without_a_key_401(served: Served) -> None:
    for route, row in USER_ROUTES.items():
        for key in (None, "gk_00000000_unknown", "nonsense"):
            response = ask(served, route, key, UNKNOWN, row.body)
            assert is_problem(response, 401, "unauthenticated"), route
            assert response.headers["www-authenticate"] == "Bearer"


def test_every_other_scope_403_and_these_not(served: Served) -> None:
    for route, row in USER_ROUTES.items():
        for scope in ("admin", "member", "node", "other_admin", "other_node"):
            response = ask(served, route, getattr(served.keys, scope), UNKNOWN, row.body)
            if scope in row.allowed:
                assert response.status_code not in (401, 403), (route, scope)
            else:
                assert is_problem(response, 403, "forbidden"), (route, scope)


def test_another_projects_id_404(served: Served, tmp_path: Path) -> None:
    own = own_things(served, tmp_path)
    for route in FOREIGN:
        foreign = ask(served, route, served.keys.other_admin, own, USER_ROUTES[route].body)
        unknown = ask(served, route, served.keys.other_admin, UNKNOWN, USER_ROUTES[route].body)
        assert is_problem(foreign, 404, "not-found"), route
        name = route[route.index("{") + 1 : route.index("}")]
        said = foreign.json()["detail"].replace(own[name], UNKNOWN[name])
        assert said == unknown.json()["detail"], "a foreign id must not be told from one that does not exist"
    assert served.client().get_job(own["job_id"]).state == "queued"
    keys = served.call("GET", "/v1/keys", served.keys.admin).json()["items"]
    assert [key["revoked_at"] for key in keys if key["id"] == own["key_id"]] == [None]


def test_another_projects_things_cannot_be_named_in_a_body(served: Served, tmp_path: Path) -> None:
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
    wish = {"scope": "admin", "project_id": "default"}
    assert ask(served, "POST /v1/keys", served.keys.other_admin, {}, wish).status_code in (403, 404)


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
    for path in ("/v1/jobs", "/v1/datasets", "/v1/nodes", "/v1/secrets"):
        assert served.call("GET", path, served.keys.other_admin).json()["items"] == []
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
