"""The real engine, on the tiny model: killed where it hurts most, and the LoRA is the same bytes."""

from typing import Any

import pytest
from PIL import Image
from tests.fixtures.chaos_proxy import Trap
from tests.system.faults.rig import Rig

from giornata.diffusion.tiny_model import build_tiny_model
from giornata.domain.job import JobState

COMMIT = ("POST", "^/v1/node/attempts/[^/]+/checkpoints$")
STEPS, CADENCE = 12, 4
# Loading torch takes its time.
PATIENCE_S = 200.0


@pytest.fixture(scope="module")
def spec(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(3):
        Image.effect_mandelbrot((64, 64), (-2, -1.5, 1, 1.5), 10 + number).convert("RGB").save(
            folder / f"{number}.png"
        )
    return {
        "pretrained_model_name_or_path": str(build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")),
        "dataset": rig.client.dataset_from_folder(folder, instance_prompt="a photo of a sks shape").id,
        "instance_prompt": "a photo of a sks shape",
        "resolution": 64,
        "rank": 2,
        "max_train_steps": STEPS,
        "checkpointing_steps": CADENCE,
        "mixed_precision": "no",
        "seed": 42,
    }


def lora(rig: Rig, job_id: str) -> str:
    """The sha256 of what the user gets."""
    job = rig.client.wait(job_id, timeout_s=PATIENCE_S, poll_s=0.2)
    assert job.state is JobState.SUCCEEDED, rig.story(job_id)
    return next(each.sha256 for each in rig.client.artifacts(job_id) if each.name.endswith(".safetensors"))


def test_a_node_that_is_killed_between_commit_and_acknowledgement_costs_no_seam(rig, spec):
    node: dict[str, Any] = {"kinds": ["train"], "workloads": {}, "device": "cpu"}
    first = rig.start_node(**node)
    undisturbed = lora(rig, rig.client.submit(spec).id)
    trap = rig.control.set(Trap(*COMMIT, hold_reply=True))
    job_id = rig.client.submit(spec).id
    assert trap.answered.wait(PATIENCE_S), rig.story(job_id)
    assert trap.statuses == [200]
    first.kill_all()
    trap.release(cut=True)
    rig.start_node(work_dir=first.work_dir, **node)
    assert lora(rig, job_id) == undisturbed
    attempts = rig.client.get_job(job_id).attempts
    assert len(attempts) > 1
    assert attempts[-1].start_step in {CADENCE, 2 * CADENCE, STEPS}, "it did not begin anew"
