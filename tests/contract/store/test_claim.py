"""The claim. D-numbers name the faults of this system's ancestor that a test keeps out."""

import threading
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.store_rig import PRICE, StoreRig

from giornata.control.access.authenticate import verify
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.domain.errors import Conflict, Forbidden, Unauthenticated
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Heartbeat
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema


def test_a_claim_takes_the_job_and_says_all_that_the_node_needs(rig: StoreRig) -> None:
    with rig.store.begin() as tx:
        tx.connection.execute(
            sa.insert(schema.datasets).values(
                id="ds_a",
                project_id=ROOT_PROJECT,
                labels={},
                notes=[],
                picture_count=2,
                size_bytes=2,
                created_at_ms=1,
            )
        )
    for position, name in enumerate(["b.png", "a.png"]):
        blob = rig.add_blob(name.encode())
        with rig.store.begin() as tx:
            item = {"name": name, "caption": None, "sha256": blob.sha256, "position": position}
            tx.connection.execute(
                sa.insert(schema.dataset_items).values(dataset_id="ds_a", project_id=ROOT_PROJECT, **item)
            )
    job_id = rig.add_job(spec={"dataset": "ds_a", "class_dataset": "ds_a", "rank": 4}, committed_step=0)
    lease = rig.lease(1)
    assert (lease.job_id, lease.attempt, lease.kind) == (job_id, 1, "train")
    assert lease.spec["rank"] == 4
    assert [(given.role, given.name) for given in lease.inputs] == [
        ("instance", "b.png"),
        ("instance", "a.png"),
        ("class", "b.png"),
        ("class", "a.png"),
    ]
    assert lease.inputs[0].download.request.method == "GET"
    verify(rig.ctx, lease.attempt_id, lease.token)
    assert lease.renew_every_s == rig.ctx.policy.lease_s / 3
    assert rig.job(job_id)["state"] == "running"
    assert rig.events(job_id) == ["attempt.started"]
    (bill,) = rig.rows(schema.ledger)
    assert (bill["price_micro_usd_per_hour"], bill["amount_micro_usd"]) == (PRICE, 0)


def test_a_token_is_good_for_its_attempt_only(rig: StoreRig) -> None:
    rig.add_job()
    rig.add_job()
    one, two = rig.lease(1), rig.lease(2)
    for attempt_id, token in [
        (one.attempt_id, two.token),
        (one.attempt_id, f"{one.attempt_id}.{two.token.split('.')[1]}"),
        (one.attempt_id, one.token[:-1] + ("0" if one.token[-1] != "0" else "1")),
        (one.attempt_id, one.attempt_id),
        (one.attempt_id, ""),
        (one.attempt_id, "é"),
    ]:
        with pytest.raises(Unauthenticated):
            verify(rig.ctx, attempt_id, token)


def test_d1_of_concurrent_claims_each_job_is_had_exactly_once(rig: StoreRig) -> None:
    ids = {rig.add_job() for _ in range(40)}
    got: list[str] = []
    errors: list[Exception] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        try:
            while True:
                reply = rig.claim(rig.node(number, places=40))
                if reply.lease is not None:
                    got.append(reply.lease.job_id)
                elif not rig.rows(schema.jobs, state="queued"):
                    return
        except Exception as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(got) == 40
    assert set(got) == ids
    assert len(rig.rows(schema.attempts)) == 40


def test_d7_a_repeated_claim_gets_the_same_lease_and_token(rig: StoreRig) -> None:
    rig.add_job()
    rig.add_job()
    first = rig.lease(1, request_id="request-a")
    rig.clock.advance_s(20)
    again = rig.lease(1, request_id="request-a")
    assert (again.attempt_id, again.token, again.job_id) == (first.attempt_id, first.token, first.job_id)
    assert len(rig.rows(schema.attempts)) == 1
    # The node counts its lease from the second request; so does the server.
    expires_ms = rig.clock.now_ms() + rig.ctx.policy.lease_s * 1000
    assert rig.attempt(first.attempt_id)["lease_expires_at_ms"] == expires_ms


def test_d7_concurrent_repeats_of_one_claim_get_one_lease(rig: StoreRig) -> None:
    for _ in range(5):
        rig.add_job()
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda: got.append(rig.lease(1, request_id="request-a").attempt_id)) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 5
    assert len(set(got)) == 1


