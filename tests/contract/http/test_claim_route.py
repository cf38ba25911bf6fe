"""Waiting for work."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.served import Served, a_dataset, serving

from giornata.api.settings import ApiSettings
from giornata.cli.ui.watch import sentence
from giornata.client.node import NodeClient
from giornata.protocol.node.work import Claim, ClaimReply, NodeInfo

WAIT_S = 20.0
JOB = {"kind": "x-count", "spec": {"steps": 5}}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server whose claims do not ask again by themselves: they have to be woken."""
    with serving(tmp_path, ApiSettings(claim_poll_s=WAIT_S, stream_poll_s=0.02)) as running:
        yield running


def claim(served: Served, *, wait_s: float, request_id: str = "request-1") -> ClaimReply:
    node = NodeInfo(node_id="node_00000001", machine_id="m-1", name="n-1")
    with httpx.Client(base_url=served.url) as http:
        wanted = Claim(request_id=request_id, node=node, kinds=("x-count",), wait_s=wait_s)
        return NodeClient(http, node_key=served.keys.node).claim(wanted)


def until_waiting(served: Served) -> None:
    """The node's row is written by the claim's first look at the queue, before which it listens already."""
    for _ in range(2000):
        if list(served.client(served.keys.admin).nodes()):
            return
    raise AssertionError("the claim never began")


def test_claim_without_a_wait_is_answered_at_once_when_no_job_waits(served: Served) -> None:
    reply = claim(served, wait_s=0)
    assert (reply.lease, reply.reason) == (None, "empty-queue")


def test_a_waiting_claim_is_woken_by_a_submission(served: Served) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, served, wait_s=WAIT_S)
        until_waiting(served)
        began_s = time.monotonic()
        job = served.client().submit(JOB["spec"], kind="x-count")
        lease = waiting.result().lease
    assert lease is not None
    assert lease.job_id == job.id
    assert time.monotonic() - began_s < WAIT_S / 2


@pytest.mark.parametrize("end", ["release", "fail"])
def test_a_waiting_claim_is_woken_when_a_job_comes_back(served: Served, end: str) -> None:
    job = served.client().submit(JOB["spec"], kind="x-count")
    node = {"node_id": "node_00000002", "machine_id": "m-2", "name": "n-2"}
    body = {"request_id": "request-2", "node": node, "kinds": ["x-count"]}
    first = served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()["lease"]
    report = {"fail": {"reason": "node_disk", "message": "full"}, "release": {}}[end]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, served, wait_s=WAIT_S)
        while len(list(served.client(served.keys.admin).nodes())) < 2:
            pass
        began_s = time.monotonic()
        served.call("POST", f"/v1/node/attempts/{first['attempt_id']}/{end}", first["token"], json=report)
        lease = waiting.result().lease
    assert lease is not None
    assert (lease.job_id, lease.attempt) == (job.id, 2)
    assert time.monotonic() - began_s < WAIT_S / 2


def test_a_waiting_claim_is_let_go_when_the_server_closes(served: Served) -> None:
    began_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claim, served, wait_s=WAIT_S)
        until_waiting(served)
        served.app.state.wakeup.close()
        assert waiting.result().lease is None
    assert time.monotonic() - began_s < WAIT_S / 2


def test_d7_a_claim_whose_reply_was_lost_gets_the_same_lease(served: Served) -> None:
    served.client().submit(JOB["spec"], kind="x-count")
    served.client().submit(JOB["spec"], kind="x-count")
    first, again = claim(served, wait_s=0).lease, claim(served, wait_s=0).lease
    assert first is not None
    assert again is not None
    assert (first.attempt_id, first.token) == (again.attempt_id, again.token)
    assert len(list(served.client().jobs(states=["queued"]))) == 1  # type: ignore[list-item]


def ask(served: Served, number: int, *, node_id: int = 1, wait_s: float = 0, **claim: object) -> dict[str, object]:
    """A claim for a job to train; the reply."""
    node = {"node_id": f"node_{node_id:08d}", "machine_id": f"m-{node_id}", "name": f"n-{node_id}"}
    body = {"request_id": f"request-{number}", "node": node, "kinds": ["train"], "wait_s": wait_s, **claim}
    reply: dict[str, object] = served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()
    return reply


