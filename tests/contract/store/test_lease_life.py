"""Heartbeats, fences, lapses, deadlines: a lease from beginning to end."""

import dataclasses
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.commit import commit_artifact, commit_checkpoint
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.reject_checkpoint import reject_checkpoint
from giornata.control.attempts.report import add_log_lines, add_notice, put_metrics
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.stop_job import expire_deadlines, stop_job
from giornata.domain.errors import IllegalTransition, LeaseLost
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import (
    CommitArtifact,
    CompleteAttempt,
    FailAttempt,
    Heartbeat,
    Lease,
    LogLines,
    MetricBatch,
    NoticeReport,
    Order,
    ReleaseAttempt,
    StepMetrics,
)
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

Write = Callable[[StoreRig, Lease], object]
OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")


def _commit_checkpoint(rig: StoreRig, lease: Lease) -> object:
    blob = rig.add_blob(b"late").model_copy(update={"step": 999})
    return commit_checkpoint(rig.ctx, lease.attempt_id, blob)


def _commit_artifact(rig: StoreRig, lease: Lease) -> object:
    blob = rig.add_blob(b"late")
    late = CommitArtifact(name="late.safetensors", sha256=blob.sha256, size_bytes=blob.size_bytes)
    return commit_artifact(rig.ctx, lease.attempt_id, late)


WRITES: dict[str, Write] = {
    "heartbeat": lambda rig, lease: heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=999)),
    "log": lambda rig, lease: add_log_lines(rig.ctx, lease.attempt_id, LogLines(first=0, lines=("late",))),
    "metrics": lambda rig, lease: put_metrics(
        rig.ctx, lease.attempt_id, MetricBatch(points=(StepMetrics(step=9, values={"loss": 1.0}),))
    ),
    "notice": lambda rig, lease: add_notice(rig.ctx, lease.attempt_id, NoticeReport(name="late")),
    "checkpoint": _commit_checkpoint,
    "reject": lambda rig, lease: reject_checkpoint(rig.ctx, lease.attempt_id, 10, "late"),
    "artifact": _commit_artifact,
    "complete": lambda rig, lease: complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=999)),
    "fail": lambda rig, lease: fail(
        rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.BAD_SPEC, message="late", step=999)
    ),
    "release": lambda rig, lease: release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=999)),
}


def taken_over(rig: StoreRig, lease: Lease) -> None:
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    rig.lease(2)


def canceled(rig: StoreRig, lease: Lease) -> None:
    with rig.store.begin() as tx:
        job = tx.jobs.lock(lease.job_id)
        assert job is not None
        stop_job(
            tx, rig.ctx, job, JobEvent.CANCEL, at_ms=rig.clock.now_ms(), message="by its owner", data={"by": "k"}
        )


def expired(rig: StoreRig, lease: Lease) -> None:
    with rig.store.begin() as tx:
        tx.jobs.update(lease.job_id, deadline_at_ms=rig.clock.now_ms())
    assert expire_deadlines(rig.ctx) == 1


def succeeded(rig: StoreRig, lease: Lease) -> None:
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=10))


def failed(rig: StoreRig, lease: Lease) -> None:
    fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.BAD_DATA, message="torn picture"))


@pytest.mark.parametrize("end", [taken_over, canceled, expired, succeeded, failed])
@pytest.mark.parametrize("write", WRITES)
def test_d2_d3_d4_nothing_that_an_ended_attempt_sends_is_written(
    rig: StoreRig, write: str, end: Callable[[StoreRig, Lease], None]
) -> None:
    rig.add_job()
    lease = rig.lease(1)
    rig.checkpoint(lease, 10)
    end(rig, lease)
    rig.add_blob(b"late")
    before = rig.whole_database()
    if (end, write) == (succeeded, "complete"):
        assert complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=999)).job_state == "succeeded"
    else:
        with pytest.raises(LeaseLost):
            WRITES[write](rig, lease)
    after = rig.whole_database()
    assert _less_touch(after) == _less_touch(before)


