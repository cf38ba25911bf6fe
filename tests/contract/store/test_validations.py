"""Validations: jobs that draw a training job's sample images from its checkpoints, on any node."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.fixtures.work import Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.reported_ends import release
from giornata.control.jobs.stop_job import expire_deadlines, stop_job
from giornata.control.storage.collect import collect
from giornata.domain.job import JobEvent
from giornata.protocol.specs import VALIDATE_KIND, step_artifacts
from giornata.protocol.work import CompleteAttempt, Lease, ReleaseAttempt
from giornata.store import schema

SPEC: dict[str, Any] = {
    "pretrained_model_name_or_path": "base",
    "validation_steps": 4,
    "validation_by": "fleet",
    "sample_prompts": ["a toy"],
    "max_train_steps": 12,
    "checkpoints_keep_latest": 1,
}
SHEET = "samples-00000004.png"


def _by_step(row: Mapping[str, Any]) -> tuple[int, str]:
    return row["spec"]["step"], row["name"]


def validations(shop: Workshop) -> list[tuple[str, str]]:
    """Name and state of each, in the order in which they were made."""
    rows = shop.rows(schema.jobs, kind=VALIDATE_KIND)
    return [(row["name"], row["state"]) for row in sorted(rows, key=_by_step)]


def validation(shop: Workshop, node: int = 2, **claim: Any) -> Lease:
    return shop.lease(node, kinds=(VALIDATE_KIND,), **claim)


def in_training(shop: Workshop, **changes: Any) -> tuple[str, Lease]:
    job_id = shop.add_job(spec=SPEC | changes, model_key="base|||")
    return job_id, shop.lease(1)


def test_a_checkpoint_of_a_validation_step_makes_a_validation_and_names_it(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    for step in (3, 4, 12):
        shop.checkpoint(training, step)
    assert validations(shop) == [(f"{job_id}@4", "queued")]
    (made,) = shop.rows(schema.jobs, kind=VALIDATE_KIND)
    assert (made["priority"], made["model_key"]) == (-101, "base|||")
    assert made["deadline_at_ms"] == shop.clock.now_ms() + 24 * 3_600_000
    told = [row["data"] for row in shop.rows(schema.events, job_id=job_id, type="checkpoint.committed")]
    assert [row.get("validation") for row in told] == [None, made["id"], None]
    assert shop.events(made["id"]) == ["job.submitted"]


@pytest.mark.parametrize("changes", [{"validation_by": "process"}, {"validation_steps": None}])
def test_a_job_that_draws_for_itself_makes_none(shop: Workshop, changes: dict[str, Any]) -> None:
    _, training = in_training(shop, **changes)
    shop.checkpoint(training, 4)
    assert validations(shop) == []


def test_a_commit_that_is_repeated_makes_one_validation(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    shop.checkpoint(training, 4)
    shop.checkpoint(training, 4)
    assert validations(shop) == [(f"{job_id}@4", "queued")]


def test_the_lease_has_the_checkpoint_and_the_spec_of_the_training_job(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    shop.checkpoint(training, 4)
    sha256 = shop.sha256_of(training, 4)
    lease = validation(shop)
    assert [(each.role, each.download.sha256) for each in lease.inputs] == [("checkpoint", sha256)]
    assert lease.spec == {"job": job_id, "step": 4, "checkpoint": sha256, "training": SPEC}
    assert (lease.checkpoints, lease.joint_key) == ((), None)


def test_a_newer_checkpoint_replaces_a_validation_that_no_node_has_begun(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    other, of_another = in_training(shop)
    shop.checkpoint(of_another, 4)
    shop.checkpoint(training, 4)
    shop.checkpoint(training, 8)
    assert validations(shop) == [
        (f"{job_id}@4", "canceled"),
        (f"{other}@4", "queued"),
        (f"{job_id}@8", "queued"),
    ]
    old, _, new = sorted(shop.rows(schema.jobs, kind=VALIDATE_KIND), key=_by_step)
    assert shop.last_event(old["id"], "job.canceled") == {"by": new["id"]}
    assert [validation(shop, number).spec["job"] for number in (2, 3)] == [other, job_id]


def test_a_validation_that_a_node_has_begun_stays(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    shop.checkpoint(training, 4)
    begun = validation(shop)
    shop.checkpoint(training, 8)
    assert validations(shop) == [(f"{job_id}@4", "running"), (f"{job_id}@8", "queued")]
    release(shop.ctx, begun.attempt_id, ReleaseAttempt())
    assert {validation(shop, number).spec["step"] for number in (3, 4)} == {4, 8}


def test_the_sheet_is_a_result_of_the_training_job_and_stays_one(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    shop.checkpoint(training, 4)
    lease = validation(shop)
    shop.artifact(lease, SHEET, b"the sheet")
    complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=4, artifacts=(SHEET,)))
    complete(shop.ctx, training.attempt_id, CompleteAttempt(step=12))
    found = {row["job_id"]: (row["name"], row["sha256"]) for row in shop.rows(schema.artifacts)}
    assert found.keys() == {job_id, lease.job_id}
    assert found[job_id] == found[lease.job_id]
    assert SHEET in step_artifacts("train", SPEC)
    told = shop.last_event(job_id, "artifact.committed")
    assert (told["name"], told["validation"]) == (SHEET, lease.job_id)


def test_a_sheet_that_comes_after_the_training_job_has_ended_is_its_result_too(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    shop.checkpoint(training, 4)
    complete(shop.ctx, training.attempt_id, CompleteAttempt(step=12))
    lease = validation(shop)
    shop.artifact(lease, SHEET)
    assert [row["name"] for row in shop.rows(schema.artifacts, job_id=job_id)] == [SHEET]
    assert shop.job(job_id)["state"] == "succeeded"


def test_a_checkpoint_is_kept_until_its_validation_has_ended(shop: Workshop) -> None:
    _, training = in_training(shop)
    shop.checkpoint(training, 4)
    sha256 = shop.sha256_of(training, 4)
    lease = validation(shop)
    shop.checkpoint(training, 5)  # one is kept
    assert [row["step"] for row in shop.rows(schema.checkpoints)] == [5]
    shop.clock.advance_s(shop.ctx.policy.garbage_after_s + 1)
    collect(shop.ctx)
    assert shop.rows(schema.blobs, sha256=sha256)
    complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=4))
    assert collect(shop.ctx).checkpoints == 1
    assert not shop.rows(schema.blobs, sha256=sha256)
    assert not collect(shop.ctx).checkpoints


def test_a_training_job_that_is_canceled_cancels_what_no_node_has_begun(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    shop.checkpoint(training, 4)
    begun = validation(shop)
    shop.checkpoint(training, 8)
    with shop.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        assert job is not None
        stop_job(tx, shop.ctx, job, JobEvent.CANCEL, at_ms=shop.clock.now_ms(), message="", data={"by": "key_1"})
    assert validations(shop) == [(f"{job_id}@4", "running"), (f"{job_id}@8", "canceled")]
    assert shop.job(begun.job_id)["state"] == "running"


def test_a_validation_that_nobody_draws_expires_after_a_day(shop: Workshop) -> None:
    job_id, training = in_training(shop)
    shop.checkpoint(training, 4)
    complete(shop.ctx, training.attempt_id, CompleteAttempt(step=12))
    shop.clock.advance_s(24 * 3600)
    assert expire_deadlines(shop.ctx) == 1
    assert validations(shop) == [(f"{job_id}@4", "expired")]


def test_training_goes_before_validations_on_a_node_that_does_both(shop: Workshop) -> None:
    _, training = in_training(shop)
    shop.checkpoint(training, 4)
    later = shop.add_job(spec={"max_train_steps": 1}, priority=-100)
    both = ("train", VALIDATE_KIND)
    assert shop.lease(2, kinds=both).job_id == later
    assert shop.lease(3, kinds=both).kind == VALIDATE_KIND
