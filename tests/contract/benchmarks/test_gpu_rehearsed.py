"""Parts of `make gpu DEVICE=cpu`, so that the first minutes on a GPU are not spent on what a CPU can tell."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import tables, training
from benchmarks.gpu.base import Built, layout_of
from benchmarks.gpu.settings import settings_for
from safetensors.torch import load_file

from giornata.protocol.specs import TrainSpec

ROOT = Path(__file__).parents[3]


def test_gpu_benchmark_command_runs_encoders_part_on_cpu_and_writes_its_rates(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--json", str(path), "--parts", "encoders"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    part = json.loads(path.read_text())["parts"]["encoders"]
    assert part["state"] == "done"
    assert part["settings"]["model"] == "tiny"
    assert all(told["per_s"]["median"] > 0 for told in part["found"]["rates"].values())
    assert part["found"]["rows_of_the_trainer"] == 1
    assert "| pictures, 2 at a time |" in ran.stdout


def test_steps_alone_together_and_by_peft(tmp_path: Path) -> None:
    """The example script is not there, which is said, and fails nothing."""
    settings = replace(settings_for("cpu", "none"), steps=1, warm=1, together=2)
    deterministic = torch.are_deterministic_algorithms_enabled()
    found = training.steps(settings, tmp_path)
    assert set(found["ways"]) == {"alone", "2 together", "peft and autocast"}
    assert found["failed"] == {}
    assert found["script"] == {"missing": "no script was asked for"}
    assert all(way["images_per_s"]["median"] > 0 for way in found["ways"].values())
    assert "The example script was not measured" in "\n".join(tables.RENDER["steps"](found))
    assert torch.are_deterministic_algorithms_enabled() is deterministic


def test_a_way_that_fails_is_told_and_the_others_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def broken() -> dict[str, Any]:
        asked.append("broken")
        raise RuntimeError("no memory")

    way = {"step_ms": 1.0, "images_per_s": 1000.0, "peak_bytes": None, "notices": []}
    found = training._by_turns({"broken": broken, "sound": lambda: way}, 3)
    assert asked == ["broken"]
    assert found["failed"] == {"broken": "RuntimeError: no memory"}
    assert found["ways"]["sound"]["repetitions"] == 3
    said = capsys.readouterr()
    assert "no memory" in said.err
    assert json.loads(said.out.splitlines()[-1]) == found


def test_the_base_that_is_built_has_the_shapes_of_the_files(tmp_path: Path) -> None:
    """All of them, and none of the numbers; the position ids, which are in no file, are counted up."""
    layout = layout_of("tiny", tmp_path)
    spec = TrainSpec.model_validate({"model": "random-sdxl", "dataset": "ds_0", "seed": 1})
    base = Built(layout, "cpu")(spec, device="cpu", dtype=torch.bfloat16)
    (file,) = (layout / "unet").glob("*.safetensors")
    shapes = {name: tensor.shape for name, tensor in load_file(file).items()}
    assert {name: each.shape for name, each in base.unet.state_dict().items()} == shapes
    assert {each.dtype for each in base.unet.parameters()} == {torch.bfloat16}
    assert base.vae.dtype is torch.float32
    for encoder in base.text_encoders:
        buffers = dict(encoder.named_buffers())
        assert buffers
        assert all(each.flatten().tolist() == list(range(each.numel())) for each in buffers.values())