def _less_touch(database: dict[str, list[dict[str, object]]]) -> object:
    return {name: rows for name, rows in database.items() if name != "blobs"}


def test_d94_the_fence_is_the_attempt_and_not_the_machine(rig: StoreRig) -> None:
    rig.add_job()
    first = rig.lease(1)
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    second = rig.lease(rig.node(5, machine="machine-1", name="node-1"))
    with pytest.raises(LeaseLost):
        heartbeat(rig.ctx, first.attempt_id, Heartbeat(step=3))
    heartbeat(rig.ctx, second.attempt_id, Heartbeat(step=3))


@pytest.mark.parametrize("event", [JobEvent.CANCEL, JobEvent.EXPIRE])
@pytest.mark.parametrize("end", [canceled, expired, succeeded, failed])
def test_d5_a_job_that_is_over_stays_what_it_is(
    rig: StoreRig, end: Callable[[StoreRig, Lease], None], event: JobEvent
) -> None:
    job_id = rig.add_job()
    end(rig, rig.lease(1))
    before = rig.whole_database()
    with pytest.raises(IllegalTransition), rig.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        assert job is not None
        stop_job(tx, rig.ctx, job, event, at_ms=rig.clock.now_ms(), message="", data={})
    assert rig.whole_database() == before


def test_d30_the_refusal_of_a_canceled_attempt_says_what_the_job_is(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(10)
    canceled(rig, lease)
    with pytest.raises(LeaseLost, match="the job is canceled"):
        heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=3))
    assert rig.attempt(lease.attempt_id)["reason"] == "canceled"
    (bill,) = rig.rows(schema.ledger)
    assert bill["amount_micro_usd"] == 10 * 100  # up to the cancellation, not a moment longer
    assert rig.events(job_id)[-2:] == ["attempt.ended", "job.canceled"]


def test_d30_a_node_that_is_to_leave_is_told_to_drain(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat()).order is Order.CONTINUE
    with rig.store.begin() as tx:
        tx.connection.execute(sa.update(schema.nodes).values(draining=True))
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat()).order is Order.DRAIN


def test_an_attempt_that_is_ordered_to_drain_hears_it(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    with rig.store.begin() as tx:
        tx.attempts.update_live(lease.attempt_id, order=Order.DRAIN)
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat()).order is Order.DRAIN


def test_d31_heartbeats_add_no_rows(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1, phase="train"))
    sizes = {name: len(rows) for name, rows in rig.whole_database().items()}
    for step in range(2, 40):
        rig.clock.advance_s(30)
        heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=step, phase="train", total_steps=50))
    assert {name: len(rows) for name, rows in rig.whole_database().items()} == sizes
    assert rig.events(job_id) == ["attempt.started", "attempt.first_step"]
    job, attempt = rig.job(job_id), rig.attempt(lease.attempt_id)
    assert (job["step"], job["phase"], job["total_steps"]) == (39, "train", 50)
    assert (attempt["last_step"], attempt["renewed_at_ms"]) == (39, rig.clock.now_ms())
    (bill,) = rig.rows(schema.ledger)
    assert bill["amount_micro_usd"] == 38 * 30 * 100


def test_a_beat_that_was_overtaken_does_not_turn_progress_back(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    for step in (8, 5):
        heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=step))
    assert (rig.job(job_id)["step"], rig.attempt(lease.attempt_id)["last_step"]) == (8, 8)


def test_no_moment_is_billed_twice_though_the_clock_was_set_back(rig: StoreRig) -> None:
    job_id = rig.add_job()
    rig.clock.advance_s(3_600)
    lease = rig.lease(1)
    rig.clock.advance_s(40)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=0))
    rig.clock.advance_s(100)
    assert lapse_leases(rig.ctx) == 1
    rig.clock.advance_s(-1_000)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1))
    rig.clock.advance_s(900)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=2))
    first, second = rig.rows(schema.ledger)
    assert first["to_ms"] <= second["from_ms"] <= second["to_ms"]
    assert [first["amount_micro_usd"], second["amount_micro_usd"]] == [4_000, 0]
    attempt = rig.attempt(lease.attempt_id)
    assert attempt["first_step_at_ms"] >= attempt["started_at_ms"]
    assert get_job(rig.ctx, OWNER, job_id).useful_s == 0


