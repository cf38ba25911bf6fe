"""A stretch that is run again elsewhere has the bytes of the first run, and a tampered result has others."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, input_file, spec_for

from giornata.diffusion.tensor_file import read_tensor_file, write_tensor_file
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.audits import AuditResult, agree
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import AUDIT_KIND
from giornata.workloads.interface import AgentRequest, Outcome, Stopped
from giornata.workloads.train.workload import TrainWorkload

STEPS = 6
FIELDS: dict[str, Any] = {"max_train_steps": STEPS, "checkpointing_steps": 2, "mixed_precision": "bf16"}


@dataclass(frozen=True)
class Stretches:
    """A job with checkpoints after each second step."""

    train_rig: TrainRig
    trained: RecordingReporter

    def claimed(self, step: int) -> AuditResult:
        return AuditResult(
            sha256=hashlib.sha256(self.trained.checkpoint_bytes[step]).hexdigest(),
            losses={step: values["loss"] for step, values in self.trained.metrics.items()},
            files={name: hashlib.sha256(data).hexdigest() for name, data in self.trained.artifacts.items()},
        )

    def start(self, from_step: int, to_step: int) -> Start:
        """The start of an audit, as a node gets it."""
        spec: dict[str, Any] = {"audit": "aud_1", "job": "jb_1", "from_step": from_step, "to_step": to_step}
        start = self.train_rig.start()
        inputs = start.inputs
        if from_step:
            checkpoint = input_file(self.train_rig.resume_point(self.trained, from_step).path, role="checkpoint")
            inputs, spec["checkpoint"] = (*inputs, checkpoint), checkpoint.sha256
        spec["training"] = self.train_rig.spec
        return start.model_copy(update={"kind": AUDIT_KIND, "spec": spec, "inputs": inputs})

    def run(self, from_step: int, to_step: int, reporter: RecordingReporter | None = None) -> Outcome:
        return TrainWorkload(device="cpu").run(self.start(from_step, to_step), reporter or RecordingReporter())


@pytest.fixture(scope="module")
def stretches(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Stretches:
    root = tmp_path_factory.mktemp("stretches")
    train_rig = TrainRig(root=root, spec=spec_for(tiny_folder, **FIELDS), inputs=draw_pictures(root / "in", 2))
    return Stretches(train_rig=train_rig, trained=train_rig.run())


def result(outcome: Outcome, reporter: RecordingReporter) -> AuditResult:
    losses = {step: values["loss"] for step, values in reporter.metrics.items()}
    return AuditResult(sha256=outcome.summary["sha256"], losses=losses, files=outcome.summary["files"])


@pytest.mark.parametrize(("from_step", "to_step"), [(0, 2), (2, 4), (4, STEPS)])
def test_a_stretch_that_is_run_again_has_bytes_and_losses_of_the_job(
    stretches: Stretches, from_step: int, to_step: int
) -> None:
    reporter = RecordingReporter()
    outcome = stretches.run(from_step, to_step, reporter)
    assert outcome.step == to_step
    assert agree(stretches.claimed(to_step), result(outcome, reporter))
    assert sorted(reporter.metrics) == list(range(from_step + 1, to_step + 1))


def test_the_last_stretch_gives_hashes_of_the_lora_files_and_hands_over_no_file(stretches: Stretches) -> None:
    reporter = RecordingReporter()
    outcome = stretches.run(4, STEPS, reporter)
    told = stretches.claimed(STEPS).files
    assert outcome.summary["files"]
    assert outcome.summary["files"].items() <= told.items()
    assert (reporter.artifacts, reporter.checkpoints, reporter.puts) == ({}, {}, [])


def never_trained(path: Path, stretches: Stretches) -> None:
    """Write the checkpoint that the stretch began with under the later step's name."""
    header, _ = read_tensor_file(path)
    path.write_bytes(stretches.trained.checkpoint_bytes[2])
    _, tensors = read_tensor_file(path)
    write_tensor_file(path, header, tensors, durable=False)


def noise_in_one_tensor(path: Path, _: Stretches) -> None:
    header, tensors = read_tensor_file(path)
    name = min(name for name in tensors if name.startswith("adapter."))
    noise = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(1))
    write_tensor_file(path, header, {**tensors, name: tensors[name] + 1e-4 * noise}, durable=False)


def one_flipped_bit(path: Path, _: Stretches) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def of_another_job(path: Path, stretches: Stretches) -> None:
    rig = stretches.train_rig
    other = TrainRig(root=path.parent / "other", spec={**rig.spec, "seed": 7}, inputs=rig.inputs).run()
    path.write_bytes(other.checkpoint_bytes[4])


def fewer_steps(path: Path, stretches: Stretches) -> None:
    """Write the state after step 3 as if it were that after step 4."""
    header, _ = read_tensor_file(path)
    rig = stretches.train_rig
    short = rig.run(RecordingReporter(agent_requests={3: AgentRequest.CHECKPOINT}))
    path.write_bytes(short.checkpoint_bytes[3])
    _, tensors = read_tensor_file(path)
    write_tensor_file(path, header, tensors, durable=False)


@pytest.mark.parametrize("lie", [never_trained, fewer_steps, noise_in_one_tensor, of_another_job, one_flipped_bit])
def test_a_checkpoint_that_was_tampered_with_differs_from_the_replay(
    stretches: Stretches, tmp_path: Path, lie: Callable[[Path, Stretches], None]
) -> None:
    path = tmp_path / "lie.safetensors"
    path.write_bytes(stretches.trained.checkpoint_bytes[4])
    lie(path, stretches)
    claimed = AuditResult(sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    reporter = RecordingReporter()
    replayed = result(stretches.run(2, 4, reporter), reporter)
    assert not agree(claimed, replayed)
    assert agree(stretches.claimed(4), replayed)


def test_right_bytes_with_wrong_losses_differ_from_the_replay(stretches: Stretches) -> None:
    reporter = RecordingReporter()
    replayed = result(stretches.run(2, 4, reporter), reporter)
    claimed = stretches.claimed(4)
    lied = AuditResult(sha256=claimed.sha256, losses={**claimed.losses, 3: claimed.losses[3] / 2})
    assert not agree(lied, replayed)


def test_a_replay_obeys_a_stop_and_ignores_the_request_for_a_checkpoint(stretches: Stretches) -> None:
    with pytest.raises(Stopped):
        stretches.run(2, 6, RecordingReporter(agent_requests={3: AgentRequest.STOP}))
    outcome = stretches.run(2, 6, RecordingReporter(agent_requests={3: AgentRequest.CHECKPOINT}))
    assert outcome.summary["sha256"] == stretches.claimed(6).sha256


def test_a_replay_without_its_checkpoint_fails_for_its_data(stretches: Stretches) -> None:
    start = stretches.start(2, 4)
    bare = start.model_copy(update={"inputs": tuple(each for each in start.inputs if each.role != "checkpoint")})
    with pytest.raises(WorkloadFailed, match="is not among the job's files"):
        TrainWorkload(device="cpu").run(bare, RecordingReporter())
