"""An Idempotency-Key over HTTP: however many equal requests come at one moment, through however many servers."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.fixtures.served import QUICK, Served

from giornata.api.app import create_app
from giornata.api.server import HttpServer, listen
from giornata.client.trust import trusted

AT_ONCE = 16
JOB = {"kind": "x-count", "spec": {"steps": 5}}


@contextlib.contextmanager
def two_servers(served: Served) -> Iterator[list[str]]:
    """URLs of two servers over the same rig."""
    second = HttpServer(create_app(served.ctx, settings=QUICK), listen("127.0.0.1", 0))
    second.start()
    try:
        yield [served.url, second.url]
    finally:
        second.stop()


def all_at_once(served: Served, urls: list[str], bodies: list[dict[str, object]], key: str) -> list[httpx.Response]:
    """Each body is posted at the same moment as all others, by a connection of its own."""
    start = threading.Barrier(len(bodies))

    def post(number: int) -> httpx.Response:
        headers = {"Authorization": f"Bearer {served.keys.member}", "Idempotency-Key": key}
        with httpx.Client(base_url=urls[number % len(urls)], headers=headers, timeout=30, verify=trusted()) as http:
            http.get("/healthz")  # the connection is there before the race begins
            start.wait(30)
            return http.post("/v1/jobs", json=bodies[number])

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(post, range(len(bodies))))


@pytest.mark.parametrize("round_", range(3))
def test_many_equal_requests_make_one_job(served: Served, round_: int) -> None:
    with two_servers(served) as urls:
        replies = all_at_once(served, urls, [JOB] * AT_ONCE, "the-key")
        again = all_at_once(served, urls, [JOB] * 2, "the-key")
    made = [reply for reply in replies if reply.status_code in (200, 201)]
    late = [reply for reply in replies if reply not in made]
    assert {reply.json()["code"] for reply in late} <= {"idempotency-in-flight"}
    assert Counter(reply.status_code for reply in made)[201] == 1
    (job,) = served.client().jobs()
    assert {reply.json()["id"] for reply in [*made, *again]} == {job.id}
    assert {reply.headers["location"] for reply in made} == {f"/v1/jobs/{job.id}"}
    assert [reply.status_code for reply in again] == [200, 200]
    assert [event.type for event in served.client().events(job.id)] == ["job.submitted"]


def test_idempotency_key_sent_with_two_different_jobs_makes_one_job(served: Served) -> None:
    bodies: list[dict[str, object]] = [{**JOB, "name": f"job {number % 2}"} for number in range(AT_ONCE)]
    with two_servers(served) as urls:
        replies = all_at_once(served, urls, bodies, "the-key")
    (job,) = served.client().jobs()
    for body, reply in zip(bodies, replies, strict=True):
        if body["name"] == job.name:
            assert reply.status_code in (200, 201) or reply.json()["code"] == "idempotency-in-flight"
        else:
            assert reply.json()["code"] in ("idempotency-mismatch", "idempotency-in-flight")
    assert any(reply.status_code == 201 for reply in replies)


def test_the_same_key_of_another_project_is_another_key(served: Served) -> None:
    headers = {"Idempotency-Key": "the-key"}
    mine = served.call("POST", "/v1/jobs", served.keys.member, json=JOB, headers=headers)
    theirs = served.call("POST", "/v1/jobs", served.keys.other_admin, json={**JOB, "name": "x"}, headers=headers)
    assert [mine.status_code, theirs.status_code] == [201, 201]
    assert mine.json()["id"] != theirs.json()["id"]
