"""Sheets of sample images in TensorBoard's file and W&B's run: each step once, whatever interrupted the job."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import SecretStr
from tests.contract.workloads.test_train_wandb import KEY, Waiting, run_in, steps_at, values
from tests.contract.workloads.test_validate import ValidatedTraining, validation_of
from tests.fixtures.event_files import events_in
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for
from tests.fixtures.wandb_server import WandbServer, wandb_server

from giornata.tracking.wandb_run import FILE_NAME
from giornata.workloads.interface import AgentRequest
from giornata.workloads.train.workload import TrainWorkload

TAG = "train/samples"
FIELDS: dict[str, Any] = {
    "sample_prompts": ("a photo of a sks toy", "a toy"),
    "sample_steps": 1,
    "validation_steps": 2,
    "max_train_steps": 5,
    "rank": 1,
}
SHEETS = {2: "samples-00000002.png", 4: "samples-00000004.png"}


def rig_of(folder: Path, root: Path, **changes: Any) -> TrainRig:
    return TrainRig(root=root, spec=spec_for(folder, **{**FIELDS, **changes}), inputs=draw_pictures(root / "in", 1))


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def sheets_in_events(reporter: RecordingReporter) -> list[tuple[int, bytes]]:
    """(step, PNG) of TensorBoard's file, in order."""
    (name,) = [each for each in reporter.artifacts if "tfevents" in each]
    shown = [(each.step, value) for each in events_in(reporter.artifacts[name]) for value in each.summary.value]
    images = [(step, value.image) for step, value in shown if value.tag == TAG]
    assert all((image.width, image.height) == pixels(image.encoded_image_string).shape[1::-1] for _, image in images)
    return [(step, image.encoded_image_string) for step, image in images]


def test_tensorboard_shows_each_sheet_once_at_its_step_whoever_drew_it(tiny_folder: Path, tmp_path: Path) -> None:
    train_rig = rig_of(tiny_folder, tmp_path, report_to=["tensorboard"])
    whole = train_rig.run()
    first = train_rig.run(RecordingReporter(agent_requests={3: AgentRequest.CHECKPOINT_AND_STOP}))
    last = train_rig.run(resume=train_rig.resume_point(first, 3))
    assert SHEETS[2] not in last.artifacts
    shown = sheets_in_events(last)
    assert [step for step, _ in shown] == [2, 4, 5]
    for step, png in shown[:2]:  # the tiny model's pictures are smaller than the album's
        assert np.array_equal(pixels(png), pixels(whole.artifacts[SHEETS[step]]))
    end, card = pixels(shown[2][1]), pixels(whole.artifacts["samples.png"])
    learned = 238 + 128 + 30  # where the sheet of the end has the pictures with the LoRA
    for top in (144, 294):
        assert np.array_equal(end[top : top + 128, 238:366], card[top : top + 128, learned : learned + 128])
    (name,) = [each for each in whole.artifacts if "tfevents" in each]
    assert last.artifacts[name] == whole.artifacts[name]


def test_steps_without_a_column_are_shown_too(tiny_folder: Path, tmp_path: Path) -> None:
    """The sheet of all steps has 8 of these 16 steps. The first attempt draws 14."""
    changes = {"validation_steps": 1, "max_train_steps": 17, "sample_prompts": ["a toy"]}
    train_rig = rig_of(tiny_folder, tmp_path, report_to=["tensorboard"], **changes)
    first = train_rig.run(RecordingReporter(agent_requests={15: AgentRequest.CHECKPOINT_AND_STOP}))
    last = train_rig.run(resume=train_rig.resume_point(first, 15))
    shown = sheets_in_events(last)
    assert [step for step, _ in shown] == list(range(1, 18))
    for step, png in shown[:14]:
        assert np.array_equal(pixels(png), pixels(first.artifacts[f"samples-{step:08d}.png"]))


def test_a_sheet_that_was_not_drawn_leaves_the_row_without_it(tiny_folder: Path, tmp_path: Path) -> None:
    train_rig = rig_of(tiny_folder, tmp_path, report_to=["tensorboard"])
    reporter = BreakingFirst()
    train_rig.run(reporter)
    assert [name for name, _ in reporter.notices] == ["samples-not-drawn"]
    assert [step for step, _ in sheets_in_events(reporter)] == [4, 5]


class BreakingFirst(RecordingReporter):
    """The memory ends in the first sheet."""

    def agent_request(self) -> AgentRequest:
        if self.phases[-1][0] == "sampling" and not self.notices:
            raise MemoryError
        return super().agent_request()


def test_job_without_prompts_has_no_sheets_and_one_of_the_fleet_those_that_no_node_has_drawn(
    tiny_folder: Path, tmp_path: Path
) -> None:
    fleet = rig_of(tiny_folder, tmp_path / "fleet", report_to=["tensorboard"], validation_by="fleet").run()
    assert [step for step, _ in sheets_in_events(fleet)] == [2, 4, 5]
    spec = {"sample_prompts": (), "sample_steps": 25, "validation_steps": None}
    nothing = rig_of(tiny_folder, tmp_path / "nothing", report_to=["tensorboard"], **spec).run()
    assert sheets_in_events(nothing) == []


