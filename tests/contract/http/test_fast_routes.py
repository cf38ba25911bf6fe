"""The short way of nodes' requests: who is let in, and that nobody can tell from a reply which way it came."""

import asyncio
import inspect
import json
from typing import Any, get_args

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.types import Message, Receive, Scope, Send
from tests.contract.http.test_refusals import ATTEMPT_ROUTES, NODE, lease
from tests.fixtures.served import Served

from giornata.api.app import create_app
from giornata.api.job_routes import jobs
from giornata.api.node_routes import node
from giornata.api.node_routes.fast_routes import BODIES, FastNodeRoutes
from giornata.api.requests.callers import Attempt, User

CLAIM = {"request_id": "request-9", "node": NODE, "kinds": ["x-count"]}
JSON = "application/json"
LONG_WAY = {"Content-Type": f"{JSON}; charset=utf-8"}


def test_each_short_way_is_a_post_of_this_body_whose_parameters_are_known() -> None:
    routes = [*node.router.routes, *node.attempts.routes, *jobs.router.routes]
    posts = {route.path: route for route in routes if isinstance(route, APIRoute) and route.methods == {"POST"}}
    assert set(BODIES) <= set(posts)
    known = {"attempt_id", "body", "caller", "ctx", "idempotency_key", "request", "response", "settings", "wakeup"}
    for path, body in BODIES.items():
        parameters = inspect.signature(posts[path].endpoint).parameters
        assert set(parameters) <= known, path
        assert get_args(parameters["body"].annotation)[0] is body, path
        assert parameters.get("caller") is None or parameters["caller"].annotation == User, path
        assert parameters.get("attempt_id") is None or parameters["attempt_id"].annotation == Attempt, path


def comparable(response: httpx.Response) -> tuple[object, ...]:
    headers = {name: value for name, value in response.headers.items() if name not in ("date", "x-request-id")}
    return response.status_code, headers, response.content


def both_ways(served: Served, path: str, key: str, content: bytes) -> tuple[object, ...]:
    short = served.call("POST", path, key, content=content, headers={"Content-Type": JSON})
    long = served.call("POST", path, key, content=content, headers=LONG_WAY)
    assert comparable(short) == comparable(long)
    assert len(short.headers["x-request-id"]) == len(long.headers["x-request-id"])
    return comparable(short)


def test_replies_are_the_same(served: Served) -> None:
    mine = lease(served)
    base = f"/v1/node/attempts/{mine['attempt_id']}"
    for verb, status in (("heartbeat", 200), ("log", 204), ("metrics", 204), ("notice", 204)):
        body = json.dumps(ATTEMPT_ROUTES[f"POST /v1/node/attempts/{{attempt_id}}/{verb}"]).encode()
        assert both_ways(served, f"{base}/{verb}", mine["token"], body)[0] == status
    claimed = both_ways(served, "/v1/node/claim", served.keys.node, json.dumps(CLAIM).encode())
    assert claimed[0] == 200
    assert both_ways(served, f"{base}/complete", mine["token"], b'{"step": 5}')[0] == 200
    assert both_ways(served, f"{base}/heartbeat", mine["token"], b"{}")[0] == 409


def test_a_submit_goes_the_short_way_and_says_the_same(served: Served) -> None:
    job, key = json.dumps({"kind": "x-count", "spec": {}}).encode(), {"Idempotency-Key": "once"}

    def submitted(content_type: str, **more: str) -> httpx.Response:
        headers = {"Content-Type": content_type, **key, **more}
        return served.call("POST", "/v1/jobs", served.keys.member, content=job, headers=headers)

    first = submitted(JSON)
    assert (first.status_code, first.headers["location"]) == (201, f"/v1/jobs/{first.json()['id']}")
    assert comparable(submitted(JSON)) == comparable(submitted(LONG_WAY["Content-Type"]))
    key["Idempotency-Key"] = "not one"
    assert comparable(submitted(JSON)) == comparable(submitted(LONG_WAY["Content-Type"]))
    assert submitted(JSON).status_code == 400