def test_d57_a_lease_that_ran_out_is_renewed_while_nobody_has_the_job(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(40)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=4))
    rig.clock.advance_s(100)
    assert lapse_leases(rig.ctx) == 1
    assert lapse_leases(rig.ctx) == 0
    assert (rig.job(job_id)["state"], rig.job(job_id)["fruitless"]) == ("queued", 1)
    rig.clock.advance_s(60)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=5))
    assert (rig.job(job_id)["state"], rig.job(job_id)["fruitless"]) == ("running", 0)
    assert rig.claim(2).reason == "empty-queue"
    rig.clock.advance_s(10)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=6))
    assert [row["amount_micro_usd"] for row in rig.rows(schema.ledger)] == [4_000, 1_000]
    assert rig.events(job_id) == [
        "attempt.started",
        "attempt.first_step",
        "attempt.lapsed",
        "attempt.renewed",
        "attempt.ended",
        "job.succeeded",
    ]


@pytest.mark.parametrize(("write", "state"), [("complete", "succeeded"), ("fail", "failed"), ("release", "queued")])
def test_a_lapsed_attempt_may_still_report_its_end(rig: StoreRig, write: str, state: str) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    WRITES[write](rig, lease)
    assert rig.job(job_id)["state"] == state
    (bill,) = rig.rows(schema.ledger)
    assert bill["amount_micro_usd"] == 0  # it was never heard of after the claim, until its lease was over


def test_a_lease_that_runs_is_left_alone(rig: StoreRig) -> None:
    rig.add_job()
    rig.lease(1)
    rig.clock.advance_s(rig.ctx.policy.lease_s)
    assert lapse_leases(rig.ctx) == 0
    rig.clock.advance_s(0.001)
    assert lapse_leases(rig.ctx) == 1


def test_a_lease_that_is_renewed_while_the_loop_comes_by_is_left_alone(rig: StoreRig) -> None:
    """The beat arrives after the loop has listed the attempt, and before it deals with it."""

    class BeatsAtSecondLook:
        def __init__(self) -> None:
            self.looks = 0

        def now_ms(self) -> int:
            self.looks += 1
            if self.looks == 2:
                heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1))
            return rig.clock.now_ms()

    job_id = rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(100)
    looking = BeatsAtSecondLook()
    assert lapse_leases(dataclasses.replace(rig.ctx, clock=looking)) == 0
    assert looking.looks == 2
    assert rig.job(job_id)["state"] == "running"


def test_a_job_that_silences_every_node_fails_in_the_end(rig: StoreRig) -> None:
    job_id = rig.add_job()
    for number in range(1, rig.ctx.policy.max_fruitless + 1):
        rig.lease(number)
        rig.clock.advance_s(100)
        lapse_leases(rig.ctx)
    job = rig.job(job_id)
    assert job["state"] == "failed"
    assert "10 attempts in a row" in job["error"]
    assert rig.events(job_id)[-2:] == ["attempt.ended", "job.failed"]
    assert rig.rows(schema.attempts)[-1]["reason"] == "lease_expired"
    assert rig.rows(schema.strikes) == []


def test_progress_clears_the_count_of_fruitless_attempts(rig: StoreRig) -> None:
    job_id = rig.add_job()
    for number in range(1, 30):
        lease = rig.lease(number)
        if number % 9 == 0:
            rig.checkpoint(lease, number)
        rig.clock.advance_s(100)
        lapse_leases(rig.ctx)
    assert rig.job(job_id)["state"] == "queued"


