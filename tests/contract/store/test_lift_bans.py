"""A ban prefers another machine and starves no job: where there is no other, the job goes back after a pause."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.lift_bans import lift_bans
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.caller import Caller
from giornata.control.fleets.operator_actions import quarantine_machine, release_machine
from giornata.control.fleets.reap import reap
from giornata.control.fleets.stragglers import order_release
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.retry import retry
from giornata.control.timestamps import instant
from giornata.domain.errors import IllegalTransition, NotFound
from giornata.domain.jobs.reasons import BAN, REPORTABLE_FAILURES, Reason
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Lease, NodeInfo, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
GB = 10**9
BANNING = sorted(reason for reason in REPORTABLE_FAILURES if BAN[reason])


def broken(rig: StoreRig, lease: Lease, reason: Reason = Reason.CRASHED) -> str:
    report = FailAttempt(reason=reason, message=f"last words {lease.attempt}")
    return fail(rig.ctx, lease.attempt_id, report).job_state


def bans(rig: StoreRig, job_id: str) -> list[str]:
    return [row["machine_id"] for row in rig.rows(schema.bans, job_id=job_id)]


def tries(
    rig: StoreRig, node: NodeInfo | int = 1, *, every_s: float = 5.0, turns: int = 2000
) -> Iterator[tuple[float, Lease]]:
    """The node asks again and again, and the loops turn; each lease with the seconds that passed before it."""
    began_ms = rig.clock.now_ms()
    for _ in range(turns):
        lease = rig.claim(node).lease
        if lease is None:
            lift_bans(rig.ctx)
            reap(rig.ctx)
            lease = rig.claim(node).lease
        if lease is not None:
            yield (rig.clock.now_ms() - began_ms) / 1000, lease
            began_ms = rig.clock.now_ms()
        else:
            rig.clock.advance_s(every_s)


def small(rig: StoreRig, vram_bytes: int | None = 12 * GB) -> NodeInfo:
    return rig.node(1).model_copy(update={"vram_bytes": vram_bytes})


def waited(rig: StoreRig, job_id: str) -> str:
    return get_job(rig.ctx, ADMIN, job_id).waiting_because or ""


# ---- it ends


@pytest.mark.parametrize("reason", BANNING)
def test_a_job_that_always_fails_on_the_only_machine_ends(rig: StoreRig, reason: Reason) -> None:
    """Whatever the reason, by a rule of its own, with what its engine said last."""
    job_id = rig.add_job()
    for _, lease in tries(rig, every_s=600.0):  # quarantines last for up to a day
        if broken(rig, lease, reason) == "failed":
            break
    job = rig.job(job_id)
    assert job["state"] == "failed"
    assert job["error"].startswith(f"last words {job['attempt_count']} ({reason}: ")
    assert job["attempt_count"] <= rig.ctx.policy.max_fruitless


@pytest.mark.parametrize("reason", BANNING)
def test_a_job_that_failed_once_on_the_only_machine_succeeds_there(rig: StoreRig, reason: Reason) -> None:
    rig.add_job()
    first = rig.lease(1)
    broken(rig, first, reason)
    _, lease = next(tries(rig))
    assert lease.job_id == first.job_id
    assert complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1)).job_state == "succeeded"


def test_job_that_crashes_on_the_only_machine_fails_after_max_crashed_machines(rig: StoreRig) -> None:
    job_id = rig.add_job()
    for _, lease in tries(rig):
        if broken(rig, lease) == "failed":
            break
    job = rig.job(job_id)
    assert job["attempt_count"] == rig.ctx.policy.max_crashed_machines
    assert job["error"] == (
        "last words 3 (crashed: it crashed 3 times on one machine, and committed no new checkpoint in between)"
    )
    assert [row["state"] for row in rig.rows(schema.machines)] != ["quarantined"], "the job was the bad one"


def test_crashes_with_progress_between_them_do_not_count(rig: StoreRig) -> None:
    job_id = rig.add_job()
    step = 0
    for _, lease in tries(rig, every_s=600.0):
        step += 10
        rig.checkpoint(lease, step)
        assert broken(rig, lease) == "queued"
        if step == 50:
            break
    assert rig.job(job_id)["attempt_count"] == 5
    left = []
    for _, lease in tries(rig, every_s=600.0):
        left.append(broken(rig, lease))
        if left[-1] == "failed":
            break
    assert left == ["queued", "failed"], "the last one with progress was the first of three"


def test_crashes_on_other_machines_with_progress_between_them_do_not_count(rig: StoreRig) -> None:
    rig.add_job()
    for number in range(1, 6):
        lease = rig.lease(number)
        rig.checkpoint(lease, 10 * number)
        assert broken(rig, lease) == "queued"


def test_a_job_that_is_moved_again_and_again_without_progress_ends(rig: StoreRig) -> None:
    """The server ordered its release, as it does with an attempt that stands still."""
    job_id = rig.add_job()
    for _, lease in tries(rig, every_s=600.0):
        order_release(rig.ctx, lease.attempt_id, reason=Reason.TOO_SLOW, notice={"name": "stuck"})
        if release(rig.ctx, lease.attempt_id, ReleaseAttempt()).job_state == "failed":
            break
    assert "attempts in a row ended without a single new checkpoint" in rig.job(job_id)["error"]


def test_a_fault_that_all_machines_share_ends_jobs_in_time(rig: StoreRig) -> None:
    """Such a fault is held against no job on the machines that it tries first; afterwards it counts."""
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, max_fruitless=5))
    jobs = [rig.add_job() for _ in range(4)]
    for _ in range(400):
        for number in (1, 2, 3):
            lease = rig.claim(number).lease
            if lease is not None:
                broken(rig, lease, Reason.NODE_DOWNLOAD)
        lift_bans(rig.ctx)
        reap(rig.ctx)
        rig.clock.advance_s(240)
        if all(rig.job(job_id)["state"] == "failed" for job_id in jobs):
            return
    pytest.fail("jobs that no machine can do go round for ever")


# ---- when


def test_the_pause_grows_with_the_attempts_without_progress(rig: StoreRig) -> None:
    rig.add_job()
    pauses = []
    for after_s, lease in tries(rig):
        pauses.append(after_s)
        if broken(rig, lease, Reason.CRASHED) == "failed":
            break
    assert pauses == [0, 10, 30]


def test_the_pause_and_its_bound_can_be_set(rig: StoreRig) -> None:
    backoff = replace(rig.ctx.policy.backoff, first_s=60.0, longest_s=100.0)
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, backoff=backoff, max_crashed_machines=4))
    rig.add_job()
    pauses = []
    for after_s, lease in tries(rig):
        pauses.append(after_s)
        assert broken(rig, lease) == "queued"
        if len(pauses) == 3:
            break
    assert pauses == [0, 60, 100]


def test_the_machine_that_failed_it_longest_ago_has_it_first(rig: StoreRig) -> None:
    job_id = rig.add_job()
    for number in (2, 1):
        broken(rig, rig.lease(number))
        rig.clock.advance_s(1)
    assert lift_bans(rig.ctx).lifted == 0
    rig.clock.advance_s(30)
    assert lift_bans(rig.ctx).lifted == 1
    assert bans(rig, job_id) == ["machine-1"]
    assert lift_bans(rig.ctx).lifted == 0, "one at a time"
    assert rig.claim(1).reason == "banned"
    assert rig.lease(2).job_id == job_id


def test_ban_is_kept_while_another_machine_is_connected(rig: StoreRig) -> None:
    job_id = rig.add_job()
    broken(rig, rig.lease(1))
    rig.claim(2, kinds=("train",), joint_key="none has it")
    for _ in range(20):
        rig.clock.advance_s(60)
        rig.claim(1)
        rig.claim(2, kinds=("train",), joint_key="none has it")
        assert not lift_bans(rig.ctx)
    assert bans(rig, job_id) == ["machine-1"]


def test_lift_bans_without_any_connected_node_writes_nothing(rig: StoreRig) -> None:
    rig.add_job()
    broken(rig, rig.lease(1))
    rig.clock.advance_s(3600)
    before = rig.whole_database()
    assert not lift_bans(rig.ctx)
    assert rig.whole_database() == before


def test_a_job_whose_other_node_fell_silent_goes_back(rig: StoreRig) -> None:
    """Its attempt there has lapsed, and ends when the machine that it was banned from takes the job."""
    job_id = rig.add_job()
    broken(rig, rig.lease(1))
    rig.lease(2)
    rig.clock.advance_s(rig.ctx.policy.node_gone_after_s + 1)
    lapse_leases(rig.ctx)
    rig.claim(1)
    assert lift_bans(rig.ctx).lifted == 1
    assert rig.lease(1).job_id == job_id
    assert [row["reason"] for row in rig.rows(schema.attempts)] == ["crashed", "lease_expired", None]


def test_a_paused_clock_that_is_set_back_does_not_starve_a_job(rig: StoreRig) -> None:
    job_id = rig.add_job()
    rig.clock.advance_s(86_400)
    broken(rig, rig.lease(1))
    rig.clock.advance_s(-86_400)
    rig.claim(1)
    lift_bans(rig.ctx)
    assert bans(rig, job_id) == []


def test_a_job_that_no_connected_node_is_large_enough_for_fails_with_what_its_engine_said(rig: StoreRig) -> None:
    job_id = rig.add_job()
    broken(rig, rig.lease(small(rig)), Reason.NODE_TOO_SMALL)
    rig.claim(small(rig))
    assert "it needs 12.8 GB, and the largest has 12.0 GB; it fails at " in waited(rig, job_id)
    assert get_job(rig.ctx, ADMIN, job_id).next_try_at is None
    for _ in range(30):
        rig.clock.advance_s(60)
        rig.claim(small(rig))
        lift_bans(rig.ctx)
    job = rig.job(job_id)
    assert job["state"] == "failed"
    assert job["error"].startswith("last words 1 (node_too_small: none of the 1 connected nodes has the 12.8 GB")


def test_a_job_that_is_too_large_for_all_that_are_left_fails_and_its_silent_attempt_ends(rig: StoreRig) -> None:
    """The node that might have been large enough is gone."""
    job_id = rig.add_job()
    broken(rig, rig.lease(small(rig)), Reason.NODE_TOO_SMALL)
    rig.lease(2)
    rig.clock.advance_s(1000)
    lapse_leases(rig.ctx)
    rig.claim(small(rig))
    assert lift_bans(rig.ctx).failed == 1
    assert rig.job(job_id)["state"] == "failed"
    assert [row["reason"] for row in rig.rows(schema.attempts)] == ["node_too_small", "lease_expired"]


def test_a_larger_node_that_comes_in_time_takes_it(rig: StoreRig) -> None:
    job_id = rig.add_job()
    broken(rig, rig.lease(small(rig)), Reason.NODE_TOO_SMALL)
    rig.clock.advance_s(600)
    rig.claim(small(rig))
    assert not lift_bans(rig.ctx)
    large = rig.node(2).model_copy(update={"vram_bytes": 24 * GB})
    assert rig.lease(large).job_id == job_id


def test_a_node_of_unknown_memory_that_is_too_small_twice_ends_it(rig: StoreRig) -> None:
    job_id = rig.add_job()
    states = []
    for _, lease in tries(rig):
        states.append(broken(rig, lease, Reason.NODE_TOO_SMALL))
        if states[-1] == "failed":
            break
    assert states == ["queued", "failed"]
    assert rig.job(job_id)["error"] == (
        "last words 2 (node_too_small: its machine is too small for it, and no larger one has come)"
    )


def test_a_quarantined_only_machine_has_it_when_its_quarantine_is_over(rig: StoreRig) -> None:
    job_id = rig.add_job()
    broken(rig, rig.lease(1), Reason.NODE_DRIVER)
    _, second = next(tries(rig))
    broken(rig, second, Reason.NODE_DRIVER)
    assert [row["state"] for row in rig.rows(schema.machines)] == ["quarantined"]
    ends_at = instant(rig.clock.now_ms()) + timedelta(seconds=rig.ctx.policy.health.cool_down_s)
    job = get_job(rig.ctx, ADMIN, job_id)
    assert job.next_try_at == ends_at
    assert job.waiting_because == (
        f"every connected node (1) is quarantined for jobs of kind train; the first gets jobs again at "
        f"{ends_at:%Y-%m-%d %H:%M:%S} UTC; an operator ends a quarantine: giornata machines release MACHINE"
    )
    after_s, lease = next(tries(rig, every_s=60.0))
    assert lease.job_id == job_id
    assert after_s >= rig.ctx.policy.health.cool_down_s


def test_release_of_a_quarantined_machine_gives_it_the_job_at_once(rig: StoreRig) -> None:
    job_id = rig.add_job()
    broken(rig, rig.lease(1))
    rig.claim(1)
    quarantine_machine(rig.ctx, ADMIN, "machine-1", reason="by hand")
    assert get_job(rig.ctx, ADMIN, job_id).next_try_at is None
    assert "giornata machines release" in waited(rig, job_id)
    rig.clock.advance_s(60)
    rig.claim(1)
    assert not lift_bans(rig.ctx), "a quarantined machine would not get it"
    release_machine(rig.ctx, ADMIN, "machine-1")
    assert bans(rig, job_id) == []
    assert rig.lease(1).job_id == job_id


def test_a_machine_on_probation_whose_node_died_at_work_gets_its_job_again(rig: StoreRig) -> None:
    """Its silent attempt ends when its job is taken, so it must not be in the way of that."""
    job_id = rig.add_job()
    broken(rig, rig.lease(1), Reason.NODE_DRIVER)
    next(tries(rig))
    assert [row["state"] for row in rig.rows(schema.machines)] == ["probation"]
    other_process = rig.node(2, machine="machine-1", name="node-1")
    rig.clock.advance_s(rig.ctx.policy.lease_s + 1)
    lapse_leases(rig.ctx)
    assert rig.lease(other_process).job_id == job_id


# ---- people


def test_a_job_says_when_it_is_tried_next_and_how_to_have_it_tried_now(rig: StoreRig) -> None:
    job_id = rig.add_job()
    broken(rig, rig.lease(1))
    at = instant(rig.clock.now_ms() + 10_000)
    job = get_job(rig.ctx, ADMIN, job_id)
    assert job.next_try_at == at
    assert job.waiting_because == (
        "every connected node (1) has failed this job before; it goes back to one of them at "
        f"{at:%Y-%m-%d %H:%M:%S} UTC; now: giornata retry {job_id}"
    )
    rig.clock.advance_s(10)
    assert lift_bans(rig.ctx).lifted == 1
    job = get_job(rig.ctx, ADMIN, job_id)
    assert (job.next_try_at, job.waiting_because) == (None, "waiting for its turn, position 1 in the queue")


def test_job_history_says_that_a_ban_was_lifted_and_why(rig: StoreRig) -> None:
    job_id = rig.add_job()
    broken(rig, rig.lease(1))
    rig.clock.advance_s(10)
    lift_bans(rig.ctx)
    assert rig.last_event(job_id, "notice") == {
        "name": "ban-lifted",
        "machine_ids": ["machine-1"],
        "message": "no other machine is connected that could take the job",
    }


def test_retry_of_a_job_that_waits_makes_it_eligible_now(rig: StoreRig) -> None:
    job_id = rig.add_job()
    for number in (1, 2):
        broken(rig, rig.lease(number))
    assert retry(rig.ctx, ADMIN, job_id).id == job_id
    assert bans(rig, job_id) == []
    before = rig.whole_database()
    assert retry(rig.ctx, ADMIN, job_id).id == job_id
    assert rig.whole_database() == before, "asking again changes nothing"
    assert rig.lease(2).job_id == job_id


def test_retry_of_a_job_that_has_not_begun_is_refused(rig: StoreRig) -> None:
    with pytest.raises(IllegalTransition, match="queued"):
        retry(rig.ctx, ADMIN, rig.add_job())


def test_release_of_a_machine_lets_it_have_its_queued_jobs_again(rig: StoreRig) -> None:
    jobs = [rig.add_job(), rig.add_job()]
    for _ in jobs:
        broken(rig, rig.lease(1), Reason.NODE_TOO_SMALL)
    with pytest.raises(NotFound):
        release_machine(rig.ctx, ADMIN, "machine-2")
    release_machine(rig.ctx, ADMIN, "machine-1")
    assert [bans(rig, job_id) for job_id in jobs] == [[], []]
    assert rig.last_event(jobs[0], "notice")["message"] == "an operator released the machine"
    assert rig.lease(1).job_id in jobs
