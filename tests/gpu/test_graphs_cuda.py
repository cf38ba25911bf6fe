"""CUDA graphs on a GPU: jobs by graph have the bytes of plain ones, alone and together, and across a resume."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.joint_train_rig import JointReporter
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.workloads.interface import AgentRequest, Outcome
from giornata.workloads.train.workload import TrainWorkload

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS, STOP_AT = 60, 25
BUCKETS = {"enable_bucket": True, "bucket_reso_steps": 32, "min_bucket_reso": 32, "max_bucket_reso": 128}
JOBS: dict[str, dict[str, Any]] = {
    "two buckets": {**BUCKETS, "mixed_precision": "bf16", "gradient_accumulation_steps": 2},
    "fp32, gradient checkpointing": {"gradient_checkpointing": True},
    "a base in 8 bits, DoRA": {"base_quantization": "int8", "use_dora": True, "mixed_precision": "bf16"},
    "the base's own word": {
        "mixed_precision": "bf16",
        "with_prior_preservation": True,
        "prior_prediction": True,
        "class_prompt": "a toy",
    },
}


class Stopping(RecordingReporter):
    """Ends the job after so many steps. Metrics come late on a GPU, so the questions are counted."""

    asked = 0

    def agent_request(self) -> AgentRequest:
        self.asked += self.phases[-1][0] == "training"
        return AgentRequest.CHECKPOINT_AND_STOP if self.asked == STOP_AT else AgentRequest.GO_ON


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fix_determinism(1)  # CUBLAS_WORKSPACE_CONFIG is set by tests/gpu/conftest.py, before CUDA starts
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def rig_of(model: Path, folder: Path, name: str = "", **changes: Any) -> TrainRig:
    sizes = [(64, 64), (32, 128)] if name == "two buckets" else [(64, 70), (71, 75)]
    inputs = draw_pictures(folder / "pictures", 4, sizes=sizes)
    spec = spec_for(model, max_train_steps=STEPS, **JOBS.get(name, {}), **changes)
    return TrainRig(root=folder / "job", spec=spec, inputs=inputs)


def ran(train_rig: TrainRig, graphs: str) -> tuple[RecordingReporter, dict[str, Any]]:
    reporter = RecordingReporter()
    start = train_rig.start(spec=train_rig.spec | {"cuda_graphs": graphs})
    return reporter, TrainWorkload(device="cuda").run(start, reporter).summary["cuda_graphs"]


def weights(reporter: RecordingReporter) -> dict[str, Any]:
    """Of the result; its page tells the spec, in which the two differ."""
    from safetensors.torch import load

    return load(reporter.artifacts["lora-kohya.safetensors"])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_by_graph_has_the_bytes_of_a_plain_one(name: str, model: Path, tmp_path: Path) -> None:
    train_rig = rig_of(model, tmp_path, name)
    plain, without = ran(train_rig, "off")
    found, facts = ran(train_rig, "on")
    assert without["by_graph"] == 0
    assert facts["why_not"] is None
    assert facts["by_graph"] > facts["passes"] / 2
    assert same(weights(found), weights(plain))
    assert not found.notices


def test_cuda_graphs_auto_trains_by_graph(model: Path, tmp_path: Path) -> None:
    _, facts = ran(rig_of(model, tmp_path), "auto")
    assert facts["why_not"] is None
    assert facts["by_graph"] > 0


def test_cuda_graphs_with_compiled_kernels_have_bytes_of_plain_passes(model: Path, tmp_path: Path) -> None:
    train_rig = rig_of(model, tmp_path, compile="on", mixed_precision="bf16")
    plain, _ = ran(train_rig, "off")
    found, facts = ran(train_rig, "on")
    assert facts["why_not"] is None
    assert same(weights(found), weights(plain))


def test_a_job_stopped_with_graphs_and_resumed_has_the_bytes_of_a_whole_one(model: Path, tmp_path: Path) -> None:
    """Resumed before its graphs are recorded again, so that plain passes follow those by graph."""
    train_rig = rig_of(model, tmp_path, "two buckets", cuda_graphs="on")
    whole = train_rig.run(workload=TrainWorkload(device="cuda"))
    first = train_rig.run(Stopping(), workload=TrainWorkload(device="cuda"))
    point = train_rig.resume_point(first, STOP_AT)
    second = train_rig.run(workload=TrainWorkload(device="cuda"), resume=point)
    assert second.artifacts == whole.artifacts
    assert second.notices == []


def test_two_jobs_in_one_batch_by_graph_have_the_bytes_of_two_by_plain_passes(model: Path, tmp_path: Path) -> None:
    def together(graphs: str) -> dict[str, tuple[RecordingReporter, Any]]:
        entries = {}
        for number, name in enumerate("ab"):
            changes = {"seed": number, "cuda_graphs": graphs, "mixed_precision": "bf16"}
            train_rig = rig_of(model, tmp_path / graphs / name, **changes)
            start = train_rig.start().model_copy(update={"job": name})
            entries[name] = start, RecordingReporter()
        table = JointReporter(waiting=deque(entries.values()))
        TrainWorkload(device="cuda", places=2, clock=lambda: 0.0).run_many(table)
        return {name: (reporter, table.ends[name]) for name, (_, reporter) in entries.items()}

    plain, found = together("off"), together("on")
    for name, (reporter, end) in found.items():
        assert isinstance(end, Outcome), end
        assert end.summary["cuda_graphs"]["why_not"] is None
        assert end.summary["cuda_graphs"]["by_graph"] > STEPS / 2
        assert same(weights(reporter), weights(plain[name][0]))
