"""One fault of one engine that ends several attempts: nobody is blamed for it, and nobody shares a batch again."""

import pytest
from tests.fixtures.work import Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.reported_ends import fail
from giornata.domain.reasons import AMBIGUOUS_WHEN_SHARED, BAN, REPORTABLE_FAILURES, RETRY, STRIKE, Reason
from giornata.protocol.work import CompleteAttempt, FailAttempt, Lease
from giornata.store import schema


def together(shop: Workshop, count: int = 2, node: int = 1) -> list[Lease]:
    """Leases of so many new jobs on one node."""
    for _ in range(count):
        shop.add_job(joint_key="key")
    return [shop.lease(node, joint_key="key") for _ in range(count)]


def failing(shop: Workshop, lease: Lease, *others: Lease, reason: Reason = Reason.CRASHED) -> str:
    named = tuple(each.attempt_id for each in (lease, *others)) if others else ()
    return fail(shop.ctx, lease.attempt_id, FailAttempt(reason=reason, message="it broke", together=named)).job_state


@pytest.mark.parametrize("reason", sorted(REPORTABLE_FAILURES))
def test_the_reason_decides_whether_anybody_is_blamed(shop: Workshop, reason: Reason) -> None:
    leases = together(shop, 3)
    states = {failing(shop, lease, *leases, reason=reason) for lease in reversed(leases)}
    jobs = shop.rows(schema.jobs)
    if not AMBIGUOUS_WHEN_SHARED[reason]:
        assert states == {"queued" if RETRY[reason] else "failed"}
        assert {job["joint_key"] for job in jobs} == {"key"}
        assert len(shop.rows(schema.bans)) == 3 * BAN[reason]
        assert len(shop.rows(schema.strikes)) == 3 * STRIKE[reason]
        return
    assert states == {"queued"}
    assert {(job["joint_key"], job["fruitless"], job["interrupted"]) for job in jobs} == {(None, 0, True)}
    assert shop.rows(schema.bans) == []
    assert len(shop.rows(schema.strikes)) == STRIKE[reason], "once, however many it ended"
    for lease in leases:
        assert shop.events(lease.job_id)[-2:] == ["attempt.ended", "job.requeued"]
        told = shop.last_event(lease.job_id, "job.requeued")["alone_because"]
        assert f"({reason}) ended 3 jobs" in told
        assert shop.attempt(lease.attempt_id)["shared_fault"] is True


def test_the_job_goes_on_alone_on_the_same_machine_if_need_be(shop: Workshop) -> None:
    one, two = together(shop)
    shop.checkpoint(one, 5)
    failing(shop, one, two)
    assert shop.claim(1, joint_key="key").reason == "no-such-companion"
    again = shop.lease(1)
    assert (again.job_id, again.joint_key, again.checkpoints[0].step) == (one.job_id, None, 5)


def test_it_is_no_machine_that_was_tried_and_happens_to_a_job_once(shop: Workshop) -> None:
    one, two = together(shop)
    assert failing(shop, one, two) == "queued"
    states = []
    for machine in (2, 3, 4):  # three machines are the limit
        alone = shop.lease(machine)
        assert alone.job_id == one.job_id
        (beside,) = together(shop, 1, machine)
        states.append(failing(shop, alone, beside))  # one that is to be alone is in no such thing, whatever is said
    assert states == ["queued", "queued", "failed"]
    assert "3 different machines" in shop.job(one.job_id)["error"]
    assert len(shop.rows(schema.bans)) == 3


def test_a_job_that_turns_out_to_be_good_blames_no_machine_for_it(shop: Workshop) -> None:
    one, two = together(shop)
    failing(shop, one, two)
    failing(shop, shop.lease(2))
    complete(shop.ctx, shop.lease(3).attempt_id, CompleteAttempt(step=1))
    assert [row["machine_id"] for row in shop.rows(schema.strikes)] == ["machine-2"]


def test_new_steps_count_and_old_fruitless_ends_stay_counted(shop: Workshop) -> None:
    one, two = together(shop)
    with shop.store.begin() as tx:
        for lease in (one, two):
            tx.jobs.update(lease.job_id, fruitless=4)
    shop.checkpoint(one, 5)
    failing(shop, one, two)
    failing(shop, two, one)
    assert [shop.job(lease.job_id)["fruitless"] for lease in (one, two)] == [0, 4]


def test_what_a_node_names_that_is_not_on_it_does_not_count(shop: Workshop) -> None:
    (mine,), (elsewhere,) = together(shop, 1, node=1), together(shop, 1, node=2)
    stranger = elsewhere.model_copy(update={"attempt_id": "att_never_there"})
    failing(shop, mine, elsewhere, stranger, mine)
    job = shop.job(mine.job_id)
    assert (job["joint_key"], job["fruitless"]) == ("key", 1)
    assert len(shop.rows(schema.bans)) == 1


def test_a_report_that_comes_twice_counts_once(shop: Workshop) -> None:
    leases = together(shop)
    for lease in leases:
        failing(shop, lease, *leases, reason=Reason.NODE_DRIVER)
    before = shop.whole_database()
    for lease in leases:
        assert failing(shop, lease, *leases, reason=Reason.NODE_DRIVER) == "queued"
    assert shop.whole_database() == before
