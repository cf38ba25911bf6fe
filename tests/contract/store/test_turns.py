"""Turns are given at submission, and claims follow them."""

import threading
from collections import Counter
from dataclasses import replace

import pytest
from tests.fixtures.users import ANN, BOB
from tests.fixtures.work import Workshop

from giornata.control.attempts.reported_ends import release
from giornata.control.caller import Caller
from giornata.control.jobs.estimate import estimate
from giornata.control.jobs.read_jobs import get_job
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submit import submit, turn_of
from giornata.domain.reasons import Reason
from giornata.domain.routing import Turns
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.work import Lease, ReleaseAttempt
from giornata.store import schema


@pytest.fixture
def town(shop: Workshop) -> Workshop:
    shop.add_project("ann")
    shop.add_project("bob")
    return shop


def send(shop: Workshop, caller: Caller, *, priority: int = 0, kind: str = "x-own", count: int = 1) -> list[str]:
    request = SubmitJob(kind=kind, spec={}, priority=priority)
    made = []
    for _ in range(count):
        made.append(submit(shop.ctx, caller, request, None)[0].id)
        shop.clock.advance_s(0.001)
    return made


def turns(shop: Workshop, *job_ids: str) -> list[int]:
    return [shop.job(job_id)["turn"] for job_id in job_ids]


def next_lease(shop: Workshop) -> Lease:
    shop.clock.advance_s(0.001)
    return shop.lease(1, kinds=("x-own",))


def whose(shop: Workshop, leases: list[Lease]) -> list[str]:
    return [shop.job(lease.job_id)["project_id"] for lease in leases]


def test_a_project_that_comes_late_stands_near_the_head(town: Workshop) -> None:
    send(town, ANN, count=20)
    for _ in range(5):
        next_lease(town)
    late = send(town, BOB, count=2)
    assert turns(town, *late) == [6, 7]
    assert whose(town, [next_lease(town) for _ in range(6)]) == ["ann", "bob", "ann", "bob", "ann", "ann"]


def test_a_project_alone_sees_first_in_first_out(town: Workshop) -> None:
    made = send(town, ANN, count=5)
    assert turns(town, *made) == [1, 2, 3, 4, 5]
    assert [next_lease(town).job_id for _ in range(5)] == made
    assert turns(town, *send(town, ANN, count=2)) == [6, 7]


def test_the_position_in_the_queue_is_by_turns(town: Workshop) -> None:
    flood = send(town, ANN, count=10)
    (late,) = send(town, BOB)
    assert estimate(town.ctx, BOB, SubmitJob(kind="x-own", spec={})).queue_position == 4
    assert estimate(town.ctx, ANN, SubmitJob(kind="x-own", spec={})).queue_position == 12
    town.claim(1, kinds=("x-own", "x-none"))
    assert "position 1 " in (get_job(town.ctx, BOB, late).waiting_because or "")
    assert "position 10 " in (get_job(town.ctx, ANN, flood[-1]).waiting_because or "")
    assert turns(town, *send(town, BOB)) == [2], "looking took no turn"


def test_kinds_and_priorities_have_queues_of_their_own(town: Workshop) -> None:
    send(town, ANN, count=7)
    assert turns(town, *send(town, ANN, priority=1)) == [1]
    assert turns(town, *send(town, ANN, kind="x-other")) == [1]


def test_what_was_given_up_before_it_began_took_no_turn(town: Workshop) -> None:
    send(town, BOB, count=3)
    for job_id in send(town, ANN, count=50):
        cancel(town.ctx, ANN, job_id)
    assert turns(town, *send(town, ANN)) == [1]


def test_a_job_that_was_interrupted_keeps_its_turn_and_a_retry_gets_a_new_one(town: Workshop) -> None:
    first, second = send(town, ANN, count=2)
    lease = next_lease(town)
    assert lease.job_id == first
    release(town.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED))
    assert turns(town, first) == [1]
    assert next_lease(town).job_id == first, "before all that never ran"
    cancel(town.ctx, ANN, second)
    again = retry(town.ctx, ANN, second)
    assert turns(town, again.id) == [2]


def test_the_store_tells_what_a_turn_depends_on(town: Workshop) -> None:
    send(town, ANN, count=4)
    send(town, BOB)
    for _ in range(2):
        next_lease(town)
    town.add_job(kind="x-own", turn=99, only_machine_id="machine-9")
    town.add_job(kind="x-own", turn=0, interrupted=True)
    with town.store.read() as tx:
        found = tx.submission.turns("bob", kind="x-own", priority=0)
        none = tx.submission.turns("bob", kind="x-none", priority=0)
    assert found == Turns(head=2, recent=(1, 1), own=1)
    assert none == Turns(head=None, recent=(), own=None)


def test_a_job_for_one_machine_takes_no_turn(town: Workshop) -> None:
    (made,) = send(town, ANN)
    with town.store.begin() as tx:
        job = tx.job_reads.get(made, project_id="ann")
        assert job is not None
        assert turn_of(tx, job) == 2
        assert turn_of(tx, replace(job, only_machine_id="machine-1")) == 0


def test_submissions_of_one_project_at_once_get_a_turn_each(town: Workshop) -> None:
    """Otherwise who sends ten at once would get ten jobs at each turn."""
    start, each = threading.Barrier(6), 5

    def many() -> None:
        start.wait()
        for _ in range(each):
            submit(town.ctx, ANN, SubmitJob(kind="x-own", spec={}), None)

    threads = [threading.Thread(target=many) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given = Counter(row["turn"] for row in town.rows(schema.jobs))
    assert given == Counter(range(1, 6 * each + 1))


def test_only_submissions_of_the_same_project_wait(town: Workshop) -> None:
    if town.store.dialect_name == "sqlite":
        pytest.skip("SQLite has one writer")
    with town.store.begin() as tx:
        tx.submission.hold_project("ann")
        assert turns(town, *send(town, BOB)) == [1]
        town.add_job(project_id="ann")  # what only names the project does not wait either