def test_refusals_are_the_same(served: Served) -> None:
    mine, body = lease(served), json.dumps(CLAIM).encode()
    beat = f"/v1/node/attempts/{mine['attempt_id']}/heartbeat"
    for key in (served.keys.member, served.keys.admin):
        assert both_ways(served, "/v1/node/claim", key, body)[0] == 403
    for key in ("gk_00000000_unknown", "", "x" * 600):
        assert both_ways(served, "/v1/node/claim", key, body)[0] == 401
        assert both_ways(served, beat, key, b"{}")[0] == 401
    for content in (b"", b"{", b"[]", b"null", b'{"step": -1}', b'{"color": 1}', b'{"metrics": {"a": NaN}}'):
        assert both_ways(served, beat, mine["token"], content)[0] == 400
    assert both_ways(served, "/v1/node/claim/", served.keys.node, body)[0] == 404
    assert both_ways(served, f"{beat}/more", mine["token"], b"{}")[0] == 404


class Behind:
    """Stands where FastAPI would; remembers the bodies that come so far."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        self.bodies.append(message.get("body", b"left"))


def passed_on(served: Served, scope: Scope, message: Message) -> tuple[list[bytes], list[Message]]:
    """What came through to those behind, and what was answered."""
    behind, sent, waiting = Behind(), [], [message]
    fast = FastNodeRoutes(behind, ctx=served.ctx, routers=(node.router, node.attempts))

    async def receive() -> Message:
        return waiting.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(fast(scope | {"app": create_app(served.ctx), "query_string": b""}, receive, send))
    return behind.bodies, sent


def asked(path: str, key: str, **more: Any) -> Scope:
    headers = [(b"authorization", b"Bearer " + key.encode()), (b"content-type", JSON.encode())]
    return {"type": "http", "method": "POST", "path": path, "headers": headers} | more


def test_valid_heartbeat_and_claim_are_answered_by_fast_route(served: Served) -> None:
    mine = lease(served)
    beat = asked(f"/v1/node/attempts/{mine['attempt_id']}/heartbeat", mine["token"])
    claim = asked("/v1/node/claim", served.keys.node)  # the lease was claimed with this key a moment ago
    for scope, body in ((beat, b'{"step": 1}'), (claim, json.dumps(CLAIM).encode())):
        behind, sent = passed_on(served, scope, {"type": "http.request", "body": body, "more_body": False})
        assert behind == []
        assert sent[0]["status"] == 200
        assert json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    "more",
    [
        {"method": "PUT"},
        {"path": "/v1/node/attempts//heartbeat"},
        {"path": "/v1/node/attempts/{attempt_id}/heartbeat"},
        {"path": "/v1/node/heartbeat"},
        {"token": "nonsense"},
        {"token": ""},
        {"kind": b"text/plain"},
        {"scheme": b"Basic "},
        {"twice": True},
        {"body": b"{"},
        {"body": b"[" * 100_000},
        {"body": b'{"step": "x"}'},
    ],
)
def test_malformed_node_request_is_passed_whole_from_fast_route_to_app(served: Served, more: dict[str, Any]) -> None:
    mine, more = lease(served), dict(more)
    token, body = more.pop("token", mine["token"]), more.pop("body", b"{}")
    scope = asked(f"/v1/node/attempts/{mine['attempt_id']}/heartbeat", token)
    scope["headers"][0] = (b"authorization", more.pop("scheme", b"Bearer ") + token.encode())
    scope["headers"][1] = (b"content-type", more.pop("kind", JSON.encode()))
    scope["headers"] *= 2 if more.pop("twice", False) else 1
    behind, sent = passed_on(served, scope | more, {"type": "http.request", "body": body, "more_body": False})
    assert (behind, sent) == ([body], [])


def test_client_disconnect_before_body_is_passed_from_fast_route_to_app(served: Served) -> None:
    mine = lease(served)
    scope = asked(f"/v1/node/attempts/{mine['attempt_id']}/heartbeat", mine["token"])
    assert passed_on(served, scope, {"type": "http.disconnect"}) == ([b"left"], [])
