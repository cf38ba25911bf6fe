"""A validation, drawn from a checkpoint on another node, has the bytes that the training process draws."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, input_file, spec_for

from giornata.diffusion.base.models import load_base
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import VALIDATE_KIND
from giornata.workloads.interface import AgentRequest, Stopped
from giornata.workloads.train.results.fleet_sheets import FleetSheets
from giornata.workloads.train.results.sampling import TrackedSheets
from giornata.workloads.train.workload import TrainWorkload, parse

SHEET = "samples-00000002.png"
KEY = "sheet-jb_1-2"
CURVES = "events.out.tfevents.0.giornata"
FIELDS: dict[str, Any] = {
    "sample_prompts": ("a photo of a sks toy", "a toy"),
    "sample_steps": 1,
    "validation_steps": 2,
    "max_train_steps": 3,
    "checkpointing_steps": 1000,
}
KINDS_OF_JOB = [
    pytest.param(
        {
            "use_ema": True,
            "ema_decay": 0.5,
            "train_text_encoder_ti": True,
            "instance_prompt": "a photo of TOK",
            "text_encoder_lr": 1e-1,
            "prediction_type": "v_prediction",
            "rescale_betas_zero_snr": True,
        },
        id="an average, tokens, v-prediction",
    ),
    pytest.param(
        {"use_dora": True, "train_text_encoder": True, "text_encoder_lr": 1e-2, "mixed_precision": "bf16"},
        id="peft, bf16",
        marks=pytest.mark.long,
    ),
]


@dataclass(frozen=True)
class ValidatedTraining:
    """A job, and what its training gives when it draws for itself, and when others draw."""

    train_rig: TrainRig
    in_process: RecordingReporter
    by_fleet: RecordingReporter


@pytest.fixture(scope="module")
def plain(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ValidatedTraining:
    return trained(tiny_folder, tmp_path_factory.mktemp("plain"))


def trained(folder: Path, root: Path, **changes: Any) -> ValidatedTraining:
    """The fleet has drawn the sheet before the training process looks for it."""
    train_rig = TrainRig(
        root=root, spec=spec_for(folder, **{**FIELDS, **changes}), inputs=draw_pictures(root / "in", 2)
    )
    drawn = root / "drawn.png"
    Image.new("RGB", (2, 2)).save(drawn)
    reporter = RecordingReporter(cache={KEY: drawn})
    by_fleet = train_rig.run(reporter, spec={**train_rig.spec, "validation_by": "fleet"})
    return ValidatedTraining(train_rig=train_rig, in_process=train_rig.run(), by_fleet=by_fleet)


def validation_of(job: ValidatedTraining, *, step: int = 2) -> Start:
    """The start of the validation of a step, as another node gets it."""
    train_rig = job.train_rig
    checkpoint = input_file(train_rig.resume_point(job.by_fleet, step).path, role="checkpoint")
    spec = {
        "job": "jb_1",
        "step": step,
        "checkpoint": checkpoint.sha256,
        "training": {**train_rig.spec, "validation_by": "fleet"},
    }
    return train_rig.start(spec=spec, inputs=(checkpoint,)).model_copy(update={"kind": VALIDATE_KIND})


def test_a_sheet_from_the_checkpoint_has_the_bytes_of_the_training_process(plain: ValidatedTraining) -> None:
    elsewhere = RecordingReporter()
    outcome = TrainWorkload(device="cpu").run(validation_of(plain), elsewhere)
    assert elsewhere.artifacts == {SHEET: plain.in_process.artifacts[SHEET]}
    assert (outcome.step, outcome.summary) == (2, {"job": "jb_1", "sheet": SHEET})


@pytest.mark.parametrize("changes", KINDS_OF_JOB)
def test_validation_of_each_kind_of_job_has_bytes_of_samples_drawn_in_process(
    tiny_folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    job, elsewhere = trained(tiny_folder, tmp_path, **changes), RecordingReporter()
    TrainWorkload(device="cpu").run(validation_of(job), elsewhere)
    assert elsewhere.artifacts == {SHEET: job.in_process.artifacts[SHEET]}


def test_a_job_whose_sheets_others_draw_writes_a_checkpoint_of_each_and_draws_none(plain: ValidatedTraining) -> None:
    assert sorted(plain.in_process.checkpoints) == [3]
    assert sorted(plain.by_fleet.checkpoints) == [2, 3]
    mine, others = plain.in_process.artifacts, plain.by_fleet.artifacts
    assert mine.keys() - others.keys() == {SHEET, "samples-by-step.png"}
    assert mine["samples.png"] == others["samples.png"]


@pytest.fixture(scope="module")
def tracked(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ValidatedTraining:
    return trained(tiny_folder, tmp_path_factory.mktemp("tracked"), report_to="tensorboard", checkpointing_steps=1)


def fleet_run(job: ValidatedTraining, reporter: RecordingReporter, **changes: Any) -> RecordingReporter:
    """Another run of the job whose sheets the fleet draws."""
    return job.train_rig.run(reporter, spec={**job.train_rig.spec, "validation_by": "fleet"}, **changes)


def test_a_sheet_that_no_node_draws_is_drawn_by_the_training_process_with_the_same_bytes(
    tracked: ValidatedTraining,
) -> None:
    alone = fleet_run(tracked, RecordingReporter())
    assert alone.artifacts[SHEET] == tracked.in_process.artifacts[SHEET]
    assert alone.artifacts[CURVES] == tracked.in_process.artifacts[CURVES]
    assert alone.checkpoint_bytes == tracked.by_fleet.checkpoint_bytes


def test_a_file_that_is_no_sheet_is_not_taken_for_one(tracked: ValidatedTraining, tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk")
    training = fleet_run(tracked, RecordingReporter(cache={KEY: tmp_path / "junk"}))
    assert training.artifacts[SHEET] == tracked.in_process.artifacts[SHEET]
    assert training.artifacts[CURVES] == tracked.in_process.artifacts[CURVES]


def test_a_sheet_drawn_elsewhere_reaches_trackers_as_one_of_the_training_process(tracked: ValidatedTraining) -> None:
    elsewhere = RecordingReporter()
    TrainWorkload(device="cpu").run(validation_of(tracked), elsewhere)
    assert elsewhere.puts == [KEY]
    training = fleet_run(tracked, RecordingReporter(cache=dict(elsewhere.cache)))
    assert SHEET not in training.artifacts
    assert training.artifacts[CURVES] == tracked.in_process.artifacts[CURVES]
    assert tracked.by_fleet.artifacts[CURVES] != tracked.in_process.artifacts[CURVES]


def test_an_attempt_that_resumes_after_the_step_of_a_sheet_loses_none_that_can_be_had(
    tracked: ValidatedTraining,
) -> None:
    elsewhere = RecordingReporter()
    TrainWorkload(device="cpu").run(validation_of(tracked), elsewhere)
    whole = tracked.in_process.artifacts[CURVES]
    for step, cache, draws in ((2, {}, True), (2, elsewhere.cache, False), (3, elsewhere.cache, False)):
        resume = tracked.train_rig.resume_point(tracked.by_fleet, step)
        resumed = fleet_run(tracked, RecordingReporter(cache=dict(cache)), resume=resume)
        assert (SHEET in resumed.artifacts) is draws
        assert resumed.artifacts[CURVES] == whole


def test_rows_of_trackers_wait_until_the_sheet_is_drawn_by_anybody(tracked: ValidatedTraining) -> None:
    spec = parse(tracked.train_rig.start(spec={**tracked.train_rig.spec, "validation_by": "fleet"}))
    fleet = FleetSheets(spec=spec, job="jb_1")
    sheets = TrackedSheets(base=load_base(spec, device="cpu", dtype=torch.float32), spec=spec, album={}, fleet=fleet)
    assert [sheets.known(done) for done in range(4)] == [0, 1, 1, 1]
    fleet.resume(RecordingReporter(), done=2, result=dict)
    assert [sheets.known(done) for done in range(4)] == [0, 1, 1, 1]
    assert [step for step, _ in fleet.undrawn(RecordingReporter())] == [2]
    assert [sheets.known(done) for done in range(4)] == [0, 1, 2, 2]


def test_a_node_that_trains_validates_with_the_same_base_and_trains_on_unchanged(plain: ValidatedTraining) -> None:
    train_rig, workload = plain.train_rig, TrainWorkload(device="cpu")
    workload.run(validation_of(plain), RecordingReporter())
    held = workload.held()
    again = train_rig.run(workload=workload, spec={**train_rig.spec, "validation_by": "fleet"})
    assert workload.held() == held
    assert again.checkpoint_bytes == plain.by_fleet.checkpoint_bytes


def test_a_validation_obeys_a_stop(plain: ValidatedTraining) -> None:
    reporter = RecordingReporter(agent_requests={0: AgentRequest.STOP})
    with pytest.raises(Stopped):
        TrainWorkload(device="cpu").run(validation_of(plain), reporter)
    assert reporter.artifacts == {}


def test_a_validation_goes_on_when_a_checkpoint_is_requested(plain: ValidatedTraining) -> None:
    reporter = RecordingReporter(agent_requests={0: AgentRequest.CHECKPOINT})
    TrainWorkload(device="cpu").run(validation_of(plain), reporter)
    assert (list(reporter.artifacts), reporter.checkpoints) == ([SHEET], {})


def test_a_sheet_that_cannot_be_drawn_fails_the_attempt_for_another_machine_to_try(plain: ValidatedTraining) -> None:
    class Full(RecordingReporter):
        def agent_request(self) -> AgentRequest:
            raise MemoryError("out of memory")

    reporter = Full()
    with pytest.raises(WorkloadFailed, match=f"{SHEET} could not be drawn") as refusal:
        TrainWorkload(device="cpu").run(validation_of(plain), reporter)
    assert refusal.value.reason is Reason.CRASHED
    assert reporter.notices == [("samples-not-drawn", {"message": "MemoryError: out of memory"})]


def test_a_checkpoint_of_another_job_is_refused(plain: ValidatedTraining) -> None:
    start = validation_of(plain)
    other = {**start.spec, "training": {**start.spec["training"], "seed": 77}}
    with pytest.raises(WorkloadFailed, match="another spec: seed differ") as refusal:
        TrainWorkload(device="cpu").run(start.model_copy(update={"spec": other}), RecordingReporter())
    assert refusal.value.reason is Reason.BAD_SPEC


def test_a_validation_without_its_checkpoint_is_refused(plain: ValidatedTraining) -> None:
    start = validation_of(plain).model_copy(update={"inputs": ()})
    with pytest.raises(WorkloadFailed, match=r"spec\.checkpoint: is not among") as refusal:
        TrainWorkload(device="cpu").run(start, RecordingReporter())
    assert refusal.value.reason is Reason.BAD_DATA
