"""A key that is revoked ends what it has open, on every server."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.contract.http.test_streams import submitted
from tests.fixtures.people import browser_of, new_person
from tests.fixtures.served import QUICK, Served, serving

from giornata.api.app import create_app
from giornata.api.server import HttpServer, listen
from giornata.client import Backoff, Client
from giornata.control.access.authenticate import authenticate
from giornata.control.memory.process_cache import ProcessCache
from giornata.domain.errors import Unauthenticated
from giornata.protocol.account.people import Role

WITHIN_MS = 5_000


@dataclass
class MovedClock:
    """The machine's clock, and as much later as a test wants."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Another server over the same store, which hears of a revocation only from there."""

    first: Served
    url: str
    clock: MovedClock

    def revoke(self, secret: str) -> None:
        """On the first server."""
        key_id = authenticate(self.first.ctx, secret).key_id
        assert self.first.call("DELETE", f"/v1/keys/{key_id}", self.first.keys.admin).status_code == 200


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    with serving(tmp_path) as first:
        clock = MovedClock()
        ctx = replace(first.ctx, memory=ProcessCache(), clock=clock)
        server = HttpServer(create_app(ctx, settings=QUICK), listen("127.0.0.1", 0), grace_s=5)
        server.start()
        try:
            yield Replica(first=first, url=server.url, clock=clock)
        finally:
            server.stop()


@pytest.mark.parametrize("what", ["events", "logs"])
def test_an_open_stream_is_closed(replica: Replica, what: str) -> None:
    job_id, key = submitted(replica.first), replica.first.keys.member
    headers = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
    with replica.first.http.stream("GET", f"{replica.url}/v1/jobs/{job_id}/{what}", headers=headers) as response:
        text = response.iter_text()
        next(text)
        replica.revoke(key)
        replica.clock.ahead_ms += WITHIN_MS
        assert "event: end" not in "".join(text)


@pytest.mark.parametrize("lose", ["leaves", "is deactivated", "signs out"])
def test_open_stream_of_a_session_is_closed_when_its_person(replica: Replica, lose: str) -> None:
    first = replica.first
    job_id, user = submitted(first), new_person(first.ctx, "eve", {"default": Role.VIEWER})
    browser = browser_of(first, user)
    headers = {"Cookie": f"giornata-session={browser.secret}", "Accept": "text/event-stream"}
    with first.http.stream("GET", f"{replica.url}/v1/jobs/{job_id}/events", headers=headers) as response:
        text = response.iter_text()
        next(text)
        if lose == "leaves":
            done = browser.call("DELETE", f"/v1/projects/default/members/{user.id}")
        elif lose == "signs out":
            done = browser.call("DELETE", "/v1/session")
        else:
            done = first.call("PATCH", f"/v1/users/{user.id}", first.keys.admin, json={"active": False})
        assert done.is_success, done.text
        replica.clock.ahead_ms += WITHIN_MS
        assert "event: end" not in "".join(text)


def test_a_follower_hears_why(replica: Replica) -> None:
    job_id, key = submitted(replica.first), replica.first.keys.member
    client = Client(replica.url, key, http=replica.first.http, backoff=Backoff(sleep=lambda _: None))
    events = client.events(job_id, follow=True)
    assert next(events).type == "job.submitted"
    replica.revoke(key)
    replica.clock.ahead_ms += WITHIN_MS
    with pytest.raises(Unauthenticated):
        next(events)


def test_a_claim_that_waits_is_refused(replica: Replica) -> None:
    key = replica.first.keys.node
    node = {"node_id": "node_00000009", "machine_id": "m", "name": "n"}
    claim = {"request_id": "request-9", "node": node, "kinds": ["x-count"], "wait_s": 30}
    headers = {"Authorization": f"Bearer {key}"}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(replica.first.http.post, f"{replica.url}/v1/node/claim", json=claim, headers=headers)
        while not replica.first.call("GET", "/v1/nodes", replica.first.keys.admin).json()["items"]:
            assert not waiting.done()  # the claim is in when its node is known
        replica.revoke(key)
        replica.clock.ahead_ms += WITHIN_MS
        reply = waiting.result(timeout=60)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
