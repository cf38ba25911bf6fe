"""How attempts end, who is blamed, and what becomes of the job."""

import threading
from typing import Any

import pytest
from tests.fixtures.work import Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.lapse import lapse_leases
from giornata.control.attempts.reported_ends import fail, release
from giornata.control.jobs.stop_job import stop_job
from giornata.domain.errors import Conflict, InvalidInput, LeaseLost
from giornata.domain.job import JobEvent
from giornata.domain.reasons import BAN, REPORTABLE_FAILURES, RETRY, STRIKE, Reason
from giornata.protocol.pipe import FaultLine
from giornata.protocol.work import CompleteAttempt, FailAttempt, Heartbeat, Lease, ReleaseAttempt
from giornata.store import schema


def failing(shop: Workshop, lease: Lease, reason: Reason = Reason.CRASHED, **more: Any) -> str:
    report = FailAttempt(reason=reason, message="it broke", **more)
    return fail(shop.ctx, lease.attempt_id, report).job_state


@pytest.mark.parametrize("reason", sorted(REPORTABLE_FAILURES))
def test_d23_the_reason_decides_over_job_and_machine(shop: Workshop, reason: Reason) -> None:
    job_id = shop.add_job()
    state = failing(shop, shop.lease(1), reason)
    assert state == ("queued" if RETRY[reason] else "failed")
    assert shop.job(job_id)["state"] == state
    assert len(shop.rows(schema.bans)) == BAN[reason]
    assert len(shop.rows(schema.strikes)) == STRIKE[reason]


def test_d20_a_report_that_is_sent_twice_counts_once(shop: Workshop) -> None:
    job_id = shop.add_job()
    lease = shop.lease(1)
    assert failing(shop, lease, Reason.NODE_DISK) == "queued"
    before = shop.whole_database()
    assert failing(shop, lease, Reason.NODE_DISK) == "queued"
    assert shop.whole_database() == before
    assert shop.job(job_id)["fruitless"] == 1


def test_d20_a_report_that_is_sent_twice_at_once_counts_once(shop: Workshop) -> None:
    job_id = shop.add_job()
    lease = shop.lease(1)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(failing(shop, lease))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["queued"] * 6
    assert shop.job(job_id)["fruitless"] == 1
    assert shop.events(job_id) == ["attempt.started", "attempt.ended", "job.requeued"]


def test_d27_the_attempt_keeps_reason_exit_code_log_tail_and_times(shop: Workshop) -> None:
    job_id = shop.add_job()
    lease = shop.lease(1)
    shop.clock.advance_s(7)
    failing(shop, lease, Reason.CRASHED, exit_code=-9, log_tail="killed", step=3)
    attempt = shop.attempt(lease.attempt_id)
    kept = {name: attempt[name] for name in ("reason", "message", "exit_code", "log_tail", "last_step")}
    assert kept == {
        "reason": "crashed",
        "message": "it broke",
        "exit_code": -9,
        "log_tail": "killed",
        "last_step": 3,
    }
    assert attempt["ended_at_ms"] - attempt["started_at_ms"] == 7_000
    told = shop.last_event(job_id, "attempt.ended")
    assert (told["reason"], told["blame"], told["exit_code"]) == ("crashed", "undecided", -9)
    (bill,) = shop.rows(schema.ledger)
    assert bill["amount_micro_usd"] == 700


def test_d28_a_failed_attempt_queues_the_job_again_at_once(shop: Workshop) -> None:
    other, job_id = shop.add_job(), shop.add_job(priority=1)
    failing(shop, shop.lease(1))
    assert shop.job(job_id)["state"] == "queued"
    assert shop.lease(2).job_id == job_id  # before the other one: it was interrupted
    assert shop.job(other)["state"] == "queued"


def test_a_bad_job_fails_with_every_fault_and_hurts_no_machine(shop: Workshop) -> None:
    job_id = shop.add_job()
    faults = (FaultLine(where="a.png", message="is torn", hint="save it again"), FaultLine(where="b", message="c"))
    assert failing(shop, shop.lease(1), Reason.BAD_DATA, faults=faults) == "failed"
    job = shop.job(job_id)
    assert job["error"].startswith("it broke (bad_data")
    assert [fault["where"] for fault in job["faults"]] == ["a.png", "b"]
    assert shop.events(job_id)[-2:] == ["attempt.ended", "job.failed"]
    assert shop.rows(schema.strikes) == shop.rows(schema.bans) == []


def test_a_job_fails_after_it_crashed_on_three_different_machines(shop: Workshop) -> None:
    job_id = shop.add_job()
    assert [failing(shop, shop.lease(number)) for number in (1, 2, 3)] == ["queued", "queued", "failed"]
    assert "3 different machines" in shop.job(job_id)["error"]
    assert shop.rows(schema.strikes) == []


def test_crashes_of_a_good_job_are_held_against_the_machines_in_hindsight(shop: Workshop) -> None:
    shop.add_job()
    failing(shop, shop.lease(1))
    failing(shop, shop.lease(2))
    assert shop.rows(schema.strikes) == []
    complete(shop.ctx, shop.lease(3).attempt_id, CompleteAttempt(step=1))
    assert sorted(row["machine_id"] for row in shop.rows(schema.strikes)) == ["machine-1", "machine-2"]


@pytest.mark.parametrize("reason", sorted(set(Reason) - REPORTABLE_FAILURES))
def test_reasons_that_are_the_servers_to_decide_are_refused(shop: Workshop, reason: Reason) -> None:
    shop.add_job()
    lease = shop.lease(1)
    with pytest.raises(InvalidInput, match="reason"):
        failing(shop, lease, reason)
    assert shop.attempt(lease.attempt_id)["ended_at_ms"] is None


