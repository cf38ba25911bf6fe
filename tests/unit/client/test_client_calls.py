"""Calls over a scripted transport: what is repeated, what is not, and what errors become."""

import json
from collections.abc import Callable

import httpx
import pytest

from giornata.client import Backoff, Client
from giornata.domain.errors import (
    Conflict,
    Forbidden,
    IdempotencyMismatch,
    IllegalTransition,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from giornata.protocol.project.admin import Scope

URL = "http://server.test"
AT = "2026-01-01T00:00:00Z"
Answer = httpx.Response | type[httpx.TransportError] | Callable[[httpx.Request], httpx.Response]


class Script:
    """Answers one request after another, and remembers them."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.slept_s: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, type):
            raise answer("said the script", request=request)
        return answer(request) if callable(answer) else answer

    def client(self, retries: int = 3) -> Client:
        backoff = Backoff(retries=retries, sleep=self.slept_s.append, chance=lambda: 1.0)
        return Client(URL, "gk_secret", http=httpx.Client(transport=httpx.MockTransport(self)), backoff=backoff)

    def bodies(self) -> list[object]:
        return [json.loads(request.content) for request in self.requests]


def problem(status: int, code: str, **more: object) -> httpx.Response:
    return httpx.Response(status, json={"status": status, "code": code, "detail": f"it is {code}", **more})


def job(**more: object) -> dict[str, object]:
    urls = dict.fromkeys(
        ("self", "cancel", "retry", "events", "logs", "metrics", "checkpoints", "artifacts"), "/somewhere"
    )
    row = {"id": "job_1", "project_id": "default", "kind": "train", "name": "n", "state": "queued", "spec": {}}
    return {**row, "priority": 0, "labels": {}, "created_at": AT, "urls": urls, **more}


def ok(body: object) -> httpx.Response:
    return httpx.Response(200, json=body)


def test_a_submission_is_repeated_with_the_same_key_and_body() -> None:
    script = Script(httpx.ReadTimeout, problem(503, "unavailable"), httpx.Response(201, json=job()))
    assert script.client().submit({"steps": 1}, kind="x-count").id == "job_1"
    keys = {request.headers["Idempotency-Key"] for request in script.requests}
    assert len(script.requests) == 3
    assert len(keys) == 1
    assert script.bodies()[0] == script.bodies()[2]
    assert script.slept_s == [0.25, 0.5]


def test_two_submissions_have_two_keys() -> None:
    script = Script(httpx.Response(201, json=job()), httpx.Response(201, json=job()))
    client = script.client()
    client.submit({}, kind="x-a")
    client.submit({}, kind="x-a")
    assert len({request.headers["Idempotency-Key"] for request in script.requests}) == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (problem(401, "unauthenticated"), Unauthenticated),
        (problem(403, "forbidden"), Forbidden),
        (problem(404, "not-found"), NotFound),
        (problem(409, "illegal-transition"), IllegalTransition),
        (problem(422, "idempotency-mismatch"), IdempotencyMismatch),
        (problem(409, "conflict"), Conflict),
    ],
)
def test_a_refusal_is_raised_at_once(answer: httpx.Response, expected: type[Exception]) -> None:
    script = Script(answer)
    with pytest.raises(expected, match="it is"):
        script.client().get_job("job_1")
    assert len(script.requests) == 1


def test_every_fault_of_invalid_input_arrives() -> None:
    faults = [
        {"where": "spec.rank", "message": "is too big", "hint": "use 16"},
        {"where": "kind", "message": "is none"},
    ]
    with pytest.raises(InvalidInput) as caught:
        Script(problem(400, "invalid-input", faults=faults)).client().submit({})
    assert [fault.where for fault in caught.value.faults] == ["spec.rank", "kind"]


def test_client_gives_up_after_its_retries() -> None:
    script = Script(*[httpx.ConnectError] * 4)
    with pytest.raises(Unavailable, match="does not answer"):
        script.client(retries=3).get_job("job_1")
    assert len(script.requests) == 4


def test_retry_after_is_honored() -> None:
    busy = httpx.Response(429, headers={"Retry-After": "7"})
    script = Script(busy, ok(job()))
    script.client().get_job("job_1")
    assert script.slept_s == [7.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.create_key(scope=Scope.NODE),
        lambda client: client.create_project("other"),
    ],
)
def test_post_that_is_not_idempotent_is_not_retried_after_read_timeout(call: Callable[[Client], object]) -> None:
    script = Script(httpx.ReadTimeout)
    with pytest.raises(Unavailable):
        call(script.client())
    assert len(script.requests) == 1


def test_request_that_never_reached_server_is_retried() -> None:
    key = {"id": "key_1", "prefix": "gk_1", "name": "key", "scope": "node", "project_id": "default", "created_at": AT}
    script = Script(httpx.ConnectError, httpx.Response(201, json={**key, "secret": "gk_1_s"}))
    assert script.client().create_key(scope=Scope.NODE).secret == "gk_1_s"


def test_pages_are_walked_to_the_end() -> None:
    pages = [{"items": [job(id="job_3"), job(id="job_2")], "next": "c"}, {"items": [job(id="job_1")], "next": None}]
    script = Script(*map(ok, pages))
    assert [each.id for each in script.client().jobs(labels={"team": "a"})] == ["job_3", "job_2", "job_1"]
    assert [request.url.params.get("cursor") for request in script.requests] == [None, "c"]
    assert all(request.url.params["label"] == "team:a" for request in script.requests)


def test_waiting_ends_with_the_job() -> None:
    states = ["queued", "running", "failed"]
    script = Script(*(ok(job(state=state)) for state in states))
    assert script.client().wait("job_1", poll_s=3).state == "failed"
    assert script.slept_s == [3, 3]


def test_waiting_has_an_end() -> None:
    times_s = iter([0.0, 5.0, 11.0])
    script = Script(*(ok(job(state="running")) for _ in range(3)))
    with pytest.raises(Unavailable, match="still running after 10 s"):
        script.client().wait("job_1", timeout_s=10, monotonic_s=lambda: next(times_s))


def test_a_page_of_a_proxy_is_no_answer() -> None:
    script = Script(*[httpx.Response(200, text="<html>welcome</html>")])
    with pytest.raises(Unavailable, match="not from a Giornata server"):
        script.client().get_job("job_1")


def test_an_id_cannot_lead_elsewhere() -> None:
    script = Script(ok(job()))
    script.client().get_job("../keys?x=1")
    assert script.requests[0].url.raw_path == b"/v1/jobs/..%2Fkeys%3Fx%3D1"


@pytest.mark.parametrize(("url", "key"), [("server.test", "gk_x"), (URL, ""), (URL, "gk x"), (URL, "gk_ü")])
def test_an_address_or_key_of_no_use_is_refused(url: str, key: str) -> None:
    with pytest.raises(InvalidInput):
        Client(url, key)
