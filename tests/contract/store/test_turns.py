"""Turns are given at submission, and claims follow them."""

import threading
from collections import Counter
from dataclasses import replace

import pytest
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ANN, BOB

from giornata.control.attempts.ending.reported_ends import release
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.estimate import estimate
from giornata.control.jobs.submission.submit import submit, turn_of
from giornata.domain.jobs.reasons import Reason
from giornata.domain.jobs.routing import Turns
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.work import Lease, ReleaseAttempt
from giornata.store import schema


@pytest.fixture
def crowded_rig(rig: StoreRig) -> StoreRig:
    rig.add_project("ann")
    rig.add_project("bob")
    return rig


def send(rig: StoreRig, caller: Caller, *, priority: int = 0, kind: str = "x-own", count: int = 1) -> list[str]:
    request = SubmitJob(kind=kind, spec={}, priority=priority)
    made = []
    for _ in range(count):
        made.append(submit(rig.ctx, caller, request, None)[0].id)
        rig.clock.advance_s(0.001)
    return made


def turns(rig: StoreRig, *job_ids: str) -> list[int]:
    return [rig.job(job_id)["turn"] for job_id in job_ids]


def next_lease(rig: StoreRig) -> Lease:
    rig.clock.advance_s(0.001)
    return rig.lease(rig.node(1, places=20), kinds=("x-own",))


def whose(rig: StoreRig, leases: list[Lease]) -> list[str]:
    return [rig.job(lease.job_id)["project_id"] for lease in leases]


def test_a_project_that_comes_late_stands_near_the_head(crowded_rig: StoreRig) -> None:
    send(crowded_rig, ANN, count=20)
    for _ in range(5):
        next_lease(crowded_rig)
    late = send(crowded_rig, BOB, count=2)
    assert turns(crowded_rig, *late) == [6, 7]
    assert whose(crowded_rig, [next_lease(crowded_rig) for _ in range(6)]) == [
        "ann",
        "bob",
        "ann",
        "bob",
        "ann",
        "ann",
    ]


def test_a_project_alone_sees_first_in_first_out(crowded_rig: StoreRig) -> None:
    made = send(crowded_rig, ANN, count=5)
    assert turns(crowded_rig, *made) == [1, 2, 3, 4, 5]
    assert [next_lease(crowded_rig).job_id for _ in range(5)] == made
    assert turns(crowded_rig, *send(crowded_rig, ANN, count=2)) == [6, 7]


def test_the_position_in_the_queue_is_by_turns(crowded_rig: StoreRig) -> None:
    flood = send(crowded_rig, ANN, count=10)
    (late,) = send(crowded_rig, BOB)
    assert estimate(crowded_rig.ctx, BOB, SubmitJob(kind="x-own", spec={})).queue_position == 4
    assert estimate(crowded_rig.ctx, ANN, SubmitJob(kind="x-own", spec={})).queue_position == 12
    crowded_rig.claim(1, kinds=("x-own", "x-none"))
    assert "position 1 " in (get_job(crowded_rig.ctx, BOB, late).waiting_because or "")
    assert "position 10 " in (get_job(crowded_rig.ctx, ANN, flood[-1]).waiting_because or "")
    assert turns(crowded_rig, *send(crowded_rig, BOB)) == [2], "looking took no turn"


def test_kinds_and_priorities_have_queues_of_their_own(crowded_rig: StoreRig) -> None:
    send(crowded_rig, ANN, count=7)
    assert turns(crowded_rig, *send(crowded_rig, ANN, priority=1)) == [1]
    assert turns(crowded_rig, *send(crowded_rig, ANN, kind="x-other")) == [1]


def test_jobs_canceled_before_they_began_take_no_turn(crowded_rig: StoreRig) -> None:
    send(crowded_rig, BOB, count=3)
    for job_id in send(crowded_rig, ANN, count=50):
        cancel(crowded_rig.ctx, ANN, job_id)
    assert turns(crowded_rig, *send(crowded_rig, ANN)) == [1]


def test_a_job_that_was_interrupted_keeps_its_turn_and_a_retry_gets_a_new_one(crowded_rig: StoreRig) -> None:
    first, second = send(crowded_rig, ANN, count=2)
    lease = next_lease(crowded_rig)
    assert lease.job_id == first
    release(crowded_rig.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED))
    assert turns(crowded_rig, first) == [1]
    assert next_lease(crowded_rig).job_id == first, "before all that never ran"
    cancel(crowded_rig.ctx, ANN, second)
    again = retry(crowded_rig.ctx, ANN, second)
    assert turns(crowded_rig, again.id) == [2]


def test_the_store_tells_what_a_turn_depends_on(crowded_rig: StoreRig) -> None:
    send(crowded_rig, ANN, count=4)
    send(crowded_rig, BOB)
    for _ in range(2):
        next_lease(crowded_rig)
    crowded_rig.add_job(kind="x-own", turn=99, only_machine_id="machine-9")
    crowded_rig.add_job(kind="x-own", turn=0, interrupted=True)
    with crowded_rig.store.read() as tx:
        found = tx.submission.turns("bob", kind="x-own", priority=0)
        none = tx.submission.turns("bob", kind="x-none", priority=0)
    assert found == Turns(head=2, recent=(1, 1), own=1)
    assert none == Turns(head=None, recent=(), own=None)


def test_a_job_for_one_machine_takes_no_turn(crowded_rig: StoreRig) -> None:
    (made,) = send(crowded_rig, ANN)
    with crowded_rig.store.begin() as tx:
        job = tx.job_reads.get(made, project_id="ann")
        assert job is not None
        assert turn_of(tx, job) == 2
        assert turn_of(tx, replace(job, only_machine_id="machine-1")) == 0


def test_submissions_of_one_project_at_once_get_a_turn_each(crowded_rig: StoreRig) -> None:
    """Otherwise who sends ten at once would get ten jobs at each turn."""
    start, each = threading.Barrier(6), 5

    def many() -> None:
        start.wait()
        for _ in range(each):
            submit(crowded_rig.ctx, ANN, SubmitJob(kind="x-own", spec={}), None)

    threads = [threading.Thread(target=many) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given = Counter(row["turn"] for row in crowded_rig.rows(schema.jobs))
    assert given == Counter(range(1, 6 * each + 1))


def test_submission_waits_only_for_submissions_of_the_same_project(crowded_rig: StoreRig) -> None:
    if crowded_rig.store.dialect_name == "sqlite":
        pytest.skip("SQLite has one writer")
    with crowded_rig.store.begin() as tx:
        tx.submission.hold_project("ann")
        assert turns(crowded_rig, *send(crowded_rig, BOB)) == [1]
        crowded_rig.add_job(project_id="ann")  # what only names the project does not wait either
