"""The LoRA of a job, by the job's name: the finished one, or a checkpoint's, once it is committed."""

import json

import pytest
from tests.contract.store.test_model_registry import place
from tests.fixtures.model_files import SDXL_LORA, model_file
from tests.fixtures.users import ANN, BOB, claim, end, have, move_in, new_job, progress

from giornata.control.attempts.commit import commit_artifact
from giornata.control.context import Context
from giornata.control.models.resolve import bring_models, resolve_models
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import CommitArtifact, Lease

KOHYA, DIFFUSERS = model_file(SDXL_LORA), model_file(SDXL_LORA, filler=b"d")


def checkpoint(step: int) -> bytes:
    """A checkpoint as the training workload writes it, in small."""
    told = {"giornata": json.dumps({"family": "sd15", "step": step})}
    return model_file({"adapter.unet.a.lora_A.weight": (4, 8), "optimizer.exp_avg.a": (4, 8)}, told)


@pytest.fixture
def lease(ctx: Context) -> Lease:
    move_in(ctx)
    new_job(ctx, output_name="my-dog")
    found = claim(ctx)
    for step in (2, 5):
        progress(ctx, found, step=step, committed=checkpoint(step))
    return found


def artifact(ctx: Context, lease: Lease, name: str, content: bytes) -> str:
    sha256 = have(ctx, ANN, content)
    commit_artifact(ctx, lease.attempt_id, CommitArtifact(name=name, sha256=sha256, size_bytes=len(content)))
    return sha256


def faults_of(ctx: Context, name: str, project_id: str = "ann") -> tuple[str, str | None]:
    """The faults of a LoRA that is named so, joined; and the sha256 that it stands for."""
    named = place("lora", name)
    faults = bring_models(ctx, project_id, [named])
    with ctx.store.begin() as tx:
        faults += resolve_models(tx, ctx, project_id, [named])
    return "; ".join(map(str, faults)), named.use.get("sha256")


def test_job_stands_for_its_lora_once_that_is_committed(ctx, lease):
    said, found = faults_of(ctx, lease.job_id)
    assert found is None
    assert f"{lease.job_id} is running and has committed no LoRA (name a checkpoint: {lease.job_id}@5)" in said
    artifact(ctx, lease, "my-dog-pytorch_lora_weights.safetensors", DIFFUSERS)
    kohya = artifact(ctx, lease, "my-dog.safetensors", KOHYA)
    end(ctx, lease, Reason.SUCCEEDED, JobEvent.SUCCEED, step=10)
    assert faults_of(ctx, lease.job_id) == ("", kohya)
    assert faults_of(ctx, f"{lease.job_id}@10") == ("", kohya)


def test_job_that_wrote_diffusers_files_alone_stands_for_those(ctx, lease):
    diffusers = artifact(ctx, lease, "my-dog-pytorch_lora_weights.safetensors", DIFFUSERS)
    assert faults_of(ctx, lease.job_id) == ("", diffusers)


def test_step_stands_for_its_checkpoint_and_an_unknown_one_is_told_which_there_are(ctx, lease):
    assert faults_of(ctx, f"{lease.job_id}@2") == ("", have(ctx, ANN, checkpoint(2)))
    said, _ = faults_of(ctx, f"{lease.job_id}@3")
    assert f"{lease.job_id} has no checkpoint of step 3; there are: 2, 5 (a job keeps its latest" in said


def test_job_of_another_project_is_unknown(ctx, lease):
    said, found = faults_of(ctx, f"{lease.job_id}@2", project_id=BOB.project_id)
    assert found is None
    assert f"this project has no training job {lease.job_id}" in said


def test_checkpoint_that_pictures_are_drawn_with_outlives_its_pruning(ctx, lease):
    _, found = faults_of(ctx, f"{lease.job_id}@2")
    with ctx.store.begin() as tx:
        tx.checkpoints.delete(lease.job_id, [2])
    assert faults_of(ctx, f"{lease.job_id}@2") == ("", found)


def test_job_that_trains_a_dora_is_refused_before_any_node_has_the_order(ctx):
    told = {"giornata": json.dumps({"family": "sdxl", "step": 2})}
    parts = ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector")
    move_in(ctx)
    new_job(ctx, output_name="my-dog")
    lease = claim(ctx)
    progress(ctx, lease, step=2, committed=model_file({f"adapter.unet.a.{part}": (4, 4) for part in parts}, told))
    said, found = faults_of(ctx, f"{lease.job_id}@2")
    assert found is None
    assert said.startswith(
        "spec.lora: holds DoRA, which rows of a batch cannot have each for itself (train it as a plain LoRA)"
    )
