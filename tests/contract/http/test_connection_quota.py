"""How many streams and waiting claims a key may have open."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.contract.http.test_streams import STREAM, submitted
from tests.fixtures.served import Served, serving

from giornata.api.requests.open_connections import ConnectionQuota
from giornata.api.settings import ApiSettings
from giornata.domain.errors import TooMany

MOST = 2
LONG_S = 20.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    settings = ApiSettings(
        stream_poll_s=0.02, keep_alive_s=0.05, claim_poll_s=0.05, streams_per_key=MOST, waiting_claims_per_key=MOST
    )
    with serving(tmp_path, settings) as running:
        yield running


@contextlib.contextmanager
def following(served: Served, job_id: str, what: str = "events", key: str | None = None) -> Iterator[httpx.Response]:
    headers = {**STREAM, "Authorization": f"Bearer {key or served.keys.member}"}
    with served.http.stream("GET", f"{served.url}/v1/jobs/{job_id}/{what}", headers=headers) as response:
        chunks = response.iter_bytes()  # held: whoever forgets it hangs up
        next(chunks)
        yield response


def claim(served: Served, number: int, *, wait_s: float, key: str | None = None) -> httpx.Response:
    node = {"node_id": f"node_{number:08d}", "machine_id": f"m-{number}", "name": "n"}
    body = {"request_id": f"request-{number}", "node": node, "kinds": ["x-count"], "wait_s": wait_s}
    return served.call("POST", "/v1/node/claim", key or served.keys.node, json=body)


def until(served: Served, reached: Callable[[], bool]) -> None:
    """A round trip between two looks gives the server time."""
    for _ in range(5000):
        if reached():
            return
        served.call("GET", "/healthz", None)
    raise AssertionError("it never came to that")


def refused(response: httpx.Response) -> bool:
    if response.status_code != 429:
        return False
    assert (response.json()["code"], response.json()["retryable"]) == ("too-many", True)
    assert int(response.headers["retry-after"]) > 0
    return True


def test_a_key_has_so_many_streams_and_one_that_is_closed_makes_room(served: Served) -> None:
    job_id = submitted(served)
    path = f"/v1/jobs/{job_id}/events"
    with following(served, job_id), following(served, job_id, "logs"):
        for what in ("events", "logs"):
            got = served.call("GET", f"/v1/jobs/{job_id}/{what}", served.keys.member, headers=STREAM)
            assert refused(got)
        assert served.call("GET", path, served.keys.member).status_code == 200, "a page is no stream"
        with following(served, job_id, key=served.keys.admin):
            pass  # another key of the same project has its own
    # Both clients are gone, which the server finds out when it next sends something.
    for _ in range(MOST):
        until(served, lambda: not served.app.state.streams._taken)
        with following(served, job_id), following(served, job_id):
            pass


def test_streams_that_end_or_never_begin_make_room(served: Served) -> None:
    job_id = submitted(served)
    served.client().cancel(job_id)
    last = [event.id for event in served.client().events(job_id)][-1]
    for _ in range(2 * MOST):
        assert served.call("GET", f"/v1/jobs/{job_id}/events", served.keys.member, headers=STREAM).is_success
        over = {**STREAM, "Last-Event-ID": str(last)}
        got = served.call("GET", f"/v1/jobs/{job_id}/events", served.keys.member, headers=over)
        assert got.status_code == 204
        assert served.call("GET", "/v1/jobs/none/events", served.keys.member, headers=STREAM).status_code == 404


def test_a_key_has_so_many_claims_that_wait(served: Served) -> None:
    with ThreadPoolExecutor(MOST) as pool:
        waiting = [pool.submit(claim, served, number, wait_s=LONG_S) for number in range(MOST)]
        until(served, lambda: served.app.state.wakeup.waiting == MOST)
        assert refused(claim(served, 8, wait_s=LONG_S))
        assert claim(served, 8, wait_s=0).json()["reason"] == "empty-queue", (
            "a claim that does not wait does not count"
        )
        assert claim(served, 9, wait_s=0.01, key=served.keys.other_node).status_code == 200
        served.app.state.wakeup.close()
        assert all(each.result().status_code == 200 for each in waiting)
    assert claim(served, 8, wait_s=0.01).status_code == 200


def test_quota_forgets_keys_without_connections() -> None:
    quota = ConnectionQuota("things", most=1)
    with quota.taken("a"), quota.taken("b"), pytest.raises(TooMany, match="1 things"), quota.taken("a"):
        pass
    with contextlib.suppress(KeyError), quota.taken("a"):
        raise KeyError
    assert quota._taken == {}
