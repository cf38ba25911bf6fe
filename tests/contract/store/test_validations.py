"""Validations: jobs that draw a training job's sample images from its checkpoints, on any node."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.jobs.stop_job import expire_deadlines, stop_job
from giornata.control.ports.user_queries.records import OrderFile
from giornata.control.storage.collect import collect
from giornata.domain.jobs.job import JobEvent
from giornata.protocol.node.work import CompleteAttempt, Lease, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.specs import VALIDATE_KIND, step_artifacts
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


def validations(rig: StoreRig) -> list[tuple[str, str]]:
    """Name and state of each, in the order in which they were made."""
    rows = rig.rows(schema.jobs, kind=VALIDATE_KIND)
    return [(row["name"], row["state"]) for row in sorted(rows, key=_by_step)]


def validation(rig: StoreRig, node: int = 2, **claim: Any) -> Lease:
    return rig.lease(node, kinds=(VALIDATE_KIND,), **claim)


def in_training(rig: StoreRig, **changes: Any) -> tuple[str, Lease]:
    job_id = rig.add_job(spec=SPEC | changes, model_key="base|||")
    return job_id, rig.lease(1)


def test_a_checkpoint_of_a_validation_step_makes_a_validation_and_names_it(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    for step in (3, 4, 12):
        rig.checkpoint(training, step)
    assert validations(rig) == [(f"{job_id}@4", "queued")]
    (made,) = rig.rows(schema.jobs, kind=VALIDATE_KIND)
    assert (made["priority"], made["model_key"]) == (-101, "base|||")
    assert made["deadline_at_ms"] == rig.clock.now_ms() + 24 * 3_600_000
    told = [row["data"] for row in rig.rows(schema.events, job_id=job_id, type="checkpoint.committed")]
    assert [row.get("validation") for row in told] == [None, made["id"], None]
    assert rig.events(made["id"]) == ["job.submitted"]


@pytest.mark.parametrize("changes", [{"validation_by": "process"}, {"validation_steps": None}])
def test_a_job_that_draws_for_itself_makes_none(rig: StoreRig, changes: dict[str, Any]) -> None:
    _, training = in_training(rig, **changes)
    rig.checkpoint(training, 4)
    assert validations(rig) == []


def test_a_commit_that_is_repeated_makes_one_validation(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    rig.checkpoint(training, 4)
    assert validations(rig) == [(f"{job_id}@4", "queued")]


def test_the_lease_has_the_checkpoint_and_the_spec_of_the_training_job(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    sha256 = rig.sha256_of(training, 4)
    lease = validation(rig)
    assert [(each.role, each.download.sha256) for each in lease.inputs] == [("checkpoint", sha256)]
    assert lease.spec == {"job": job_id, "step": 4, "checkpoint": sha256, "training": SPEC}
    assert (lease.checkpoints, lease.joint_key) == ((), None)


def test_a_newer_checkpoint_replaces_a_validation_that_no_node_has_begun(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    other, of_another = in_training(rig)
    rig.checkpoint(of_another, 4)
    rig.checkpoint(training, 4)
    rig.checkpoint(training, 8)
    assert validations(rig) == [
        (f"{job_id}@4", "canceled"),
        (f"{other}@4", "queued"),
        (f"{job_id}@8", "queued"),
    ]
    old, _, new = sorted(rig.rows(schema.jobs, kind=VALIDATE_KIND), key=_by_step)
    assert rig.last_event(old["id"], "job.canceled") == {"by": new["id"]}
    assert [validation(rig, number).spec["job"] for number in (2, 3)] == [other, job_id]


def test_a_validation_that_a_node_has_begun_stays(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    begun = validation(rig)
    rig.checkpoint(training, 8)
    assert validations(rig) == [(f"{job_id}@4", "running"), (f"{job_id}@8", "queued")]
    release(rig.ctx, begun.attempt_id, ReleaseAttempt())
    assert {validation(rig, number).spec["step"] for number in (3, 4)} == {4, 8}


def test_the_sheet_is_a_result_of_the_training_job_and_stays_one(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    lease = validation(rig)
    rig.artifact(lease, SHEET, b"the sheet")
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=4, artifacts=(SHEET,)))
    complete(rig.ctx, training.attempt_id, CompleteAttempt(step=12))
    found = {row["job_id"]: (row["name"], row["sha256"]) for row in rig.rows(schema.artifacts)}
    assert found.keys() == {job_id, lease.job_id}
    assert found[job_id] == found[lease.job_id]
    assert SHEET in step_artifacts("train", SPEC)
    told = rig.last_event(job_id, "artifact.committed")
    assert (told["name"], told["validation"]) == (SHEET, lease.job_id)


def test_sample_images_of_a_step_are_told_once_whoever_drew_them(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    lease = validation(rig)
    for _ in range(2):
        sheet = rig.artifact(lease, SHEET, b"the sheet")
    told = {"step": 4, "name": SHEET, "sha256": sheet.sha256, "validation": lease.job_id}
    assert rig.last_event(job_id, "validation.ready") == told
    assert rig.events(job_id).count("validation.ready") == 1
    assert "validation.ready" not in rig.events(lease.job_id)

    own, training = in_training(rig, validation_by="process", output_name="fox")
    rig.artifact(training, "fox.safetensors", b"the result")
    assert "validation.ready" not in rig.events(own)
    sheet = rig.artifact(training, "fox-samples-00000008.png", b"another sheet")
    told = {"step": 8, "name": "fox-samples-00000008.png", "sha256": sheet.sha256}
    assert rig.last_event(own, "validation.ready") == told


def test_a_sheet_that_the_training_process_draws_cancels_its_validation_unless_a_node_has_begun_it(
    rig: StoreRig,
) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    rig.artifact(training, "samples.png")
    assert validations(rig) == [(f"{job_id}@4", "queued")]
    rig.artifact(training, SHEET)
    assert validations(rig) == [(f"{job_id}@4", "canceled")]
    rig.checkpoint(training, 8)
    validation(rig)
    rig.artifact(training, "samples-00000008.png")
    assert validations(rig) == [(f"{job_id}@4", "canceled"), (f"{job_id}@8", "running")]


def test_a_sheet_that_comes_after_the_training_job_has_ended_is_its_result_too(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    complete(rig.ctx, training.attempt_id, CompleteAttempt(step=12))
    lease = validation(rig)
    rig.artifact(lease, SHEET)
    assert [row["name"] for row in rig.rows(schema.artifacts, job_id=job_id)] == [SHEET]
    assert rig.job(job_id)["state"] == "succeeded"


def test_a_checkpoint_is_kept_until_its_validation_has_ended(rig: StoreRig) -> None:
    _, training = in_training(rig)
    rig.checkpoint(training, 4)
    sha256 = rig.sha256_of(training, 4)
    lease = validation(rig)
    rig.checkpoint(training, 5)  # one is kept
    assert [row["step"] for row in rig.rows(schema.checkpoints)] == [5]
    rig.clock.advance_s(rig.ctx.policy.garbage_after_s + 1)
    collect(rig.ctx)
    assert rig.rows(schema.blobs, sha256=sha256)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=4))
    assert collect(rig.ctx).checkpoints == 1
    assert not rig.rows(schema.blobs, sha256=sha256)
    assert not collect(rig.ctx).checkpoints


def test_a_training_job_that_is_canceled_cancels_what_no_node_has_begun(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    begun = validation(rig)
    rig.checkpoint(training, 8)
    with rig.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        assert job is not None
        stop_job(tx, rig.ctx, job, JobEvent.CANCEL, at_ms=rig.clock.now_ms(), message="", data={"by": "key_1"})
    assert validations(rig) == [(f"{job_id}@4", "running"), (f"{job_id}@8", "canceled")]
    assert rig.job(begun.job_id)["state"] == "running"


def test_a_validation_that_nobody_draws_expires_after_a_day(rig: StoreRig) -> None:
    job_id, training = in_training(rig)
    rig.checkpoint(training, 4)
    complete(rig.ctx, training.attempt_id, CompleteAttempt(step=12))
    rig.clock.advance_s(24 * 3600)
    assert expire_deadlines(rig.ctx) == 1
    assert validations(rig) == [(f"{job_id}@4", "expired")]


def test_training_goes_before_validations_on_a_node_that_does_both(rig: StoreRig) -> None:
    _, training = in_training(rig)
    rig.checkpoint(training, 4)
    later = rig.add_job(spec={"max_train_steps": 1}, priority=-100)
    both = ("train", VALIDATE_KIND)
    assert rig.lease(2, kinds=both).job_id == later
    assert rig.lease(3, kinds=both).kind == VALIDATE_KIND


@pytest.mark.parametrize("is_shared", [False, True])
def test_lease_of_a_validation_brings_the_base_that_the_training_job_holds(rig: StoreRig, is_shared: bool) -> None:
    rig.add_project("ann")
    owner = "ann" if is_shared else ROOT_PROJECT
    base = rig.add_blob(b"weights", project_id=owner)
    job_id, training = in_training(rig, pretrained_model_sha256=base.sha256)
    with rig.store.begin() as tx:
        tx.submission.add_order_files(job_id, [OrderFile(role="model:1", project_id=owner, sha256=base.sha256)])
    rig.checkpoint(training, 4)
    assert [(each.role, each.name, each.download.sha256) for each in validation(rig).files] == [
        ("base", "base", base.sha256)
    ]


@pytest.mark.parametrize("is_shared", [False, True])
def test_base_stays_until_the_validations_of_a_job_that_has_ended_have_ended_too(
    rig: StoreRig, is_shared: bool
) -> None:
    rig.add_project("ann")
    owner = "ann" if is_shared else ROOT_PROJECT
    base = rig.add_blob(b"weights", project_id=owner)
    rig.clock.advance_s(8 * 86_400)
    job_id, training = in_training(rig, pretrained_model_sha256=base.sha256)
    with rig.store.begin() as tx:
        tx.submission.add_order_files(job_id, [OrderFile(role="model:1", project_id=owner, sha256=base.sha256)])
    rig.checkpoint(training, 4)
    complete(rig.ctx, training.attempt_id, CompleteAttempt(step=12))
    collect(rig.ctx)
    drawn = validation(rig)
    assert [each.download.sha256 for each in drawn.files] == [base.sha256]
    assert [each.role for each in drawn.inputs] == ["checkpoint"]
    complete(rig.ctx, drawn.attempt_id, CompleteAttempt(step=4))
    collect(rig.ctx)
    assert rig.rows(schema.blobs, sha256=base.sha256) == []
