"""Which checkpoints lie on disk, and how the training workload obeys requests."""

from pathlib import Path

import pytest
from safetensors import SafetensorError
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.domain.errors import WorkloadFailed
from giornata.workloads.interface import AgentRequest
from giornata.workloads.train.workload import TrainWorkload


@pytest.fixture
def train_rig(tiny_folder: Path, tmp_path: Path) -> TrainRig:
    spec = spec_for(tiny_folder, max_train_steps=4)
    return TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "pictures", 3))


@pytest.mark.parametrize("at", [1, 4])
def test_a_checkpoint_that_cannot_be_written_is_never_passed_over(train_rig: TrainRig, at: int) -> None:
    """It is written while the steps go on; the job must hear of it all the same, the last one included."""
    start = train_rig.start(spec=train_rig.spec | {"checkpointing_steps": at})
    (start.directory / f"checkpoint-{at:08d}.safetensors.part").mkdir()  # a file cannot be made here
    reporter = RecordingReporter()
    with pytest.raises((OSError, WorkloadFailed, SafetensorError)):
        TrainWorkload(device="cpu").run(start, reporter)
    assert at not in reporter.checkpoints
    assert not reporter.artifacts


def test_the_latest_two_checkpoints_stay_on_disk(train_rig: TrainRig) -> None:
    reporter = train_rig.run(spec=train_rig.spec | {"checkpointing_steps": 1})
    assert sorted(reporter.checkpoints) == [1, 2, 3, 4]
    assert [step for step, path in sorted(reporter.checkpoints.items()) if path.exists()] == [3, 4]
    assert not list(reporter.checkpoints[4].parent.glob("*.part"))


def test_the_last_step_is_always_saved(train_rig: TrainRig) -> None:
    assert sorted(train_rig.run().checkpoints) == [4]


def test_a_plain_stop_writes_nothing_more(train_rig: TrainRig) -> None:
    reporter = train_rig.run(RecordingReporter(agent_requests={2: AgentRequest.STOP}))
    assert reporter.lines == ["stopped at None"]
    assert not reporter.checkpoints
    assert not reporter.artifacts


class StopsOnceSaved(RecordingReporter):
    """Wants a checkpoint after step 1, and stops the job when it hears of it: it is written while steps go on."""

    def agent_request(self) -> AgentRequest:
        return AgentRequest.STOP if self.checkpoints else super().agent_request()


def test_a_plain_stop_says_which_checkpoint_was_announced(train_rig: TrainRig) -> None:
    reporter = StopsOnceSaved(agent_requests={1: AgentRequest.CHECKPOINT})
    train_rig.run(reporter, spec=train_rig.spec | {"max_train_steps": 500, "checkpointing_steps": 500})
    assert reporter.lines == ["stopped at 1"]
    assert not reporter.artifacts


@pytest.mark.parametrize("agent_request", [AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP])
def test_a_stop_is_obeyed_while_caching(train_rig: TrainRig, agent_request: AgentRequest) -> None:
    reporter = train_rig.run(RecordingReporter(request_while_caching=agent_request))
    assert reporter.lines == ["stopped at None"]
    assert reporter.phases[-1][0] == "caching"
    assert not reporter.checkpoints


def test_a_checkpoint_cannot_be_had_while_caching(train_rig: TrainRig) -> None:
    reporter = train_rig.run(RecordingReporter(request_while_caching=AgentRequest.CHECKPOINT))
    assert "nothing new to save" in reporter.lines[0]
    assert sorted(reporter.checkpoints) == [4]


def test_a_request_for_a_checkpoint_is_granted_and_the_work_goes_on(train_rig: TrainRig) -> None:
    reporter = train_rig.run(RecordingReporter(agent_requests={2: AgentRequest.CHECKPOINT}))
    assert sorted(reporter.checkpoints) == [2, 4]
    assert reporter.artifacts
