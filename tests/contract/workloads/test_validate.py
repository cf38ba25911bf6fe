"""A validation, drawn from a checkpoint on another node, has the bytes that the training process draws."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.train_studio import RecordingReporter, Studio, draw_pictures, input_file, spec_for

from giornata.domain.errors import WorkloadFailed
from giornata.domain.reasons import Reason
from giornata.protocol.pipe import Start
from giornata.protocol.specs import VALIDATE_KIND
from giornata.workloads.interface import AgentRequest, Stopped
from giornata.workloads.train.workload import TrainWorkload

SHEET = "samples-00000002.png"
FIELDS: dict[str, Any] = {
    "sample_prompts": ("a photo of a sks toy", "a toy"),
    "sample_steps": 2,
    "validation_steps": 2,
    "max_train_steps": 3,
    "checkpointing_steps": 1000,
}
KINDS_OF_JOB: dict[str, dict[str, Any]] = {
    "slots": {},
    "an average, both kinds of layer": {
        "use_ema": True,
        "ema_decay": 0.5,
        "use_dora": True,
        "train_text_encoder": True,
        "text_encoder_lr": 1e-2,
        "mixed_precision": "bf16",
    },
    "tokens, v-prediction": {
        "train_text_encoder_ti": True,
        "instance_prompt": "a photo of TOK",
        "text_encoder_lr": 1e-1,
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
    },
}


def studio_of(folder: Path, root: Path, **changes: Any) -> Studio:
    return Studio(root=root, spec=spec_for(folder, **FIELDS, **changes), inputs=draw_pictures(root / "in", 2))


def by_fleet(studio: Studio) -> RecordingReporter:
    """The same job, whose sheets other nodes draw."""
    return studio.run(spec={**studio.spec, "validation_by": "fleet"})


def validation_of(studio: Studio, training: RecordingReporter, *, step: int = 2) -> Start:
    """The start of the validation of a step, as another node gets it."""
    checkpoint = input_file(studio.resume_point(training, step).path, role="checkpoint")
    spec = {
        "job": "jb_1",
        "step": step,
        "checkpoint": checkpoint.sha256,
        "training": {**studio.spec, "validation_by": "fleet"},
    }
    return studio.start(spec=spec, inputs=(checkpoint,)).model_copy(update={"kind": VALIDATE_KIND})


@pytest.mark.parametrize("kind", KINDS_OF_JOB)
def test_a_sheet_from_the_checkpoint_has_the_bytes_of_the_training_process(
    tiny_folder: Path, tmp_path: Path, kind: str
) -> None:
    studio = studio_of(tiny_folder, tmp_path, **KINDS_OF_JOB[kind])
    in_process = studio.run()
    training = by_fleet(studio)
    elsewhere = RecordingReporter()
    outcome = TrainWorkload(device="cpu").run(validation_of(studio, training), elsewhere)
    assert elsewhere.artifacts == {SHEET: in_process.artifacts[SHEET]}
    assert (outcome.step, outcome.summary) == (2, {"job": "jb_1", "sheet": SHEET})


def test_a_job_whose_sheets_others_draw_writes_a_checkpoint_of_each_and_draws_none(
    tiny_folder: Path, tmp_path: Path
) -> None:
    studio = studio_of(tiny_folder, tmp_path)
    in_process, training = studio.run(), by_fleet(studio)
    assert sorted(in_process.checkpoints) == [3]
    assert sorted(training.checkpoints) == [2, 3]
    left = in_process.artifacts.keys() - training.artifacts.keys()
    assert left == {SHEET, "samples-by-step.png"}
    same = training.artifacts.keys() - {"README.md"}
    assert {name: training.artifacts[name] for name in same if name.endswith(".png")} == {
        name: in_process.artifacts[name] for name in same if name.endswith(".png")
    }


def test_a_node_that_trains_validates_with_the_same_base_and_trains_on_unchanged(
    tiny_folder: Path, tmp_path: Path
) -> None:
    studio, workload = studio_of(tiny_folder, tmp_path), TrainWorkload(device="cpu")
    spec = {**studio.spec, "validation_by": "fleet"}
    first = studio.run(workload=workload, spec=spec)
    held = workload.held()
    workload.run(validation_of(studio, first), RecordingReporter())
    assert workload.held() == held
    again = studio.run(workload=workload, spec=spec)
    assert again.checkpoint_bytes == first.checkpoint_bytes


def test_a_validation_obeys_a_stop_and_goes_on_after_a_plain_checkpoint_wish(
    tiny_folder: Path, tmp_path: Path
) -> None:
    studio = studio_of(tiny_folder, tmp_path)
    training = by_fleet(studio)
    start = validation_of(studio, training)
    stopped = RecordingReporter(wishes={0: AgentRequest.STOP})
    with pytest.raises(Stopped):
        TrainWorkload(device="cpu").run(start, stopped)
    assert stopped.artifacts == {}
    went_on = RecordingReporter(wishes={0: AgentRequest.CHECKPOINT})
    TrainWorkload(device="cpu").run(validation_of(studio, training), went_on)
    assert list(went_on.artifacts) == [SHEET]


def test_a_sheet_that_cannot_be_drawn_fails_the_attempt_for_another_machine_to_try(
    tiny_folder: Path, tmp_path: Path
) -> None:
    studio = studio_of(tiny_folder, tmp_path)

    class Full(RecordingReporter):
        def wish(self) -> AgentRequest:
            raise MemoryError("out of memory")

    reporter = Full()
    with pytest.raises(WorkloadFailed, match=f"{SHEET} could not be drawn") as refusal:
        TrainWorkload(device="cpu").run(validation_of(studio, by_fleet(studio)), reporter)
    assert refusal.value.reason is Reason.CRASHED
    assert reporter.notices == [("samples-not-drawn", {"message": "MemoryError: out of memory"})]


def test_a_checkpoint_of_another_job_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    studio = studio_of(tiny_folder, tmp_path)
    start = validation_of(studio, by_fleet(studio))
    other = {**start.spec, "training": {**start.spec["training"], "seed": 77}}
    with pytest.raises(WorkloadFailed, match="another spec: seed differ") as refusal:
        TrainWorkload(device="cpu").run(start.model_copy(update={"spec": other}), RecordingReporter())
    assert refusal.value.reason is Reason.BAD_SPEC
