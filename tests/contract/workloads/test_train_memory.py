"""Too little memory: told beforehand, survived once in the middle, and recorded wherever it shows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.base.memory import GIB
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.files import checkpoint as checkpoints
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest, Stopped
from giornata.workloads.train.device.memory_budget import CONTEXT_BYTES, MemoryBudget, MemoryPlan, sizes_of
from giornata.workloads.train.workload import TrainWorkload

NOTICE = "smaller-footprint"


class Scarce:
    """load_base whose UNet runs out of memory in given calls of its forward pass, counted from 0."""

    def __init__(self, *out_of_memory: int) -> None:
        self.out_of_memory, self.calls, self.base = set(out_of_memory), 0, None

    def __call__(self, spec: TrainSpec, **options: Any) -> BaseModel:
        self.base = load_base(spec, **options)
        self.base.unet.conv_out.register_forward_hook(self._fail)
        return self.base

    def _fail(self, *_: Any) -> None:
        self.calls += 1
        if self.calls - 1 in self.out_of_memory:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def workload(*out_of_memory: int, budget: MemoryBudget | None = None) -> TrainWorkload:
    return TrainWorkload(device="cpu", load=Scarce(*out_of_memory), budget_of=lambda _: budget)


@pytest.fixture
def train_rig(tiny_folder: Path, tmp_path: Path) -> TrainRig:
    changes = {"max_train_steps": 6, "train_batch_size": 2, "gradient_accumulation_steps": 2}
    return TrainRig(root=tmp_path, spec=spec_for(tiny_folder, **changes), inputs=draw_pictures(tmp_path / "in", 3))


def tensors_of(reporter: RecordingReporter) -> dict[str, torch.Tensor]:
    return load_tensors(reporter.artifacts["lora-kohya.safetensors"])


def test_out_of_memory_once_costs_no_step_and_with_gradient_checkpointing_no_bit(train_rig: TrainRig) -> None:
    """Half of a step's pictures go at a time, and call 5 is the second half of step 3: the gradients of the first
    half must not count twice."""
    budget = room_for(train_rig.spec, MemoryPlan(recompute=Recompute.OFF, rows=2))
    calm, hit = train_rig.run(workload=workload(budget=budget)), train_rig.run(workload=workload(5, budget=budget))
    assert [name for name, _ in hit.notices] == [NOTICE, NOTICE]
    said = hit.notices[1][1]
    assert said["step"] == 2
    assert said["from"] == "gradient checkpointing off, 2 at a time"
    assert said["to"] == "gradient checkpointing full, 2 at a time"
    assert "2.00 GiB" in said["message"]
    assert sorted(hit.metrics) == [1, 2, 3, 4, 5, 6]
    one, other = tensors_of(calm), tensors_of(hit)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_footprint_after_out_of_memory_is_recorded_in_checkpoint_artifacts_and_summary(train_rig: TrainRig) -> None:
    reporter = RecordingReporter()
    outcome = workload(2).run(train_rig.start(), reporter)
    footprints = [entry["fingerprint"].get("footprint") for entry in outcome.summary["fingerprints"]]
    assert footprints == [None, {"gradient_checkpointing": "off", "rows": 2}]
    assert [entry["from_step"] for entry in outcome.summary["fingerprints"]] == [0, 2]
    assert sorted(reporter.checkpoints) == [3, 6]  # one at once, so that it travels
    header = checkpoints.read_header(reporter.checkpoints[3])
    assert header.fingerprint["footprint"]["rows"] == 2
    assert all(b"giornata.fingerprints" in content for content in reporter.artifacts.values())


def test_footprint_after_out_of_memory_holds_for_later_attempts_to_same_bytes(train_rig: TrainRig) -> None:
    """Fewer pictures at a time change bits, and the next node keeps to it though it has memory enough."""
    whole = train_rig.run(workload=workload(1))
    assert whole.notices[0][1]["to"].endswith("2 at a time")
    first = train_rig.run(
        RecordingReporter(agent_requests={4: AgentRequest.CHECKPOINT_AND_STOP}), workload=workload(1)
    )
    for step in (2, 4):
        second = train_rig.run(resume=train_rig.resume_point(first, step))
        assert not second.notices
        assert second.artifacts == whole.artifacts
    calm = train_rig.run()
    pairs = list(zip(tensors_of(calm).values(), tensors_of(whole).values(), strict=True))
    assert not all(torch.equal(one, other) for one, other in pairs)


def failed(train_rig: TrainRig, made: TrainWorkload, **changes: Any) -> tuple[WorkloadFailed, RecordingReporter]:
    reporter = RecordingReporter()
    with pytest.raises(WorkloadFailed) as caught:
        train_rig.run(reporter, workload=made, **changes)
    return caught.value, reporter


def test_out_of_memory_twice_is_the_jobs_fault(train_rig: TrainRig) -> None:
    budget = MemoryBudget(total_bytes=64 * GIB)
    failure, reporter = failed(train_rig, workload(2, 6, budget=budget))
    assert failure.reason is Reason.BAD_SPEC
    for part in ("step 4", "again with a smaller footprint", "64.0 GiB", "lower resolution", "2.00 GiB"):
        assert part in failure.message
    assert failure.faults[0].where == "spec"
    assert [name for name, _ in reporter.notices] == [NOTICE]
    assert sorted(reporter.checkpoints) == [3]  # the last good state is kept


def test_out_of_memory_with_the_smallest_footprint_is_not_retried(train_rig: TrainRig) -> None:
    changes = {"gradient_checkpointing": True, "train_batch_size": 1, "gradient_accumulation_steps": 1}
    failure, reporter = failed(train_rig, workload(0), spec=train_rig.spec | changes)
    assert failure.reason is Reason.BAD_SPEC
    assert "again" not in failure.message
    assert not reporter.notices


def test_memory_that_others_took_meanwhile_is_the_machines_fault(train_rig: TrainRig) -> None:
    made = TrainWorkload(
        device="cpu", load=Scarce(2, 4), budget_of=lambda _: MemoryBudget(total_bytes=64 * GIB, others_bytes=20 * GIB)
    )
    failure, _ = failed(train_rig, made)
    assert failure.reason is Reason.NODE_VRAM
    assert "20.0 GiB" in failure.message


def test_the_base_is_clean_and_warm_after_a_job_that_was_too_large(train_rig: TrainRig) -> None:
    made = workload(2, 4)
    failed(train_rig, made)
    assert made.held()
    assert train_rig.run(workload=made).artifacts == train_rig.run().artifacts


def test_an_error_that_is_not_about_memory_is_not_retried(train_rig: TrainRig) -> None:
    class Broken(Scarce):
        def _fail(self, *_: Any) -> None:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        train_rig.run(workload=TrainWorkload(device="cpu", load=Broken()))


# ---- told beforehand


def room_for(spec: dict[str, Any], memory_plan: MemoryPlan) -> MemoryBudget:
    """A device that the job just fits when laid out like this."""
    parsed = TrainSpec.model_validate(spec)
    base = load_base(parsed, device="cpu", dtype=torch.float32)
    need_bytes = sizes_of(base, parsed).peak_bytes(memory_plan)
    return MemoryBudget(total_bytes=int((need_bytes + CONTEXT_BYTES) / 0.95) + 2)


def test_a_job_that_does_not_fit_is_made_smaller_before_its_first_step(train_rig: TrainRig) -> None:
    pieces = MemoryPlan(recompute=Recompute.FULL, rows=2)
    reporter = RecordingReporter(agent_requests={3: AgentRequest.CHECKPOINT_AND_STOP})
    spec = train_rig.spec | {"resolution": 128, "train_batch_size": 4, "gradient_accumulation_steps": 1}
    budget = room_for(spec, pieces)
    whole = train_rig.run(spec=spec, workload=workload(budget=budget))
    assert whole.notices[0][0] == NOTICE
    assert whole.notices[0][1]["to"] == pieces.in_words()
    assert "expected to take" in whole.lines[0]
    assert json.loads(json.dumps(whole.notices[0][1]))
    first = train_rig.run(reporter, spec=spec, workload=workload(budget=budget))
    larger = train_rig.run(
        spec=spec,
        resume=train_rig.resume_point(first, 3),
        workload=workload(budget=MemoryBudget(total_bytes=64 * GIB)),
    )
    assert larger.artifacts == whole.artifacts
    assert not larger.notices


def test_a_job_that_can_never_fit_is_refused_before_anything_is_encoded(train_rig: TrainRig) -> None:
    failure, reporter = failed(train_rig, workload(budget=MemoryBudget(total_bytes=GIB // 2)))
    assert failure.reason is Reason.NODE_TOO_SMALL
    assert [name for name, _, _ in reporter.phases] == ["loading"]


def test_resume_after_the_last_step_needs_no_memory_and_skips_samples(train_rig: TrainRig) -> None:
    """Pictures do, and go without."""
    reporter, spec = RecordingReporter(), train_rig.spec | {"sample_prompts": ["a sks toy"]}
    made = train_rig.run(RecordingReporter(agent_requests={6: AgentRequest.CHECKPOINT_AND_STOP}), spec=spec)
    try:
        start = train_rig.start(resume=train_rig.resume_point(made, 6), spec=spec)
        workload(budget=MemoryBudget(total_bytes=1)).run(start, reporter)
    except Stopped:
        pytest.fail("there was nothing to stop")
    assert "README.md" in reporter.artifacts and "samples.png" not in reporter.artifacts
    assert [name for name, _ in reporter.notices] == ["samples-not-drawn"]
