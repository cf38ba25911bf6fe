"""Whole jobs by graph have the bytes of plain ones: buckets, a shared batch, resumes from one to the other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.joint_train_rig import JointTrainRig
from tests.fixtures.rerun_graphs import RULES, RerunGraph, RerunRecorder, capturing
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.models import BaseModel, load_base
from giornata.workloads.interface import AgentRequest, Outcome
from giornata.workloads.train.device.graph_conditions import CAPTURING, GRAPHS_OFF, Capturing
from giornata.workloads.train.workload import TrainWorkload

BUCKETS = {"enable_bucket": True, "bucket_reso_steps": 32, "min_bucket_reso": 32, "max_bucket_reso": 128}
JOBS: dict[str, dict[str, Any]] = {
    "buckets, two passes in a step": {**BUCKETS, "gradient_accumulation_steps": 2, "use_ema": True},
    "bf16, full gradient checkpointing": {"mixed_precision": "bf16", "gradient_checkpointing": True},
    "the base's own word, shuffled captions": {
        "with_prior_preservation": True,
        "prior_prediction": True,
        "class_prompt": "a toy",
        "shuffle_caption": True,
    },
    "DoRA on a base in 8 bits": {"use_dora": True, "base_quantization": "int8"},
}
STEPS = 9


def by(make: Capturing, **options: Any) -> TrainWorkload:
    return TrainWorkload(device="cpu", capturing=make, **options)


def rig_of(name: str, tiny_folder: Path, tmp_path: Path) -> TrainRig:
    sizes = [(64, 64), (32, 128)] if name.startswith("buckets") else [(64, 70), (71, 75)]
    inputs = draw_pictures(tmp_path / "pictures", 4, sizes=sizes)
    spec = spec_for(tiny_folder, max_train_steps=STEPS, **JOBS[name])
    return TrainRig(root=tmp_path, spec=spec, inputs=inputs)


def facts_of(train_rig: TrainRig, workload: TrainWorkload) -> tuple[RecordingReporter, dict[str, Any]]:
    reporter = RecordingReporter()
    return reporter, workload.run(train_rig.start(), reporter).summary["cuda_graphs"]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_by_graph_has_the_bytes_of_a_plain_one(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    train_rig = rig_of(name, tiny_folder, tmp_path)
    plain, said = facts_of(train_rig, by(CAPTURING))
    assert said["why_not"] == "the steps run on cpu, and only cuda has graphs"
    recorder = RerunRecorder()
    found, facts = facts_of(train_rig, by(capturing(recorder)))
    assert found.artifacts == plain.artifacts
    assert found.checkpoint_bytes == plain.checkpoint_bytes
    assert facts["why_not"] is None
    assert facts["by_graph"] >= 4
    assert len(recorder.graphs) == (2 if "buckets" in name else 1)
    assert not found.notices


@pytest.mark.parametrize("graphs_first", [True, False])
def test_a_job_goes_on_with_graphs_and_without_as_if_nothing_had_been(
    graphs_first: bool, tiny_folder: Path, tmp_path: Path
) -> None:
    train_rig = rig_of("buckets, two passes in a step", tiny_folder, tmp_path)
    whole = train_rig.run(workload=by(CAPTURING))
    kinds = [capturing(RerunRecorder()), CAPTURING]
    before, after = kinds if graphs_first else reversed(kinds)
    first = train_rig.run(
        RecordingReporter(agent_requests={4: AgentRequest.CHECKPOINT_AND_STOP}), workload=by(before)
    )
    second = train_rig.run(workload=by(after), resume=train_rig.resume_point(first, 4))
    assert second.artifacts == whole.artifacts
    assert second.checkpoint_bytes[STEPS] == whole.checkpoint_bytes[STEPS]
    assert not second.notices


@dataclass
class Mistaken(RerunGraph):
    """Adds a last bit to one gradient, from its second replay on."""

    def replay(self) -> torch.Tensor:
        if self.replays:
            with torch.no_grad():
                self.inputs["batch.noise_BCHW"][0, 0, 0, 0] += 1e-3
        return super().replay()


def test_a_graph_that_errs_costs_a_job_nothing_but_the_graphs(tiny_folder: Path, tmp_path: Path) -> None:
    train_rig = rig_of("bf16, full gradient checkpointing", tiny_folder, tmp_path)
    plain = train_rig.run(workload=by(CAPTURING))
    found, facts = facts_of(train_rig, by(capturing(RerunRecorder(make=Mistaken))))
    assert found.artifacts == plain.artifacts
    assert facts["by_graph"] == 0
    assert "of a pass by graph differ" in facts["why_not"]
    assert found.notices == [(GRAPHS_OFF, {"message": f"passes go on without CUDA graphs: {facts['why_not']}"})]


def test_out_of_memory_beside_graphs_costs_the_graphs_and_not_the_footprint(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """The footprint decides about bits, so memory that graphs hold must not make it smaller."""
    train_rig = rig_of("buckets, two passes in a step", tiny_folder, tmp_path)
    plain = train_rig.run(workload=by(CAPTURING))
    recorder = RerunRecorder()

    def scarce(spec: Any, **options: Any) -> BaseModel:
        base = load_base(spec, **options)

        def fail(*_: Any) -> None:
            if len(recorder.graphs) == 1 and recorder.graphs[0].replays == 1 and not recorder.released:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        base.unet.conv_out.register_forward_hook(fail)
        return base

    found, facts = facts_of(train_rig, by(capturing(recorder), load=scarce))
    assert [name for name, _ in found.notices] == [GRAPHS_OFF]
    assert "out of memory" in facts["why_not"]
    assert found.artifacts == plain.artifacts


# ---- a shared batch


TOGETHER = {"a": {"max_train_steps": STEPS}, "d": {"max_train_steps": STEPS - 3}}


def test_two_jobs_in_one_batch_by_graph_have_the_bytes_of_two_by_plain_passes(joint_rig: JointTrainRig) -> None:
    """One of them ends before the other, so that a batch of another width is recorded anew."""
    _, plain = joint_rig.together(["a", "d"], changes=TOGETHER)
    recorder = RerunRecorder()
    table, found = joint_rig.together(["a", "d"], changes=TOGETHER, capturing=capturing(recorder))
    for name in ("a", "d"):
        end = table.ends[name]
        assert isinstance(end, Outcome)
        assert found[name].artifacts == plain[name].artifacts
        assert not found[name].notices
        assert end.summary["cuda_graphs"]["by_graph"] >= RULES.checks
    assert len(recorder.graphs) == 2


def test_shared_batch_with_one_member_with_cuda_graphs_off_records_no_graph(joint_rig: JointTrainRig) -> None:
    changes = {"a": {"max_train_steps": 3}, "d": {"max_train_steps": 3, "cuda_graphs": "off"}}
    recorder = RerunRecorder()
    joint_rig.together(["a", "d"], changes=changes, capturing=capturing(recorder))
    assert not recorder.graphs


def test_batch_member_with_cuda_graphs_on_is_told_why_its_batch_has_none(joint_rig: JointTrainRig) -> None:
    changes = {"a": {"max_train_steps": 2}, "d": {"max_train_steps": 2, "cuda_graphs": "on"}}
    _, found = joint_rig.together(["a", "d"], changes=changes)
    assert [name for name, _ in found["d"].notices] == [GRAPHS_OFF]
    assert not found["a"].notices