def test_node_waiting_for_companion_is_woken_only_by_job_with_same_joint_key(served: Served, tmp_path: Path) -> None:
    client = served.client()
    spec = {"model": "m", "dataset": a_dataset(client, tmp_path).id, "instance_prompt": "sks", "max_train_steps": 5}
    client.submit(spec)
    first: Any = ask(served, 1)["lease"]
    nothing = ask(served, 2, joint_key=first["joint_key"])
    assert (nothing["lease"], nothing["reason"]) == (None, "no-such-companion")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, served, 3, wait_s=WAIT_S, joint_key=first["joint_key"])
        while not served.app.state.wakeup.waiting:
            pass
        began_s = time.monotonic()
        client.submit(spec | {"share_batch": False})
        job = client.submit(spec | {"rank": 7})
        second: Any = waiting.result()["lease"]
    assert time.monotonic() - began_s < WAIT_S / 2
    assert (second["job_id"], second["joint_key"]) == (job.id, first["joint_key"])
    report = {"reason": "crashed", "message": "x", "together": [first["attempt_id"], second["attempt_id"]]}
    for lease in (first, second):
        url = f"/v1/node/attempts/{lease['attempt_id']}/fail"
        assert served.call("POST", url, lease["token"], json=report).json() == {"job_state": "queued"}
        (told,) = [event for event in client.events(lease["job_id"]) if event.type == "job.requeued"]
        assert "alone from now on: one fault (crashed) ended 2 jobs" in sentence(told)
    assert ask(served, 4, joint_key=first["joint_key"])["reason"] == "no-such-companion"
    alone: Any = ask(served, 5)["lease"]
    assert (alone["job_id"], alone["joint_key"]) == (first["job_id"], None)


def test_node_waiting_for_companion_does_not_keep_job_from_node_that_takes_any(
    served: Served, tmp_path: Path
) -> None:
    client = served.client()
    spec = {"model": "m", "dataset": a_dataset(client, tmp_path).id, "instance_prompt": "sks", "max_train_steps": 5}
    client.submit(spec)
    first: Any = ask(served, 1)["lease"]
    with ThreadPoolExecutor(2) as pool:
        companion = pool.submit(ask, served, 2, wait_s=WAIT_S, joint_key=first["joint_key"])
        _until(lambda: served.app.state.wakeup.waiting == 1)
        anything = pool.submit(ask, served, 3, node_id=2, wait_s=WAIT_S)
        _until(lambda: served.app.state.wakeup.waiting == 2)
        _until(lambda: len(list(served.client(served.keys.admin).nodes())) == 2)
        began_s = time.monotonic()
        job = client.submit(spec | {"share_batch": False})
        lease: Any = anything.result()["lease"]
        assert lease["job_id"] == job.id
        assert time.monotonic() - began_s < WAIT_S / 2
        served.app.state.wakeup.close()
        assert companion.result()["lease"] is None


def _until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends_s


def test_a_client_that_goes_away_takes_no_job_with_it(tmp_path: Path) -> None:
    with serving(tmp_path, ApiSettings(claim_poll_s=0.02)) as served:
        node = {"node_id": "node_00000001", "machine_id": "m", "name": "n"}
        body = {"request_id": "request-1", "node": node, "kinds": ["x-count"], "wait_s": WAIT_S}
        with pytest.raises(httpx.ReadTimeout):
            served.call("POST", "/v1/node/claim", served.keys.node, json=body, timeout=0.5)
        ends_s = time.monotonic() + WAIT_S / 2
        while served.app.state.wakeup.waiting and time.monotonic() < ends_s:
            pass
        assert served.app.state.wakeup.waiting == 0
        job = served.client().submit(JOB["spec"], kind="x-count")
        assert served.client().get_job(job.id).state == "queued"
