"""How long jobs waited and took, as the server that handed them out saw it."""

from tests.fixtures.contexts import START_MS
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.jobs.stop_job import expire_deadlines, stop_job
from giornata.control.memory.durations import LENGTH_BOUNDS_S, WAIT_BOUNDS_S
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, ReleaseAttempt


def seconds(rig: StoreRig) -> tuple[dict[str, float], dict[str, float]]:
    """Waits by kind, and lengths by state: the sums."""
    waits = {kind: times.total for kind, times in rig.ctx.durations.waits().items()}
    return waits, {state: times.total for (_, state), times in rig.ctx.durations.lengths().items()}


def test_a_wait_is_counted_once_from_submission_to_the_first_attempt(rig: StoreRig) -> None:
    rig.add_job(created_at_ms=START_MS)
    rig.clock.advance_s(90)
    first = rig.lease(1)
    rig.clock.advance_s(30)
    release(rig.ctx, first.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED, message="", step=0))
    rig.clock.advance_s(500)
    second = rig.lease(2)
    assert seconds(rig) == ({"train": 90.0}, {})
    assert sum(rig.ctx.durations.waits()["train"].counts) == 1

    rig.clock.advance_s(70)
    complete(rig.ctx, second.attempt_id, CompleteAttempt(step=1))
    complete(rig.ctx, second.attempt_id, CompleteAttempt(step=1))
    assert seconds(rig) == ({"train": 90.0}, {"succeeded": 600.0})
    lengths = rig.ctx.durations.lengths()["train", "succeeded"]
    assert lengths.counts == [int(bound == 900) for bound in LENGTH_BOUNDS_S] + [0]
    assert rig.ctx.durations.waits()["train"].counts == [int(bound == 300) for bound in WAIT_BOUNDS_S] + [0]


def test_every_end_of_a_job_that_ran_is_counted_by_its_state(rig: StoreRig) -> None:
    rig.add_job()
    failed = rig.lease(1)
    rig.clock.advance_s(5)
    fail(rig.ctx, failed.attempt_id, FailAttempt(reason=Reason.BAD_SPEC, message="no"))

    canceled = rig.add_job()
    rig.lease(2)
    never_ran = rig.add_job()
    rig.clock.advance_s(7)
    with rig.store.begin() as tx:
        for job_id in (canceled, never_ran):
            job = tx.jobs.lock(job_id)
            assert job is not None
            stop_job(tx, rig.ctx, job, JobEvent.CANCEL, at_ms=rig.clock.now_ms(), message="", data={})

    rig.add_job(deadline_at_ms=rig.clock.now_ms() + 10_000)
    rig.lease(3)
    rig.clock.advance_s(11)
    assert expire_deadlines(rig.ctx) == 1
    assert seconds(rig)[1] == {"failed": 5.0, "canceled": 7.0, "expired": 11.0}