def test_a_job_expires_at_its_deadline_queued_or_running(rig: StoreRig) -> None:
    now_ms = rig.clock.now_ms()
    running = rig.add_job(deadline_at_ms=now_ms + 50_000)
    queued = rig.add_job(deadline_at_ms=now_ms + 60_000)
    later = rig.add_job(deadline_at_ms=now_ms + 60_001)
    lease = rig.lease(1)
    assert lease.job_id == running
    assert expire_deadlines(rig.ctx) == 0
    rig.clock.advance_s(60)
    assert expire_deadlines(rig.ctx) == 2
    assert [rig.job(job_id)["state"] for job_id in (running, queued, later)] == ["expired", "expired", "queued"]
    with pytest.raises(LeaseLost, match="the job is expired"):
        heartbeat(rig.ctx, lease.attempt_id, Heartbeat())
    assert rig.events(queued) == ["job.expired"]


def test_d38_the_interval_of_interruptions_follows_what_happened(rig: StoreRig) -> None:
    for _ in range(21):
        rig.add_job()
    before_s = rig.lease(1).mtbi_s
    for number in range(2, 22):
        lease = rig.lease(number)
        rig.clock.advance_s(60)
        release(rig.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED))
    after_s = rig.lease(99).mtbi_s
    assert before_s == pytest.approx(35 * 3600)
    # 20 interruptions in 20 minutes besides the prior's one in 35 hours.
    assert after_s == pytest.approx((20 * 60 + 35 * 3600) / 21)
    rig.clock.advance_s(8 * 86_400)
    assert rig.lease(98).mtbi_s == pytest.approx(35 * 3600)


def test_log_lines_are_had_once_and_up_to_a_bound(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    for first in (0, 1, 0):
        add_log_lines(rig.ctx, lease.attempt_id, LogLines(first=first, lines=(f"line {first}", f"line {first + 1}")))
    assert [row["line"] for row in rig.rows(schema.logs)] == ["line 0", "line 1", "line 2"]
    most = rig.ctx.policy.max_log_lines_per_job
    many = [{"job_id": job_id, "attempt_number": 1, "number": n, "line": "x", "at_ms": 1} for n in range(3, most - 1)]
    with rig.store.begin() as tx:
        tx.connection.execute(sa.insert(schema.logs), many)
    for first in (most, most + 10):
        add_log_lines(rig.ctx, lease.attempt_id, LogLines(first=first, lines=("a", "b", "c")))
    assert len(rig.rows(schema.logs)) == most
    assert rig.events(job_id).count("notice") == 1


def test_metrics_of_a_later_attempt_win(rig: StoreRig) -> None:
    rig.add_job()
    first = rig.lease(1)
    put_metrics(
        rig.ctx,
        first.attempt_id,
        MetricBatch(points=(StepMetrics(step=1, values={"loss": 1.0}), StepMetrics(step=2, values={"loss": 2.0}))),
    )
    release(rig.ctx, first.attempt_id, ReleaseAttempt())
    second = rig.lease(2)
    heartbeat(rig.ctx, second.attempt_id, Heartbeat(step=2, metrics={"loss": 2.5}))
    with rig.store.begin() as tx:
        stale = tx.attempts.get(first.attempt_id)
        assert stale is not None
        tx.reports.put_metrics([(stale, 2, {"loss": 9.0})], at_ms=1)
    assert [(row["step"], row["values"]["loss"]) for row in rig.rows(schema.metrics)] == [(1, 1.0), (2, 2.5)]


def test_metrics_move_the_jobs_progress_between_two_beats_and_never_back(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    later = MetricBatch(points=(StepMetrics(step=3, values={"loss": 1.0}), StepMetrics(step=7, values={"loss": 0.5})))
    earlier = MetricBatch(points=(StepMetrics(step=2, values={"loss": 1.5}),))
    for batch in (later, earlier):
        put_metrics(rig.ctx, lease.attempt_id, batch)
        assert [row["step"] for row in rig.rows(schema.jobs)] == [7]
        assert [row["last_step"] for row in rig.rows(schema.attempts)] == [7]