def test_a_released_job_is_queued_at_once_without_blame(shop: Workshop) -> None:
    job_id = shop.add_job()
    for number in range(1, 15):  # more often than fruitless ends are allowed
        lease = shop.lease(number)
        ended = release(shop.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED, message="spot notice"))
        assert ended.job_state == "queued"
    assert shop.rows(schema.strikes) == shop.rows(schema.bans) == []
    assert shop.job(job_id)["interrupted"] is True
    assert shop.events(job_id)[:3] == ["attempt.started", "attempt.ended", "job.requeued"]
    assert shop.lease(1).attempt == 15
    with pytest.raises(InvalidInput, match="reason"):
        release(shop.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.CANCELED))


def test_a_repeated_release_is_answered_alike_and_changes_nothing(shop: Workshop) -> None:
    shop.add_job()
    lease = shop.lease(1)
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    before = shop.whole_database()
    assert release(shop.ctx, lease.attempt_id, ReleaseAttempt()).job_state == "queued"
    assert shop.whole_database() == before
    with pytest.raises(LeaseLost):
        failing(shop, lease)


def test_d51_d84_complete_is_idempotent(shop: Workshop) -> None:
    job_id = shop.add_job()
    lease = shop.lease(1)
    shop.artifact(lease, "lora.safetensors")
    report = CompleteAttempt(step=5, artifacts=("lora.safetensors",), summary={"loss": 0.1})
    assert complete(shop.ctx, lease.attempt_id, report).job_state == "succeeded"
    before = shop.whole_database()
    assert complete(shop.ctx, lease.attempt_id, report).job_state == "succeeded"
    assert shop.whole_database() == before
    job = shop.job(job_id)
    assert (job["step"], job["result"], job["ended_at_ms"]) == (5, {"loss": 0.1}, shop.clock.now_ms())
    with pytest.raises(LeaseLost):
        failing(shop, lease)


def test_d52_d73_complete_asks_for_every_artifact_that_it_names(shop: Workshop) -> None:
    job_id = shop.add_job()
    lease = shop.lease(1)
    shop.artifact(lease, "a")
    with pytest.raises(Conflict, match="'b', 'c'"):
        complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=1, artifacts=("a", "b", "c")))
    assert shop.job(job_id)["state"] == "running"


def test_d68_what_a_failed_attempt_left_is_not_published(shop: Workshop) -> None:
    job_id = shop.add_job()
    first = shop.lease(1)
    shop.artifact(first, "stray")
    shop.artifact(first, "same", b"equal bytes")
    failing(shop, first)
    second = shop.lease(2)
    with pytest.raises(Conflict, match="'same'"):
        complete(shop.ctx, second.attempt_id, CompleteAttempt(step=1, artifacts=("same",)))
    assert shop.artifact(second, "same", b"equal bytes").superfluous
    complete(shop.ctx, second.attempt_id, CompleteAttempt(step=1, artifacts=("same",)))
    assert [row["name"] for row in shop.rows(schema.artifacts, job_id=job_id)] == ["same"]


def test_pictures_of_a_step_stay_when_another_attempt_goes_on(shop: Workshop) -> None:
    spec = {"validation_steps": 4, "sample_prompts": ["a toy"], "max_train_steps": 12}
    job_id = shop.add_job(spec=spec)
    first = shop.lease(1)
    for name in ("samples-00000004.png", "samples-00000005.png", "samples-00000012.png", "samples.png"):
        shop.artifact(first, name)
    failing(shop, first)
    second = shop.lease(2)
    shop.artifact(second, "samples-00000008.png")
    complete(shop.ctx, second.attempt_id, CompleteAttempt(step=12, artifacts=("samples-00000008.png",)))
    left = [row["name"] for row in shop.rows(schema.artifacts, job_id=job_id)]
    assert sorted(left) == ["samples-00000004.png", "samples-00000008.png"]


def test_the_ledger_is_the_sum_of_the_attempts_lives(shop: Workshop) -> None:
    job_id = shop.add_job()
    for number, seconds in enumerate([10, 20, 30], 1):
        lease = shop.lease(number)
        shop.clock.advance_s(seconds)
        release(shop.ctx, lease.attempt_id, ReleaseAttempt())
        shop.clock.advance_s(1000)
    silent = shop.lease(4)
    shop.clock.advance_s(100)
    lapse_leases(shop.ctx)
    shop.lease(5)
    bills = shop.rows(schema.ledger, job_id=job_id)
    lived_ms = sum(row["to_ms"] - row["from_ms"] for row in bills)
    assert lived_ms == 60_000
    assert sum(row["amount_micro_usd"] for row in bills) == 6_000
    assert shop.rows(schema.ledger, attempt_id=silent.attempt_id)[0]["amount_micro_usd"] == 0


def test_a_lapse_and_the_report_that_follows_it_count_once(shop: Workshop) -> None:
    job_id = shop.add_job()
    lease = shop.lease(1)
    shop.clock.advance_s(100)
    lapse_leases(shop.ctx)
    failing(shop, lease, Reason.NODE_DISK)
    assert shop.job(job_id)["fruitless"] == 1


def test_a_silent_attempt_that_is_ended_is_billed_to_its_last_sign_of_life(shop: Workshop) -> None:
    """Its lease is over, and no loop has come by yet."""
    job_id = shop.add_job()
    lease = shop.lease(1)
    shop.clock.advance_s(20)
    heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1))
    shop.clock.advance_s(500)
    with shop.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        assert job is not None
        stop_job(tx, shop.ctx, job, JobEvent.CANCEL, at_ms=shop.clock.now_ms(), message="", data={})
    (bill,) = shop.rows(schema.ledger)
    assert bill["amount_micro_usd"] == 20 * 100
