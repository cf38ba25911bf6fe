"""How attempts end, who is blamed, and what becomes of the job."""

import threading
from typing import Any

import pytest
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.jobs.stop_job import stop_job
from giornata.domain.errors import Conflict, InvalidInput, LeaseLost
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import BAN, REPORTABLE_FAILURES, RETRY, STRIKE, Reason
from giornata.protocol.node.pipe import FaultLine
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Heartbeat, Lease, ReleaseAttempt
from giornata.store import schema


def failing(rig: StoreRig, lease: Lease, reason: Reason = Reason.CRASHED, **more: Any) -> str:
    report = FailAttempt(reason=reason, message="it broke", **more)
    return fail(rig.ctx, lease.attempt_id, report).job_state


@pytest.mark.parametrize("reason", sorted(REPORTABLE_FAILURES))
def test_d23_the_reason_decides_over_job_and_machine(rig: StoreRig, reason: Reason) -> None:
    job_id = rig.add_job()
    state = failing(rig, rig.lease(1), reason)
    assert state == ("queued" if RETRY[reason] else "failed")
    assert rig.job(job_id)["state"] == state
    assert len(rig.rows(schema.bans)) == BAN[reason]
    assert len(rig.rows(schema.strikes)) == STRIKE[reason]


def test_d20_a_report_that_is_sent_twice_counts_once(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    assert failing(rig, lease, Reason.NODE_DISK) == "queued"
    before = rig.whole_database()
    assert failing(rig, lease, Reason.NODE_DISK) == "queued"
    assert rig.whole_database() == before
    assert rig.job(job_id)["fruitless"] == 1


def test_d20_a_report_that_is_sent_twice_at_once_counts_once(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(failing(rig, lease))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["queued"] * 6
    assert rig.job(job_id)["fruitless"] == 1
    assert rig.events(job_id) == ["attempt.started", "attempt.ended", "job.requeued"]


def test_d27_the_attempt_keeps_reason_exit_code_log_tail_and_times(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(7)
    failing(rig, lease, Reason.CRASHED, exit_code=-9, log_tail="killed", step=3)
    attempt = rig.attempt(lease.attempt_id)
    kept = {name: attempt[name] for name in ("reason", "message", "exit_code", "log_tail", "last_step")}
    assert kept == {
        "reason": "crashed",
        "message": "it broke",
        "exit_code": -9,
        "log_tail": "killed",
        "last_step": 3,
    }
    assert attempt["ended_at_ms"] - attempt["started_at_ms"] == 7_000
    told = rig.last_event(job_id, "attempt.ended")
    assert (told["reason"], told["blame"], told["exit_code"]) == ("crashed", "undecided", -9)
    (bill,) = rig.rows(schema.ledger)
    assert bill["amount_micro_usd"] == 700


def test_d28_a_failed_attempt_queues_the_job_again_at_once(rig: StoreRig) -> None:
    other, job_id = rig.add_job(), rig.add_job(priority=1)
    failing(rig, rig.lease(1))
    assert rig.job(job_id)["state"] == "queued"
    assert rig.lease(2).job_id == job_id  # before the other one: it was interrupted
    assert rig.job(other)["state"] == "queued"


def test_a_bad_job_fails_with_every_fault_and_hurts_no_machine(rig: StoreRig) -> None:
    job_id = rig.add_job()
    faults = (FaultLine(where="a.png", message="is torn", hint="save it again"), FaultLine(where="b", message="c"))
    assert failing(rig, rig.lease(1), Reason.BAD_DATA, faults=faults) == "failed"
    job = rig.job(job_id)
    assert job["error"].startswith("it broke (bad_data")
    assert [fault["where"] for fault in job["faults"]] == ["a.png", "b"]
    assert rig.events(job_id)[-2:] == ["attempt.ended", "job.failed"]
    assert rig.rows(schema.strikes) == rig.rows(schema.bans) == []


def test_a_job_fails_after_it_crashed_on_three_different_machines(rig: StoreRig) -> None:
    job_id = rig.add_job()
    assert [failing(rig, rig.lease(number)) for number in (1, 2, 3)] == ["queued", "queued", "failed"]
    assert "3 different machines" in rig.job(job_id)["error"]
    assert rig.rows(schema.strikes) == []


def test_crashes_of_a_good_job_are_held_against_the_machines_in_hindsight(rig: StoreRig) -> None:
    rig.add_job()
    failing(rig, rig.lease(1))
    failing(rig, rig.lease(2))
    assert rig.rows(schema.strikes) == []
    complete(rig.ctx, rig.lease(3).attempt_id, CompleteAttempt(step=1))
    assert sorted(row["machine_id"] for row in rig.rows(schema.strikes)) == ["machine-1", "machine-2"]


@pytest.mark.parametrize("reason", sorted(set(Reason) - REPORTABLE_FAILURES))
def test_reasons_that_are_the_servers_to_decide_are_refused(rig: StoreRig, reason: Reason) -> None:
    rig.add_job()
    lease = rig.lease(1)
    with pytest.raises(InvalidInput, match="reason"):
        failing(rig, lease, reason)
    assert rig.attempt(lease.attempt_id)["ended_at_ms"] is None


def test_a_released_job_is_queued_at_once_without_blame(rig: StoreRig) -> None:
    job_id = rig.add_job()
    for number in range(1, 15):  # more often than fruitless ends are allowed
        lease = rig.lease(number)
        ended = release(rig.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED, message="spot notice"))
        assert ended.job_state == "queued"
    assert rig.rows(schema.strikes) == rig.rows(schema.bans) == []
    assert rig.job(job_id)["interrupted"] is True
    assert rig.events(job_id)[:3] == ["attempt.started", "attempt.ended", "job.requeued"]
    assert rig.lease(1).attempt == 15
    with pytest.raises(InvalidInput, match="reason"):
        release(rig.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.CANCELED))


def test_a_repeated_release_is_answered_alike_and_changes_nothing(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    before = rig.whole_database()
    assert release(rig.ctx, lease.attempt_id, ReleaseAttempt()).job_state == "queued"
    assert rig.whole_database() == before
    with pytest.raises(LeaseLost):
        failing(rig, lease)


def test_d51_d84_complete_is_idempotent(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.artifact(lease, "lora.safetensors")
    report = CompleteAttempt(step=5, artifacts=("lora.safetensors",), summary={"loss": 0.1})
    assert complete(rig.ctx, lease.attempt_id, report).job_state == "succeeded"
    before = rig.whole_database()
    assert complete(rig.ctx, lease.attempt_id, report).job_state == "succeeded"
    assert rig.whole_database() == before
    job = rig.job(job_id)
    assert (job["step"], job["result"], job["ended_at_ms"]) == (5, {"loss": 0.1}, rig.clock.now_ms())
    with pytest.raises(LeaseLost):
        failing(rig, lease)


def test_d52_d73_complete_asks_for_every_artifact_that_it_names(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.artifact(lease, "a")
    with pytest.raises(Conflict, match="'b', 'c'"):
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1, artifacts=("a", "b", "c")))
    assert rig.job(job_id)["state"] == "running"


def test_d68_files_of_a_failed_attempt_are_not_published(rig: StoreRig) -> None:
    job_id = rig.add_job()
    first = rig.lease(1)
    rig.artifact(first, "stray")
    rig.artifact(first, "same", b"equal bytes")
    failing(rig, first)
    second = rig.lease(2)
    with pytest.raises(Conflict, match="'same'"):
        complete(rig.ctx, second.attempt_id, CompleteAttempt(step=1, artifacts=("same",)))
    assert rig.artifact(second, "same", b"equal bytes").superfluous
    complete(rig.ctx, second.attempt_id, CompleteAttempt(step=1, artifacts=("same",)))
    assert [row["name"] for row in rig.rows(schema.artifacts, job_id=job_id)] == ["same"]


def test_pictures_of_a_step_stay_when_another_attempt_goes_on(rig: StoreRig) -> None:
    spec = {"validation_steps": 4, "sample_prompts": ["a toy"], "max_train_steps": 12}
    job_id = rig.add_job(spec=spec)
    first = rig.lease(1)
    for name in ("samples-00000004.png", "samples-00000005.png", "samples-00000012.png", "samples.png"):
        rig.artifact(first, name)
    failing(rig, first)
    second = rig.lease(2)
    rig.artifact(second, "samples-00000008.png")
    complete(rig.ctx, second.attempt_id, CompleteAttempt(step=12, artifacts=("samples-00000008.png",)))
    left = [row["name"] for row in rig.rows(schema.artifacts, job_id=job_id)]
    assert sorted(left) == ["samples-00000004.png", "samples-00000008.png"]


def test_the_ledger_is_the_sum_of_the_attempts_lives(rig: StoreRig) -> None:
    job_id = rig.add_job()
    for number, seconds in enumerate([10, 20, 30], 1):
        lease = rig.lease(number)
        rig.clock.advance_s(seconds)
        release(rig.ctx, lease.attempt_id, ReleaseAttempt())
        rig.clock.advance_s(1000)
    silent = rig.lease(4)
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    rig.lease(5)
    bills = rig.rows(schema.ledger, job_id=job_id)
    lived_ms = sum(row["to_ms"] - row["from_ms"] for row in bills)
    assert lived_ms == 60_000
    assert sum(row["amount_micro_usd"] for row in bills) == 6_000
    assert rig.rows(schema.ledger, attempt_id=silent.attempt_id)[0]["amount_micro_usd"] == 0


def test_a_lapse_and_the_report_that_follows_it_count_once(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    failing(rig, lease, Reason.NODE_DISK)
    assert rig.job(job_id)["fruitless"] == 1


def test_a_silent_attempt_that_is_ended_is_billed_to_its_last_sign_of_life(rig: StoreRig) -> None:
    """Its lease is over, and no loop has come by yet."""
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(20)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1))
    rig.clock.advance_s(500)
    with rig.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        assert job is not None
        stop_job(tx, rig.ctx, job, JobEvent.CANCEL, at_ms=rig.clock.now_ms(), message="", data={})
    (bill,) = rig.rows(schema.ledger)
    assert bill["amount_micro_usd"] == 20 * 100
