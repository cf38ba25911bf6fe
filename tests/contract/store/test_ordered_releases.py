"""A slow machine that was told to give its job back, and goes on: it has a grace, and no longer."""

import random

import pytest
from tests.contract.store.test_stragglers import cohort, idle_node, lease
from tests.fixtures.work import Workshop

from giornata.control.attempts.heartbeat import Beat, heartbeat, heartbeat_each
from giornata.control.attempts.lapse import lapse_leases
from giornata.control.attempts.reported_ends import release
from giornata.control.context import Context
from giornata.control.fleets.stragglers import move_stragglers, order_release
from giornata.domain.errors import LeaseLost
from giornata.domain.reasons import Reason
from giornata.protocol.work import Heartbeat, Lease, Order, ReleaseAttempt
from giornata.store import schema

BEAT_S = 30.0


def ordered(shop: Workshop, number: int = 1) -> Lease:
    """An attempt at step 50 that is to be moved for slowness, and whose node has not heard of it yet."""
    held = lease(shop, number)
    heartbeat(shop.ctx, held.attempt_id, Heartbeat(step=50))
    assert order_release(shop.ctx, held.attempt_id, reason=Reason.TOO_SLOW, notice={"name": "too-slow"})
    return held


def beats(shop: Workshop, held: Lease, *, seconds: float) -> list[Order]:
    """It goes on as if nothing were, for so long; what it is told."""
    told = []
    for _ in range(round(seconds / BEAT_S)):
        shop.clock.advance_s(BEAT_S)
        told.append(heartbeat(shop.ctx, held.attempt_id, Heartbeat(step=51)).order)
    return told


def grace_s(ctx: Context) -> float:
    return ctx.policy.stop_grace_s


def test_who_does_not_obey_is_ended_and_another_machine_has_the_job(shop: Workshop) -> None:
    held, _ = cohort(shop)
    shop.checkpoint(held, 40)
    idle_node(shop)
    assert move_stragglers(shop.ctx) == 1
    assert beats(shop, held, seconds=grace_s(shop.ctx)) == [Order.RELEASE] * 10
    shop.clock.advance_s(BEAT_S)
    with pytest.raises(LeaseLost, match=r"too_slow.*the job is queued"):
        heartbeat(shop.ctx, held.attempt_id, Heartbeat(step=52))
    attempt, job = shop.attempt(held.attempt_id), shop.job(held.job_id)
    assert (attempt["reason"], attempt["last_step"]) == ("too_slow", 52)
    assert "300 s" in attempt["message"]
    assert (job["state"], job["fruitless"], job["interrupted"]) == ("queued", 0, True)
    assert [row["machine_id"] for row in shop.rows(schema.bans, job_id=held.job_id)] == ["machine-1"]
    assert [row["reason"] for row in shop.rows(schema.strikes)] == ["too_slow"]
    assert shop.events(held.job_id)[-2:] == ["attempt.ended", "job.requeued"]
    assert shop.claim(1).lease is None, "never this machine again"
    again = shop.lease(90)
    assert (again.job_id, again.checkpoints[0].step) == (held.job_id, 40)


def test_whatever_it_sends_after_its_end_is_refused_and_changes_nothing(shop: Workshop) -> None:
    held = ordered(shop)
    beats(shop, held, seconds=grace_s(shop.ctx))
    shop.clock.advance_s(BEAT_S)
    with pytest.raises(LeaseLost):
        heartbeat(shop.ctx, held.attempt_id, Heartbeat(step=52))
    shop.add_blob(f"{held.job_id} 60".encode())
    before = shop.whole_database()
    with pytest.raises(LeaseLost):
        heartbeat(shop.ctx, held.attempt_id, Heartbeat(step=53))
    with pytest.raises(LeaseLost):
        release(shop.ctx, held.attempt_id, ReleaseAttempt(step=53))
    with pytest.raises(LeaseLost):
        shop.checkpoint(held, 60)
    after = shop.whole_database()
    # (The checkpoint's bytes were sent again by the test itself.)
    assert {name for name in after if after[name] != before[name]} <= {"blobs"}


