"""A slow machine that was told to give its job back, and goes on: it has a grace, and no longer."""

import random

import pytest
from tests.contract.store.test_stragglers import cohort, idle_node, lease
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import Beat, heartbeat, heartbeat_each
from giornata.control.context import Context
from giornata.control.fleets.stragglers import move_stragglers, order_release
from giornata.domain.errors import LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import Heartbeat, Lease, Order, ReleaseAttempt
from giornata.store import schema

BEAT_S = 30.0


def ordered(rig: StoreRig, number: int = 1) -> Lease:
    """An attempt at step 50 that is to be moved for slowness, and whose node has not heard of it yet."""
    held = lease(rig, number)
    heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=50))
    assert order_release(rig.ctx, held.attempt_id, reason=Reason.TOO_SLOW, notice={"name": "too-slow"})
    return held


def beats(rig: StoreRig, held: Lease, *, seconds: float) -> list[Order]:
    """It goes on as if nothing were, for so long; what it is told."""
    told = []
    for _ in range(round(seconds / BEAT_S)):
        rig.clock.advance_s(BEAT_S)
        told.append(heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=51)).order)
    return told


def grace_s(ctx: Context) -> float:
    return ctx.policy.stop_grace_s


def test_attempt_that_ignores_release_order_is_ended_and_another_machine_gets_the_job(rig: StoreRig) -> None:
    held, _ = cohort(rig)
    rig.checkpoint(held, 40)
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 1
    assert beats(rig, held, seconds=grace_s(rig.ctx)) == [Order.RELEASE] * 10
    rig.clock.advance_s(BEAT_S)
    with pytest.raises(LeaseLost, match=r"too_slow.*the job is queued"):
        heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=52))
    attempt, job = rig.attempt(held.attempt_id), rig.job(held.job_id)
    assert (attempt["reason"], attempt["last_step"]) == ("too_slow", 52)
    assert "300 s" in attempt["message"]
    assert (job["state"], job["fruitless"], job["interrupted"]) == ("queued", 0, True)
    assert [row["machine_id"] for row in rig.rows(schema.bans, job_id=held.job_id)] == ["machine-1"]
    assert [row["reason"] for row in rig.rows(schema.strikes)] == ["too_slow"]
    assert rig.events(held.job_id)[-2:] == ["attempt.ended", "job.requeued"]
    assert rig.claim(1).lease is None, "never this machine again"
    again = rig.lease(90)
    assert (again.job_id, again.checkpoints[0].step) == (held.job_id, 40)


def test_writes_of_an_attempt_after_its_forced_end_are_refused_and_change_nothing(rig: StoreRig) -> None:
    held = ordered(rig)
    beats(rig, held, seconds=grace_s(rig.ctx))
    rig.clock.advance_s(BEAT_S)
    with pytest.raises(LeaseLost):
        heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=52))
    rig.add_blob(f"{held.job_id} 60".encode())
    before = rig.whole_database()
    with pytest.raises(LeaseLost):
        heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=53))
    with pytest.raises(LeaseLost):
        release(rig.ctx, held.attempt_id, ReleaseAttempt(step=53))
    with pytest.raises(LeaseLost):
        rig.checkpoint(held, 60)
    after = rig.whole_database()
    # (The checkpoint's bytes were sent again by the test itself.)
    assert {name for name in after if after[name] != before[name]} <= {"blobs"}


def test_attempt_that_releases_within_the_grace_ends_with_its_own_report(rig: StoreRig) -> None:
    held = ordered(rig)
    beats(rig, held, seconds=grace_s(rig.ctx))
    rig.checkpoint(held, 50)
    assert release(rig.ctx, held.attempt_id, ReleaseAttempt(step=51)).job_state == "queued"
    rig.clock.advance_s(grace_s(rig.ctx))
    assert release(rig.ctx, held.attempt_id, ReleaseAttempt(step=51)).job_state == "queued", "its reply was lost"
    attempt = rig.attempt(held.attempt_id)
    assert (attempt["reason"], attempt["message"], attempt["committed_step"]) == ("too_slow", "", 50)


def test_attempt_that_still_uploads_within_the_grace_is_not_ended(rig: StoreRig) -> None:
    held = ordered(rig)
    told = beats(rig, held, seconds=grace_s(rig.ctx))
    assert set(told) == {Order.RELEASE}
    rig.checkpoint(held, 51)
    assert rig.attempt(held.attempt_id)["ended_at_ms"] is None
    assert rig.job(held.job_id)["state"] == "running"


def test_the_grace_begins_when_the_node_hears_of_it(rig: StoreRig) -> None:
    """It could not be reached for longer than the grace: nobody else took the job, and it has its time."""
    held = ordered(rig)
    rig.clock.advance_s(2 * grace_s(rig.ctx))
    assert lapse_leases(rig.ctx) == 1
    assert beats(rig, held, seconds=grace_s(rig.ctx)) == [Order.RELEASE] * 10
    rig.clock.advance_s(BEAT_S)
    with pytest.raises(LeaseLost):
        heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=52))


def test_attempt_without_release_order_is_never_ended(rig: StoreRig) -> None:
    held = lease(rig, 1)
    assert beats(rig, held, seconds=4 * grace_s(rig.ctx)) == [Order.CONTINUE] * 40


def test_heartbeats_sent_together_end_only_the_attempt_past_its_grace(rig: StoreRig) -> None:
    late, well = ordered(rig, 1), lease(rig, 2)
    for _ in range(10):
        rig.clock.advance_s(BEAT_S)
        heartbeat_each(rig.ctx, [Beat(attempt_id=it.attempt_id, said=Heartbeat(step=51)) for it in (late, well)])
    new = ordered(rig, 3)
    rig.clock.advance_s(BEAT_S)
    said = [Beat(attempt_id=it.attempt_id, said=Heartbeat(step=52)) for it in (well, late, new)]
    went_on, ended, begun = heartbeat_each(rig.ctx, said)
    assert isinstance(ended, LeaseLost)
    assert not isinstance(went_on, LeaseLost)
    assert went_on.order is Order.CONTINUE
    assert not isinstance(begun, LeaseLost)
    assert begun.order is Order.RELEASE


@pytest.mark.parametrize("seed", range(4))
def test_however_it_beats_it_is_ended_within_the_grace_and_two_beats(rig: StoreRig, seed: int) -> None:
    dice, held = random.Random(seed), ordered(rig)
    began_ms, longest_s = rig.clock.now_ms(), 0.0
    for _ in range(100):
        pause_s = dice.choice([1.0, 7.0, BEAT_S, rig.ctx.policy.lease_s])
        longest_s = max(longest_s, pause_s)
        rig.clock.advance_s(pause_s)
        lapse_leases(rig.ctx)
        try:
            heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=51))
        except LeaseLost:
            break
    else:
        pytest.fail("nobody ever ended it")
    took_s = (rig.clock.now_ms() - began_ms) / 1000
    assert grace_s(rig.ctx) <= took_s <= grace_s(rig.ctx) + 2 * longest_s
