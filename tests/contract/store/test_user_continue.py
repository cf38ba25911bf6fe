"""Training that starts from what was trained: from an uploaded file, or from an ended job."""

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN, BOB, NODE, claim, end, have, move_in, new_dataset, new_job, progress, train

from giornata.control.context import Context
from giornata.control.jobs.reading.job_outputs import read_checkpoints
from giornata.control.jobs.retry import CONTINUED_FROM, continue_training, retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.estimate import estimate
from giornata.control.jobs.submission.submit import submit
from giornata.control.storage.collect import collect
from giornata.domain.errors import Forbidden, IdempotencyMismatch, IllegalTransition, InvalidInput, NotFound
from giornata.domain.jobs.job import JobEvent, JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import ContinueJob, Job, SubmitJob
from giornata.store.database.database import Database
from giornata.store.schema import checkpoints

A_LORA = b"bytes of somebody's lora"
DAY_S = 24 * 3600
AGAIN = ContinueJob()


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def trained(ctx: Context, *, step: int = 10, **spec: object) -> Job:
    """A job of ANN that has succeeded, with its last checkpoint."""
    job = new_job(ctx, rank=4, seed=7, max_train_steps=step, **spec)
    lease = claim(ctx)
    progress(ctx, lease, step=5, committed=b"weights after 5")
    progress(ctx, lease, step=step, committed=f"weights after {step}".encode())
    end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=step)
    return job


def again(ctx: Context, job: Job, key: str | None = None, **fields: object) -> Job:
    return continue_training(ctx, ANN, job.id, ContinueJob.model_validate(fields), key)[0]


def pass_a_week(ctx: Context, clock: ManualClock, tmp_path: Path) -> None:
    """Far longer than the collector leaves alone what nobody refers to."""
    for path in (tmp_path / "blobs").rglob("*"):
        os.utime(path, (clock.now_ms() / 1000, clock.now_ms() / 1000))
    clock.advance_s(7 * DAY_S)
    collect(ctx)


# ---- from a file


def test_the_file_travels_with_the_lease_and_stays_while_the_job_is_known(
    ctx: Context, clock: ManualClock, tmp_path: Path
) -> None:
    sha256 = have(ctx, ANN, A_LORA)
    job = new_job(ctx, network_weights=sha256)
    assert job.spec["init_lora"] == sha256
    pass_a_week(ctx, clock, tmp_path)
    inputs = claim(ctx).inputs
    (found,) = [each for each in inputs if each.role == "init_lora"]
    assert (found.download.sha256, found.download.size_bytes) == (sha256, len(A_LORA))
    assert found.caption is None
    assert {each.role for each in inputs} == {"instance", "init_lora"}
    with ctx.store.read() as tx:
        key = tx.uploads.blobs("ann", [sha256])[sha256].key
    assert b"".join(ctx.blobs.read(key)) == A_LORA


def test_a_file_that_nobody_refers_to_goes(ctx: Context, clock: ManualClock, tmp_path: Path) -> None:
    sha256 = have(ctx, ANN, A_LORA)
    pass_a_week(ctx, clock, tmp_path)
    with pytest.raises(InvalidInput, match=r"spec\.init_lora"):
        new_job(ctx, init_lora=sha256)


def test_a_retry_reads_the_same_file(ctx: Context) -> None:
    job = new_job(ctx, init_lora=have(ctx, ANN, A_LORA))
    cancel(ctx, ANN, job.id)
    retry(ctx, ANN, job.id)
    assert "init_lora" in {each.role for each in claim(ctx).inputs}


def test_a_file_that_is_not_there_is_told_with_all_other_faults(ctx: Context) -> None:
    bobs = have(ctx, BOB, A_LORA)
    spec = {"model": "some/model", "dataset": "ds_0", "rank": 0, "init_lora": bobs}
    for refusing in (
        lambda: submit(ctx, ANN, SubmitJob(spec=spec), None),
        lambda: estimate(ctx, ANN, SubmitJob(spec=spec)),
    ):
        with pytest.raises(InvalidInput) as failure:
            refusing()
        assert {fault.where for fault in failure.value.faults} == {"spec.dataset", "spec.rank", "spec.init_lora"}
    with pytest.raises(InvalidInput, match=r"spec\.init_lora"):
        submit(ctx, ANN, train(new_dataset(ctx), init_lora="../etc/passwd"), None)


# ---- from a job


def test_a_continued_job_starts_from_the_last_checkpoint(ctx: Context) -> None:
    old = trained(ctx)
    newest, before = read_checkpoints(ctx, ANN, old.id).items
    assert (newest.step, before.step) == (10, 5)
    job = again(ctx, old)
    assert job.id != old.id
    assert (job.state, job.step, job.committed_step, job.retry_of) == (JobState.QUEUED, 0, 0, None)
    assert job.spec["init_lora"] == newest.sha256
    assert job.labels[CONTINUED_FROM] == old.id
    own = {"seed", "init_lora", "output_name"}
    same = {name: value for name, value in job.spec.items() if name not in own}
    assert same == {name: value for name, value in old.spec.items() if name not in own}
    assert job.spec["seed"] not in {None, old.spec["seed"]}
    lease = claim(ctx)
    assert lease.job_id == job.id
    assert not lease.checkpoints
    (start,) = [each for each in lease.inputs if each.role == "init_lora"]
    assert start.download.sha256 == newest.sha256


