"""On a GPU, too: no seam shows. Run by hand: `python -m pytest tests/gpu`."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.draws.determinism import fix_determinism
from giornata.workloads.interface import AgentRequest
from giornata.workloads.train.workload import TrainWorkload

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

JOBS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16, text encoders, accumulation": {
        "mixed_precision": "bf16",
        "train_text_encoder": True,
        "gradient_accumulation_steps": 2,
        "train_batch_size": 2,
        "lr_scheduler": "cosine",
    },
    "a base in 8 bits": {"fp8_base": True, "mixed_precision": "bf16", "target_modules": ("to_q", "conv1")},
}


@pytest.fixture(params=JOBS)
def train_rig(request: pytest.FixtureRequest, tmp_path: Path) -> TrainRig:
    from giornata.diffusion.tiny.tiny_model import build_tiny_model

    # CUBLAS_WORKSPACE_CONFIG is set by tests/gpu/conftest.py, before CUDA starts.
    fix_determinism(1)
    model = build_tiny_model(tmp_path / "model")
    inputs = draw_pictures(tmp_path / "pictures", 5)
    return TrainRig(root=tmp_path / "job", spec=spec_for(model, **JOBS[request.param]), inputs=inputs)


@pytest.mark.parametrize("stop_at", [3, 8])
def test_stopped_and_resumed_in_a_fresh_workload(train_rig: TrainRig, stop_at: int) -> None:
    whole = train_rig.run(workload=TrainWorkload(device="cuda"))
    first = train_rig.run(
        RecordingReporter(agent_requests={stop_at: AgentRequest.CHECKPOINT_AND_STOP}),
        workload=TrainWorkload(device="cuda"),
    )
    second = train_rig.run(workload=TrainWorkload(device="cuda"), resume=train_rig.resume_point(first, stop_at))
    assert second.artifacts == whole.artifacts
    assert second.notices == []


def test_a_second_job_on_the_warm_base_equals_a_cold_one(train_rig: TrainRig) -> None:
    cold = train_rig.run(workload=TrainWorkload(device="cuda"))
    workload = TrainWorkload(device="cuda")
    train_rig.run(workload=workload)
    assert train_rig.run(workload=workload).artifacts == cold.artifacts
