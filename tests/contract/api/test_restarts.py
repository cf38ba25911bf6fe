"""A server that goes away and comes back under the same address."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.fixtures.served import QUICK, Served

from giornata.api.app import create_app
from giornata.api.server import HttpServer, listen
from giornata.client import Backoff, Client

JOB = {"kind": "x-count", "spec": {"steps": 5}}
RESTARTS = 3


def started(served: Served, port: int) -> HttpServer:
    server = HttpServer(create_app(served.ctx, settings=QUICK), listen("127.0.0.1", port), grace_s=5)
    server.start()
    return server


def noticing(served: Served) -> tuple[str, Callable[[str], None]]:
    """A running job, and what puts something into its history."""
    job_id = str(served.call("POST", "/v1/jobs", served.keys.member, json=JOB).json()["id"])
    node = {"node_id": "node_00000001", "machine_id": "m", "name": "n"}
    claim = {"request_id": "request-1", "node": node, "kinds": ["x-count"]}
    lease = served.call("POST", "/v1/node/claim", served.keys.node, json=claim).json()["lease"]

    def notice(name: str) -> None:
        path = f"/v1/node/attempts/{lease['attempt_id']}/notice"
        assert served.call("POST", path, lease["token"], json={"name": name}).status_code == 204

    return job_id, notice


@pytest.mark.parametrize("at_once", [False, True], ids=["gracefully", "cut off"])
def test_a_follower_neither_loses_nor_repeats(served: Served, at_once: bool) -> None:
    job_id, notice = noticing(served)
    front = started(served, 0)
    port, up, seen = httpx.URL(front.url).port or 0, threading.Event(), threading.Semaphore(0)
    up.set()
    got: list[int] = []

    front_url = front.url

    def until_up(_: float) -> None:
        assert up.wait(30)

    def follow() -> None:
        backoff = Backoff(retries=100, sleep=until_up)
        with httpx.Client(timeout=30) as http:
            sdk = Client(front_url, served.keys.member, http=http, backoff=backoff)
            for event in sdk.events(job_id, follow=True):
                got.append(event.id)
                seen.release()

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        for number in range(RESTARTS):
            notice(f"before-{number}")
            while len(got) < 3 + 2 * number:  # submitted, started, and all notices so far
                assert seen.acquire(timeout=30), got
            up.clear()
            front.stop(at_once=at_once)
            notice(f"away-{number}")
            front = started(served, port)
            up.set()
        served.client().cancel(job_id)
        following.result(timeout=30)
    front.stop()
    assert got == [event.id for event in served.client().events(job_id)]
    assert len(got) == 2 + 2 * RESTARTS + 2


def test_an_upload_under_way_is_finished_and_a_new_request_not_begun(served: Served) -> None:
    body = b"0123456789" * 1000
    front = started(served, 0)
    front_url = front.url
    begun, go_on = threading.Event(), threading.Event()

    def halves() -> object:
        yield body[:5000]
        begun.set()
        assert go_on.wait(30)
        yield body[5000:]

    file = {"sha256": hashlib.sha256(body).hexdigest(), "size_bytes": len(body)}
    asked = served.call("POST", "/v1/uploads", served.keys.member, json={"files": [file]}).json()["items"][0]
    url = asked["put"]["url"].replace(served.url, front_url)
    with ThreadPoolExecutor(2) as pool:
        putting = pool.submit(
            httpx.put,
            url,
            content=halves(),  # type: ignore[arg-type]
            headers={"Content-Length": str(len(body))},
            timeout=30,
        )
        assert begun.wait(30)
        # Answered after the first half of the upload was read, which came before.
        assert httpx.get(f"{front_url}/healthz", timeout=30).status_code == 200
        stopping = pool.submit(front.stop)
        with pytest.raises(httpx.TransportError):
            while True:
                httpx.get(f"{front_url}/healthz", timeout=5)
        assert not stopping.done()
        go_on.set()
        assert putting.result(timeout=30).status_code == 200
        stopping.result(timeout=30)
    done = served.call("POST", f"/v1/uploads/{asked['upload_id']}/complete", served.keys.member, json={})
    assert done.json() == file