def test_continue_changes_named_fields_and_keeps_the_rest(ctx: Context) -> None:
    old, other = trained(ctx, train_batch_size=2), new_dataset(ctx, caption="a new caption")
    fields = {"dataset": other.id, "network_dim": 8, "unet_lr": 1e-5, "seed": 3, "class_prompt": None}
    job = again(ctx, old, spec=fields, name="more", priority=5, labels={"team": "a"})
    assert (job.spec["dataset"], job.spec["rank"], job.spec["learning_rate"]) == (other.id, 8, 1e-5)
    assert (job.spec["seed"], job.spec["train_batch_size"]) == (3, 2)
    assert (job.name, job.priority, job.labels) == ("more", 5, {"team": "a", CONTINUED_FROM: old.id})


def test_a_continued_job_can_be_continued(ctx: Context) -> None:
    second = again(ctx, trained(ctx))
    lease = claim(ctx)
    progress(ctx, lease, step=10, committed=b"weights of the second")
    end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    third = again(ctx, second)
    assert third.spec["init_lora"] == read_checkpoints(ctx, ANN, second.id).items[0].sha256
    assert third.labels[CONTINUED_FROM] == second.id


def test_the_start_outlives_the_old_jobs_checkpoints(
    ctx: Context, store: Database, clock: ManualClock, tmp_path: Path
) -> None:
    job = again(ctx, trained(ctx))
    with store.begin() as tx:
        tx.connection.execute(sa.delete(checkpoints))
    pass_a_week(ctx, clock, tmp_path)
    (start,) = [each for each in claim(ctx).inputs if each.role == "init_lora"]
    with ctx.store.read() as tx:
        key = tx.uploads.blobs("ann", [start.download.sha256])[start.download.sha256].key
    assert b"".join(ctx.blobs.read(key)) == b"weights after 10"
    assert job.spec["init_lora"] == start.download.sha256


def test_continue_repeated_with_same_idempotency_key_returns_same_job(ctx: Context) -> None:
    old = trained(ctx)
    first = again(ctx, old, "once")
    assert again(ctx, old, "once").id == first.id
    assert again(ctx, old, "twice").id != first.id
    with pytest.raises(IdempotencyMismatch):
        again(ctx, old, "once", spec={"rank": 8})


def test_continue_of_live_foreign_or_untrained_job_is_refused_with_reason(ctx: Context) -> None:
    live = new_job(ctx)
    with pytest.raises(IllegalTransition, match="queued"):
        again(ctx, live)
    cancel(ctx, ANN, live.id)
    with pytest.raises(InvalidInput, match="no checkpoint"):
        again(ctx, live)
    own, _ = submit(ctx, ANN, SubmitJob(kind="x-own", spec={"steps": 1}), None)
    cancel(ctx, ANN, own.id)
    with pytest.raises(InvalidInput, match="only train continues"):
        again(ctx, own)
    for caller, error in ((BOB, NotFound), (NODE, Forbidden)):
        with pytest.raises(error):
            continue_training(ctx, caller, live.id, AGAIN, None)


def test_all_that_is_wrong_with_the_changes_is_told(ctx: Context) -> None:
    old = trained(ctx)
    with pytest.raises(InvalidInput) as failure:
        again(ctx, old, spec={"rank": 8, "network_dim": 4, "init_lora": "0" * 64})
    assert {fault.where for fault in failure.value.faults} == {"spec.network_dim", "spec.init_lora"}
    with pytest.raises(InvalidInput) as failure:
        again(ctx, old, spec={"rank": 0, "rnak": 4, "dataset": "ds_0"})
    assert {fault.where for fault in failure.value.faults} == {"spec.rank", "spec.rnak", "spec.dataset"}


@pytest.mark.parametrize(
    ("was", "changed"),
    [
        ({"use_dora": True, "train_text_encoder": True}, {"use_dora": False, "train_text_encoder": False, "rank": 2}),
        ({"adapter_type": "lokr", "output_formats": ["kohya"]}, {"rank": 8, "decompose_factor": 4}),
        ({"target_modules": ["to_q", "to_k"]}, {"target_modules": ["to_q"]}),
        ({"adapter_type": "lokr", "output_formats": ["kohya"]}, {"adapter_type": "lora"}),
    ],
)
def test_continue_with_spec_that_the_trained_adapter_does_not_fit_is_refused(
    ctx: Context, was: dict[str, object], changed: dict[str, object]
) -> None:
    old = trained(ctx, **was)
    with pytest.raises(InvalidInput) as failure:
        again(ctx, old, spec=changed)
    assert {fault.where for fault in failure.value.faults} == {f"spec.{name}" for name in changed}
    assert all(fault.hint for fault in failure.value.faults)
    assert again(ctx, old).spec["rank"] == 4


def test_new_tokens_cannot_be_taken_over(ctx: Context) -> None:
    old = trained(ctx, train_text_encoder_ti=True, instance_prompt="a photo of TOK")
    without = {"train_text_encoder_ti": False, "instance_prompt": "a dog"}
    for changes, said in (({}, "cannot be taken over"), (without, "without it the new tokens would be lost")):
        with pytest.raises(InvalidInput) as failure:
            again(ctx, old, spec=changes)
        assert [fault.where for fault in failure.value.faults] == ["spec.train_text_encoder_ti"]
        assert said in failure.value.faults[0].message
