"""One fault of one engine that ends several attempts: nobody is blamed for it, and nobody shares a batch again."""

import pytest
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail
from giornata.domain.jobs.reasons import AMBIGUOUS_WHEN_SHARED, BAN, REPORTABLE_FAILURES, RETRY, STRIKE, Reason
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Lease
from giornata.store import schema


def together(rig: StoreRig, count: int = 2, node: int = 1) -> list[Lease]:
    """Leases of so many new jobs on one node."""
    for _ in range(count):
        rig.add_job(joint_key="key")
    return [rig.lease(node, joint_key="key") for _ in range(count)]


def failing(rig: StoreRig, lease: Lease, *others: Lease, reason: Reason = Reason.CRASHED) -> str:
    named = tuple(each.attempt_id for each in (lease, *others)) if others else ()
    return fail(rig.ctx, lease.attempt_id, FailAttempt(reason=reason, message="it broke", together=named)).job_state


@pytest.mark.parametrize("reason", sorted(REPORTABLE_FAILURES))
def test_the_reason_decides_whether_anybody_is_blamed(rig: StoreRig, reason: Reason) -> None:
    leases = together(rig, 3)
    states = {failing(rig, lease, *leases, reason=reason) for lease in reversed(leases)}
    jobs = rig.rows(schema.jobs)
    if not AMBIGUOUS_WHEN_SHARED[reason]:
        assert states == {"queued" if RETRY[reason] else "failed"}
        assert {job["joint_key"] for job in jobs} == {"key"}
        assert len(rig.rows(schema.bans)) == 3 * BAN[reason]
        assert len(rig.rows(schema.strikes)) == 3 * STRIKE[reason]
        return
    assert states == {"queued"}
    assert {(job["joint_key"], job["fruitless"], job["interrupted"]) for job in jobs} == {(None, 0, True)}
    assert rig.rows(schema.bans) == []
    assert len(rig.rows(schema.strikes)) == STRIKE[reason], "once, however many it ended"
    for lease in leases:
        assert rig.events(lease.job_id)[-2:] == ["attempt.ended", "job.requeued"]
        told = rig.last_event(lease.job_id, "job.requeued")["alone_because"]
        assert f"({reason}) ended 3 jobs" in told
        assert rig.attempt(lease.attempt_id)["shared_fault"] is True


def test_the_job_goes_on_alone_on_the_same_machine_if_need_be(rig: StoreRig) -> None:
    one, two = together(rig)
    rig.checkpoint(one, 5)
    failing(rig, one, two)
    assert rig.claim(1, joint_key="key").reason == "no-such-companion"
    again = rig.lease(1)
    assert (again.job_id, again.joint_key, again.checkpoints[0].step) == (one.job_id, None, 5)


def test_shared_fault_counts_no_machine_as_tried_and_applies_to_a_job_once(rig: StoreRig) -> None:
    one, two = together(rig)
    assert failing(rig, one, two) == "queued"
    states = []
    for machine in (2, 3, 4):  # three machines are the limit
        alone = rig.lease(machine)
        assert alone.job_id == one.job_id
        (beside,) = together(rig, 1, machine)
        states.append(failing(rig, alone, beside))  # one that is to be alone is in no such thing, whatever is said
    assert states == ["queued", "queued", "failed"]
    assert "3 different machines" in rig.job(one.job_id)["error"]
    assert len(rig.rows(schema.bans)) == 3


def test_a_job_that_turns_out_to_be_good_blames_no_machine_for_it(rig: StoreRig) -> None:
    one, two = together(rig)
    failing(rig, one, two)
    failing(rig, rig.lease(2))
    complete(rig.ctx, rig.lease(3).attempt_id, CompleteAttempt(step=1))
    assert [row["machine_id"] for row in rig.rows(schema.strikes)] == ["machine-2"]


def test_new_steps_count_and_old_fruitless_ends_stay_counted(rig: StoreRig) -> None:
    one, two = together(rig)
    with rig.store.begin() as tx:
        for lease in (one, two):
            tx.jobs.update(lease.job_id, fruitless=4)
    rig.checkpoint(one, 5)
    failing(rig, one, two)
    failing(rig, two, one)
    assert [rig.job(lease.job_id)["fruitless"] for lease in (one, two)] == [0, 4]


def test_shared_fault_ignores_named_attempts_that_are_not_on_the_node(rig: StoreRig) -> None:
    (mine,), (elsewhere,) = together(rig, 1, node=1), together(rig, 1, node=2)
    stranger = elsewhere.model_copy(update={"attempt_id": "att_never_there"})
    failing(rig, mine, elsewhere, stranger, mine)
    job = rig.job(mine.job_id)
    assert (job["joint_key"], job["fruitless"]) == ("key", 1)
    assert len(rig.rows(schema.bans)) == 1


def test_a_report_that_comes_twice_counts_once(rig: StoreRig) -> None:
    leases = together(rig)
    for lease in leases:
        failing(rig, lease, *leases, reason=Reason.NODE_DRIVER)
    before = rig.whole_database()
    for lease in leases:
        assert failing(rig, lease, *leases, reason=Reason.NODE_DRIVER) == "queued"
    assert rig.whole_database() == before
