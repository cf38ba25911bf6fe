"""Steps in a shared batch, and steps with less memory, are repeated to the byte under the conditions they tell of."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.contract.workloads.test_train_memory import Scarce
from tests.fixtures.joint_train_rig import JointTrainRig
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, input_file, spec_for

from giornata.control.attempts.auditing.stretch_conditions import StretchConditions, conditions_in
from giornata.diffusion.files.checkpoint import read_header
from giornata.protocol.specs import AUDIT_KIND
from giornata.workloads.interface import Outcome
from giornata.workloads.train.workload import TrainWorkload


@dataclass(frozen=True)
class AuditedJob:
    """A job with checkpoints, whose stretches are repeated elsewhere."""

    rig: TrainRig
    trained: RecordingReporter

    def conditions(self, step: int) -> StretchConditions:
        """What the checkpoint of this step tells."""
        told = conditions_in({"history": list(read_header(self.rig.resume_point(self.trained, step).path).history)})
        assert told is not None
        return told

    def repeat(self, from_step: int, to_step: int, **changes: Any) -> Outcome:
        """Run these steps as an audit, under the conditions that the later checkpoint tells."""
        spec = {
            "audit": "aud_1",
            "job": "jb_1",
            "from_step": from_step,
            "to_step": to_step,
            "training": self.rig.spec,
        }
        start = self.rig.start()
        inputs = start.inputs
        if from_step:
            checkpoint = input_file(self.rig.resume_point(self.trained, from_step).path, role="checkpoint")
            inputs, spec["checkpoint"] = (*inputs, checkpoint), checkpoint.sha256
        spec |= {"conditions": self.conditions(to_step).to_repeat(from_step), **changes}
        audit = start.model_copy(update={"kind": AUDIT_KIND, "spec": spec, "inputs": inputs})
        return TrainWorkload(device="cpu").run(audit, RecordingReporter())

    def claimed(self, step: int) -> str:
        return hashlib.sha256(self.trained.checkpoint_bytes[step]).hexdigest()


@pytest.fixture(scope="module")
def shared(joint_rig: JointTrainRig) -> AuditedJob:
    """A job of two micro-batches a step. Another one joins it within a step, and a third one later."""
    fields = {"c": {"max_train_steps": 12, "checkpointing_steps": 4}}
    _, reporters = joint_rig.together(["c"], late={5: "a", 15: "b"}, changes=fields)
    return AuditedJob(rig=joint_rig.train_rig("c", **fields["c"]), trained=reporters["c"])


def test_conditions_of_a_shared_batch_say_within_which_step_the_width_changed(shared: AuditedJob) -> None:
    entries = shared.conditions(12).history
    found = [(entry["from_step"], entry.get("micro", 0), entry["fingerprint"]["joint"]["width"]) for entry in entries]
    assert found == [(0, 0, 1), (1, 1, 2), (6, 0, 4), (11, 1, 2)]


@pytest.mark.parametrize(("from_step", "to_step"), [(0, 4), (4, 8), (8, 12)])
def test_steps_of_a_shared_batch_are_repeated_alone_to_equal_bytes(
    shared: AuditedJob, from_step: int, to_step: int
) -> None:
    outcome = shared.repeat(from_step, to_step)
    assert outcome.summary["sha256"] == shared.claimed(to_step)
    assert conditions_in(outcome.summary) == shared.conditions(to_step)


def test_steps_of_a_shared_batch_differ_when_they_are_repeated_under_other_conditions(shared: AuditedJob) -> None:
    assert shared.repeat(0, 4, conditions=[]).summary["sha256"] != shared.claimed(4)


@pytest.fixture(scope="module")
def scarce(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditedJob:
    """A job that runs out of memory in its third step, and makes the others with fewer pictures at a time."""
    root = tmp_path_factory.mktemp("scarce")
    changes = {
        "max_train_steps": 6,
        "train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "checkpointing_steps": 2,
    }
    rig = TrainRig(root=root, spec=spec_for(tiny_folder, **changes), inputs=draw_pictures(root / "in", 3))
    trained = rig.run(workload=TrainWorkload(device="cpu", load=Scarce(2), budget_of=lambda _: None))
    return AuditedJob(rig=rig, trained=trained)


def test_steps_with_a_smaller_memory_plan_are_repeated_with_it_to_equal_bytes(scarce: AuditedJob) -> None:
    assert [entry["from_step"] for entry in scarce.conditions(3).in_force(0)] == [0, 2]
    for from_step, to_step in ((0, 3), (3, 6)):
        outcome = scarce.repeat(from_step, to_step)
        assert outcome.summary["sha256"] == scarce.claimed(to_step), to_step
        assert conditions_in(outcome.summary) == scarce.conditions(to_step)