def test_d7_a_claim_repeated_after_its_attempt_ended_gets_nothing(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1, request_id="request-a")
    fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DISK, message="full"))
    reply = rig.claim(1, request_id="request-a")
    assert (reply.lease, reply.reason) == (None, "claim-repeated-after-end")


def test_d9_a_banned_job_at_the_head_does_not_hide_the_next(rig: StoreRig) -> None:
    banned, free = rig.add_job(), rig.add_job()
    lease = rig.lease(1)
    assert lease.job_id == banned
    fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_VRAM, message="12 GB"))
    assert rig.lease(1).job_id == free


def test_d10_any_number_of_bans_hides_no_job(rig: StoreRig) -> None:
    ids = [rig.add_job() for _ in range(30)]
    last = rig.add_job()
    with rig.store.begin() as tx:
        for job_id in ids:
            tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert rig.lease(1).job_id == last


def test_d11_the_reply_says_that_only_this_machine_is_in_the_way(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_VRAM, message="12 GB"))
    assert rig.claim(1).reason == "banned"
    assert rig.claim(rig.node(9, machine="machine-1")).reason == "banned"
    assert rig.lease(2).job_id == job_id
    assert rig.claim(1).reason == "empty-queue"


def test_an_empty_queue_and_one_of_other_kinds_are_told_apart(rig: StoreRig) -> None:
    assert rig.claim(1).reason == "empty-queue"
    rig.add_job(kind="x-count")
    assert rig.claim(1).reason == "no-such-kind"
    assert rig.lease(1, kinds=("train", "x-count")).kind == "x-count"


def test_d13_looking_and_taking_agree(rig: StoreRig) -> None:
    """A node that is known is answered without a write when there is nothing, and served when there is."""
    rig.claim(1)
    before = rig.whole_database()
    rig.clock.advance_s(1)
    assert rig.claim(1).reason == "empty-queue"
    assert rig.whole_database() == before
    job_id = rig.add_job()
    with rig.store.begin() as tx:
        tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert rig.claim(1).reason == "banned"
    assert rig.lease(2).job_id == job_id


def test_a_node_that_waits_is_seen_again_now_and_then(rig: StoreRig) -> None:
    rig.claim(1)
    rig.clock.advance_s(11)
    rig.claim(1)
    (node,) = rig.rows(schema.nodes)
    assert node["last_seen_at_ms"] == rig.clock.now_ms()


def test_d19_when_the_reply_cannot_be_built_nobody_has_the_job(rig: StoreRig) -> None:
    class NoBlobs:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionError("storage is away")

    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.checkpoint(lease, 10)
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    before = rig.whole_database()
    broken = Context(
        store=rig.ctx.store,
        blobs=NoBlobs(),  # type: ignore[arg-type]
        clock=rig.clock,
        names=rig.ctx.names,
        pictures=rig.ctx.pictures,
    )
    good, rig.ctx = rig.ctx, broken
    with pytest.raises(ConnectionError):
        rig.claim(2)
    rig.ctx = good
    assert rig.whole_database() == before
    assert rig.lease(2).job_id == job_id


def test_d21_the_machine_that_just_failed_the_job_does_not_get_it_again(rig: StoreRig) -> None:
    rig.add_job()
    for _ in range(3):
        reply = rig.claim(1)
        if reply.lease is not None:
            fail(rig.ctx, reply.lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message="segfault"))
    assert len(rig.rows(schema.attempts)) == 1


def test_d29_d106_taking_a_lapsed_job_ends_the_silent_attempt_and_says_so(rig: StoreRig) -> None:
    job_id = rig.add_job()
    first = rig.lease(1)
    rig.clock.advance_s(30)
    heartbeat(rig.ctx, first.attempt_id, Heartbeat(step=5))
    rig.clock.advance_s(100)
    assert lapse_leases(rig.ctx) == 1
    assert rig.job(job_id)["state"] == "queued"
    second = rig.lease(2)
    assert second.attempt == 2
    ended = rig.attempt(first.attempt_id)
    assert (ended["reason"], ended["ended_at_ms"]) == ("lease_expired", rig.clock.now_ms())
    assert rig.events(job_id) == [
        "attempt.started",
        "attempt.first_step",
        "attempt.lapsed",
        "attempt.ended",
        "attempt.started",
    ]
    bill = rig.rows(schema.ledger, attempt_id=first.attempt_id)
    assert [row["amount_micro_usd"] for row in bill] == [30 * 100]  # up to its last sign of life