def test_wandbs_run_has_each_sheet_as_a_file_beside_it(tiny_folder: Path, tmp_path: Path) -> None:
    train_rig = rig_of(tiny_folder, tmp_path, report_to=["wandb", "tensorboard"])
    first = train_rig.run(RecordingReporter(agent_requests={3: AgentRequest.CHECKPOINT_AND_STOP}))
    last = train_rig.run(resume=train_rig.resume_point(first, 3))
    assert not last.notices
    folder, told = run_in(last.artifacts[FILE_NAME])
    rows = [each.history.item for each in told if each.HasField("history")]
    assert [values(row)["_step"] for row in rows] == [1, 2, 3, 4, 5]
    paths = {
        values(row)["_step"]: json.loads(item.value_json)
        for row in rows
        for item in row
        if list(item.nested_key) == [TAG, "path"]
    }
    wanted = dict(sheets_in_events(last))
    assert paths.keys() == wanted.keys() == {2, 4, 5}
    with zipfile.ZipFile(io.BytesIO(last.artifacts[FILE_NAME])) as archive:
        for step, path in paths.items():
            assert np.array_equal(pixels(archive.read(f"{folder}/files/{path}")), pixels(wanted[step]))
    assert str(tmp_path) not in str(told)


def uploaded(server: WandbServer, step: int) -> list[bytes]:
    """The sheets of a step that W&B has."""
    lines = server.history.get("jb_1", {}).values()
    names = [line[TAG]["path"] for line in lines if line["_step"] == step and TAG in line]
    return [sent for name in names for sent in server.files.get(name, [])]


def test_wandb_gets_each_sheet_once_while_the_job_goes_on_and_over_interruptions(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_rig = rig_of(tiny_folder, tmp_path, report_to=["wandb", "tensorboard"])
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        agent_requests = {2: AgentRequest.CHECKPOINT, 3: AgentRequest.STOP}
        first = Waiting(lambda: bool(uploaded(server, 2)), at=3, agent_requests=agent_requests)
        train_rig.run(first, wandb_api_key=SecretStr(KEY))
        assert SHEETS[2] in first.artifacts
        resume = train_rig.resume_point(first, 2)  # draws the sheet of this step once more
        last = train_rig.run(resume=resume, wandb_api_key=SecretStr(KEY))
    assert SHEETS[2] in last.artifacts
    assert steps_at(server, "jb_1") == [1, 2, 3, 4, 5]
    lines = server.history["jb_1"].values()
    assert [line["_step"] for line in lines if TAG in line] == [2, 4, 5]
    for step, png in sheets_in_events(last):
        (sent,) = uploaded(server, step)
        assert np.array_equal(pixels(sent), pixels(png))


def test_wandb_gets_sheets_that_other_nodes_draw_as_those_of_the_training_process(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node has drawn the first sheet before the job is interrupted, and another one draws the second afterwards.
    The training process looks for the first one before the step that makes the second."""
    train_rig = rig_of(tiny_folder, tmp_path, report_to=["wandb", "tensorboard"])
    fleet = {**train_rig.spec, "validation_by": "fleet"}
    in_process = train_rig.run(spec={**train_rig.spec, "report_to": ["tensorboard"]})
    job = ValidatedTraining(train_rig=train_rig, in_process=in_process, by_fleet=train_rig.run(spec=fleet))
    elsewhere = {step: RecordingReporter() for step in SHEETS}
    for step, reporter in elsewhere.items():
        TrainWorkload(device="cpu").run(validation_of(job, step=step), reporter)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        agent_requests = {4: AgentRequest.CHECKPOINT_AND_STOP}
        first = Waiting(lambda: bool(uploaded(server, 2)), at=4, agent_requests=agent_requests)
        first.cache |= elsewhere[2].cache
        train_rig.run(first, spec=fleet, wandb_api_key=SecretStr(KEY))
        resume = train_rig.resume_point(first, 4)
        last = RecordingReporter(cache=elsewhere[2].cache | elsewhere[4].cache)
        train_rig.run(last, spec=fleet, resume=resume, wandb_api_key=SecretStr(KEY))
    assert not set(SHEETS.values()) & (first.artifacts | last.artifacts).keys(), "the training process drew none"
    assert not first.notices + last.notices
    assert steps_at(server, "jb_1") == [1, 2, 3, 4, 5]
    lines = server.history["jb_1"].values()
    assert [line["_step"] for line in lines if TAG in line] == [2, 4, 5]
    for step, png in sheets_in_events(job.in_process):
        (sent,) = uploaded(server, step)
        assert np.array_equal(pixels(sent), pixels(png))