def test_who_obeys_in_time_ends_by_itself(shop: Workshop) -> None:
    held = ordered(shop)
    beats(shop, held, seconds=grace_s(shop.ctx))
    shop.checkpoint(held, 50)
    assert release(shop.ctx, held.attempt_id, ReleaseAttempt(step=51)).job_state == "queued"
    shop.clock.advance_s(grace_s(shop.ctx))
    assert release(shop.ctx, held.attempt_id, ReleaseAttempt(step=51)).job_state == "queued", "its reply was lost"
    attempt = shop.attempt(held.attempt_id)
    assert (attempt["reason"], attempt["message"], attempt["committed_step"]) == ("too_slow", "", 50)


def test_who_still_uploads_within_the_grace_is_waited_for(shop: Workshop) -> None:
    held = ordered(shop)
    told = beats(shop, held, seconds=grace_s(shop.ctx))
    assert set(told) == {Order.RELEASE}
    shop.checkpoint(held, 51)
    assert shop.attempt(held.attempt_id)["ended_at_ms"] is None
    assert shop.job(held.job_id)["state"] == "running"


def test_the_grace_begins_when_the_node_hears_of_it(shop: Workshop) -> None:
    """It could not be reached for longer than the grace: nobody else took the job, and it has its time."""
    held = ordered(shop)
    shop.clock.advance_s(2 * grace_s(shop.ctx))
    assert lapse_leases(shop.ctx) == 1
    assert beats(shop, held, seconds=grace_s(shop.ctx)) == [Order.RELEASE] * 10
    shop.clock.advance_s(BEAT_S)
    with pytest.raises(LeaseLost):
        heartbeat(shop.ctx, held.attempt_id, Heartbeat(step=52))


def test_who_was_told_nothing_goes_on_for_ever(shop: Workshop) -> None:
    held = lease(shop, 1)
    assert beats(shop, held, seconds=4 * grace_s(shop.ctx)) == [Order.CONTINUE] * 40


def test_of_several_that_beat_together_only_the_late_one_is_ended(shop: Workshop) -> None:
    late, well = ordered(shop, 1), lease(shop, 2)
    for _ in range(10):
        shop.clock.advance_s(BEAT_S)
        heartbeat_each(shop.ctx, [Beat(attempt_id=it.attempt_id, said=Heartbeat(step=51)) for it in (late, well)])
    new = ordered(shop, 3)
    shop.clock.advance_s(BEAT_S)
    said = [Beat(attempt_id=it.attempt_id, said=Heartbeat(step=52)) for it in (well, late, new)]
    went_on, ended, begun = heartbeat_each(shop.ctx, said)
    assert isinstance(ended, LeaseLost)
    assert not isinstance(went_on, LeaseLost)
    assert went_on.order is Order.CONTINUE
    assert not isinstance(begun, LeaseLost)
    assert begun.order is Order.RELEASE


@pytest.mark.parametrize("seed", range(4))
def test_however_it_beats_it_is_ended_within_the_grace_and_two_beats(shop: Workshop, seed: int) -> None:
    dice, held = random.Random(seed), ordered(shop)
    began_ms, longest_s = shop.clock.now_ms(), 0.0
    for _ in range(100):
        pause_s = dice.choice([1.0, 7.0, BEAT_S, shop.ctx.policy.lease_s])
        longest_s = max(longest_s, pause_s)
        shop.clock.advance_s(pause_s)
        lapse_leases(shop.ctx)
        try:
            heartbeat(shop.ctx, held.attempt_id, Heartbeat(step=51))
        except LeaseLost:
            break
    else:
        pytest.fail("nobody ever ended it")
    took_s = (shop.clock.now_ms() - began_ms) / 1000
    assert grace_s(shop.ctx) <= took_s <= grace_s(shop.ctx) + 2 * longest_s