def test_the_same_node_started_anew_supersedes_its_own_attempt(rig: StoreRig) -> None:
    rig.add_job()
    first = rig.lease(1)
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    rig.lease(rig.node(7, machine="machine-1", name="node-1"))
    assert rig.attempt(first.attempt_id)["reason"] == "superseded"


def test_a_draining_node_gets_no_more_work(rig: StoreRig) -> None:
    job_id = rig.add_job()
    rig.claim(1, kinds=("x-none",))
    with rig.store.begin() as tx:
        tx.connection.execute(sa.update(schema.nodes).values(draining=True))
    for seconds in (0, 20):  # told from what was read, and from what was written
        rig.clock.advance_s(seconds)
        reply = rig.claim(1)
        assert (reply.lease, reply.reason, reply.drain) == (None, "draining", True)
    assert rig.job(job_id)["state"] == "queued"


@pytest.mark.parametrize("places", [1, 4])
def test_a_node_that_holds_as_many_leases_as_it_may_gets_none_before_one_ends(rig: StoreRig, places: int) -> None:
    most = places + 3
    jobs = [rig.add_job() for _ in range(most + 2)]
    node = rig.node(1, places=places)
    leases = [rig.lease(node) for _ in range(most)]
    for seconds in (0, 20):  # told from what was read, and from what was written
        rig.clock.advance_s(seconds)
        reply = rig.claim(node)
        assert (reply.lease, reply.reason) == (None, "leases-held")
        assert f"({most} with --places {places})" in (reply.detail or "")
    assert [rig.job(job_id)["state"] for job_id in jobs[most:]] == ["queued", "queued"]
    assert rig.lease(2).job_id == jobs[most]
    complete(rig.ctx, leases[0].attempt_id, CompleteAttempt(step=1))
    assert rig.lease(node).job_id == jobs[most + 1]


def test_a_node_that_holds_as_many_leases_as_it_may_gets_a_lost_reply_again(rig: StoreRig) -> None:
    for _ in range(5):
        rig.add_job()
    leases = {f"request-{number}": rig.lease(1, request_id=f"request-{number}") for number in range(4)}
    assert rig.claim(1).reason == "leases-held"
    again = {request_id: rig.lease(1, request_id=request_id) for request_id in leases}
    assert [it.attempt_id for it in again.values()] == [it.attempt_id for it in leases.values()]


def test_leases_that_ran_out_keep_a_node_from_nothing(rig: StoreRig) -> None:
    for _ in range(4):
        rig.add_job()
        rig.lease(1)
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    rig.add_job(priority=9)
    assert rig.claim(1).lease is not None


def test_d35_a_node_of_a_project_works_for_that_project_only(rig: StoreRig) -> None:
    rig.add_project("a")
    foreign = rig.add_job(priority=9)
    own = rig.add_job(project_id="a")
    caller = Caller(project_id="a", scopes=Scope.NODE.reach, key_id="k")
    assert rig.lease(1, caller=caller).job_id == own
    assert rig.claim(1, caller=caller).reason == "empty-queue"
    assert rig.lease(2).job_id == foreign


def test_a_node_id_of_another_project_cannot_be_taken_over(rig: StoreRig) -> None:
    rig.add_project("a")
    rig.claim(1)
    with pytest.raises(Conflict, match="another project"):
        rig.claim(1, caller=Caller(project_id="a", scopes=Scope.NODE.reach, key_id="k"))


@pytest.mark.parametrize("scope", [Scope.ADMIN, Scope.MEMBER])
def test_claim_without_node_key_is_forbidden(rig: StoreRig, scope: Scope) -> None:
    rig.add_job()
    with pytest.raises(Forbidden):
        rig.claim(1, caller=Caller(project_id=ROOT_PROJECT, scopes=scope.reach, key_id="k"))
