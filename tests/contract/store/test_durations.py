"""How long jobs waited and took, as the server that handed them out saw it."""

from tests.fixtures.work import Workshop
from tests.fixtures.world import START_MS

from giornata.control.attempts.complete import complete
from giornata.control.attempts.reported_ends import fail, release
from giornata.control.durations import LENGTH_BOUNDS_S, WAIT_BOUNDS_S
from giornata.control.jobs.stop_job import expire_deadlines, stop_job
from giornata.domain.job import JobEvent
from giornata.domain.reasons import Reason
from giornata.protocol.work import CompleteAttempt, FailAttempt, ReleaseAttempt


def seconds(shop: Workshop) -> tuple[dict[str, float], dict[str, float]]:
    """Waits by kind, and lengths by state: the sums."""
    waits = {kind: times.total for kind, times in shop.ctx.durations.waits().items()}
    return waits, {state: times.total for (_, state), times in shop.ctx.durations.lengths().items()}


def test_a_wait_is_counted_once_from_submission_to_the_first_attempt(shop: Workshop) -> None:
    shop.add_job(created_at_ms=START_MS)
    shop.clock.advance_s(90)
    first = shop.lease(1)
    shop.clock.advance_s(30)
    release(shop.ctx, first.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED, message="", step=0))
    shop.clock.advance_s(500)
    second = shop.lease(2)
    assert seconds(shop) == ({"train": 90.0}, {})
    assert sum(shop.ctx.durations.waits()["train"].counts) == 1

    shop.clock.advance_s(70)
    complete(shop.ctx, second.attempt_id, CompleteAttempt(step=1))
    complete(shop.ctx, second.attempt_id, CompleteAttempt(step=1))
    assert seconds(shop) == ({"train": 90.0}, {"succeeded": 600.0})
    lengths = shop.ctx.durations.lengths()["train", "succeeded"]
    assert lengths.counts == [int(bound == 900) for bound in LENGTH_BOUNDS_S] + [0]
    assert shop.ctx.durations.waits()["train"].counts == [int(bound == 300) for bound in WAIT_BOUNDS_S] + [0]


def test_every_end_of_a_job_that_ran_is_counted_by_its_state(shop: Workshop) -> None:
    shop.add_job()
    failed = shop.lease(1)
    shop.clock.advance_s(5)
    fail(shop.ctx, failed.attempt_id, FailAttempt(reason=Reason.BAD_SPEC, message="no"))

    canceled = shop.add_job()
    shop.lease(2)
    never_ran = shop.add_job()
    shop.clock.advance_s(7)
    with shop.store.begin() as tx:
        for job_id in (canceled, never_ran):
            job = tx.jobs.lock(job_id)
            assert job is not None
            stop_job(tx, shop.ctx, job, JobEvent.CANCEL, at_ms=shop.clock.now_ms(), message="", data={})

    shop.add_job(deadline_at_ms=shop.clock.now_ms() + 10_000)
    shop.lease(3)
    shop.clock.advance_s(11)
    assert expire_deadlines(shop.ctx) == 1
    assert seconds(shop)[1] == {"failed": 5.0, "canceled": 7.0, "expired": 11.0}
