"""Between the first step and the last nothing waits for the device, as torch itself tells it
(torch.cuda.set_sync_debug_mode); and a snapshot is of its moment, whatever happens to the tensors next."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for

from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.files.checkpoint import TensorSnapshot
from giornata.diffusion.tiny.tiny_model import build_tiny_model
from giornata.workloads.interface import AgentRequest
from giornata.workloads.train.workload import TrainWorkload

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 6
"""Fewer than those after which losses are fetched."""
JOBS: dict[str, dict[str, Any]] = {
    "cached embeddings": {"snr_gamma": 5.0},
    "text encoders": {"train_text_encoder": True},
    "DoRA": {"use_dora": True},
    "EDM": {"do_edm_style_training": True},
    "a base in 8 bits": {"fp8_base": True},
}


class Strict(RecordingReporter):
    """From the end of the first step to that of the last but one, whoever waits for the device gets an error."""

    done = 0

    def agent_request(self) -> AgentRequest:
        if self.phases[-1][0] == "training":
            self.done += 1
            torch.cuda.set_sync_debug_mode("error" if self.done < STEPS - 1 else "default")
        return AgentRequest.GO_ON


@pytest.mark.parametrize("name", JOBS)
def test_steps_run_ahead_of_the_device(name: str, tmp_path: Path) -> None:
    fix_determinism(1)
    model = build_tiny_model(tmp_path / "model")
    spec = spec_for(model, mixed_precision="bf16", max_train_steps=STEPS, **JOBS[name])
    train_rig = TrainRig(root=tmp_path / "job", spec=spec, inputs=draw_pictures(tmp_path / "pictures", 3))
    reporter = Strict()
    try:
        train_rig.run(reporter, workload=TrainWorkload(device="cuda", clock=lambda: 0.0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert reporter.done >= STEPS
    assert reporter.artifacts


def test_a_snapshot_is_of_its_moment() -> None:
    numbers = torch.arange(2**24, device="cuda", dtype=torch.float32)
    expected = numbers.cpu().clone()
    snapshot = TensorSnapshot({"one": numbers, "other": numbers[:10]})
    for _ in range(50):
        numbers.mul_(2.0)
    found = snapshot.tensors()
    assert torch.equal(found["one"], expected)
    assert torch.equal(found["other"], expected[:10])
