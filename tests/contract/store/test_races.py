"""What happens at the same moment: one of two wins, and the other one is told."""

import threading
from collections.abc import Callable

from tests.fixtures.store_rig import PRICE, StoreRig

from giornata.control.attempts.commit import commit_checkpoint
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.jobs.stop_job import stop_job
from giornata.control.storage.uploads import request_attempt_uploads
from giornata.domain.errors import Conflict
from giornata.domain.jobs.job import JobEvent
from giornata.protocol.node.work import CompleteAttempt, Heartbeat
from giornata.protocol.uploads import FileToUpload, UploadRequest
from giornata.store import schema

ROUNDS = 8


def at_once(*actions: Callable[[], object]) -> list[object]:
    """Do all of them at the same moment; what each returned, or the Conflict that it raised."""
    outcomes: list[object] = [None] * len(actions)
    start = threading.Barrier(len(actions))

    def do(place: int) -> None:
        start.wait()
        try:
            outcomes[place] = actions[place]()
        except Conflict as error:
            outcomes[place] = error

    threads = [threading.Thread(target=do, args=(place,)) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_a_silent_node_comes_back_just_as_another_one_asks(rig: StoreRig) -> None:
    """Exactly one of the two has the job afterwards."""
    for number in range(1, 2 * ROUNDS, 2):
        job_id = rig.add_job()
        lease = rig.lease(number)
        rig.clock.advance_s(100)
        lapse_leases(rig.ctx)
        back, claimed = at_once(
            lambda lease=lease: heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)),  # type: ignore[misc]
            lambda number=number: rig.claim(number + 1).lease,  # type: ignore[misc]
        )
        assert isinstance(back, Conflict) is (claimed is not None), (back, claimed)
        (alive,) = rig.rows(schema.attempts, job_id=job_id, ended_at_ms=None)
        job = rig.job(job_id)
        assert (job["attempt_id"], job["state"]) == (alive["id"], "running")
        complete(rig.ctx, alive["id"], CompleteAttempt(step=1))


def test_a_job_is_done_just_as_its_owner_cancels_it(rig: StoreRig) -> None:
    for number in range(1, ROUNDS):
        job_id = rig.add_job()
        lease = rig.lease(number)
        done, canceled = at_once(
            lambda lease=lease: complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1)),  # type: ignore[misc]
            lambda job_id=job_id: cancel(rig, job_id),  # type: ignore[misc]
        )
        state = rig.job(job_id)["state"]
        assert isinstance(done, Conflict) is (state == "canceled")
        assert isinstance(canceled, Conflict) is (state == "succeeded")
        assert rig.events(job_id)[-1] == f"job.{state}"
        assert rig.events(job_id).count("attempt.ended") == 1


def test_beats_claims_lapses_and_repeats_of_one_node_do_not_lock_one_another_out(rig: StoreRig) -> None:
    for _ in range(ROUNDS):
        rig.add_job()
    leases = [rig.lease(1, request_id=f"request-{number}") for number in range(4)]
    actions: list[Callable[[], object]] = []
    for number, lease in enumerate(leases):
        actions += [
            lambda lease=lease: [  # type: ignore[misc]
                heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=step)) for step in range(10)
            ],
            lambda number=number: [rig.lease(1, request_id=f"request-{number}") for _ in range(10)],  # type: ignore[misc]
        ]
    outcomes = at_once(*actions, lambda: [lapse_leases(rig.ctx) for _ in range(10)])
    assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
    assert len(rig.rows(schema.attempts)) == len(leases)


def test_concurrent_beats_bill_every_millisecond_once(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(36)
    at_once(*[lambda: heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)) for _ in range(6)])
    (bill,) = rig.rows(schema.ledger)
    assert bill["amount_micro_usd"] == PRICE // 100


def cancel(rig: StoreRig, job_id: str) -> object:
    """What the owner's verb does."""
    with rig.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        assert job is not None
        return stop_job(tx, rig.ctx, job, JobEvent.CANCEL, at_ms=rig.clock.now_ms(), message="", data={})


def test_a_commit_and_a_repeated_request_for_its_upload_do_not_lock_one_another_out(rig: StoreRig) -> None:
    """Both hold the attempt's job before the bytes, so that neither waits for what the other one has."""
    rig.add_job()
    lease = rig.lease(1)
    commit = rig.add_blob(b"the same bytes")
    request = UploadRequest(files=(FileToUpload(sha256=commit.sha256, size_bytes=commit.size_bytes),))

    def commit_some(first: int) -> list[object]:
        steps = range(first, first + 8 * ROUNDS)
        return [commit_checkpoint(rig.ctx, lease.attempt_id, commit.model_copy(update={"step": n})) for n in steps]

    def ask_again() -> list[object]:
        return [request_attempt_uploads(rig.ctx, lease.attempt_id, request) for _ in range(8 * ROUNDS)]

    outcomes = at_once(lambda: commit_some(1), ask_again, ask_again)
    assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
