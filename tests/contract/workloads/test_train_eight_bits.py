"""A base held in 8 bits: a job learns on it as on a plain one, and no other job gets it by mistake.

The subject and the scorer are those of test_train_learns. Measured with these numbers, seeds 0 and 1: subject 1.00
with int8 and with fp8, 1.00 and 0.94 with a plain base. The bound leaves room for other seeds and machines.
"""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, input_file, spec_for
from tools.tiny_shapes.evaluate import draw_prompts
from tools.tiny_shapes.evaluate import load as load_pipeline
from tools.tiny_shapes.scoring import LEAST_IOU, Scorer

from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.shapes.shipped import copy_drawing_model
from giornata.diffusion.tiny.drawings import BACKGROUNDS, draw_subject
from giornata.protocol.specs import model_key
from giornata.workloads.interface import Outcome
from giornata.workloads.train.workload import TrainWorkload

KOHYA = "lora-kohya.safetensors"
SUBJECT = "teal-heart"
PROMPTS = [f"a sks shape on a {background} background" for background in BACKGROUNDS for _ in range(4)]
JOB = {
    "dataset": "ds_1",
    "instance_prompt": "a sks shape",
    "resolution": 64,
    "center_crop": True,
    "rank": 8,
    "max_train_steps": 150,
    "learning_rate": 2e-3,
    "lr_scheduler": "cosine",
    "train_batch_size": 4,
    "mixed_precision": "no",
    "seed": 0,
    "checkpointing_steps": 1000,
}


@pytest.mark.long
def test_lora_trained_on_int8_base_learns_subject_that_the_base_cannot_draw(tmp_path: Path) -> None:
    """The result is loaded into the plain base, as users do."""
    model = copy_drawing_model(tmp_path / "model")
    inputs = [input_file(path) for path in draw_subject(SUBJECT, tmp_path / "pictures", count=8)]
    spec = {"pretrained_model_name_or_path": str(model), "base_quantization": "int8", **JOB}
    result = TrainRig(root=tmp_path, spec=spec, inputs=inputs).run()
    lora = tmp_path / "lora.safetensors"
    lora.write_bytes(result.artifacts["pytorch_lora_weights.safetensors"])
    pipeline, scorer = load_pipeline(model), Scorer((SUBJECT,))
    pipeline.load_lora_weights(str(lora))
    found = [scorer.read(picture) for picture in draw_prompts(pipeline, PROMPTS, seed=1)]
    drawn = [reading.iou.get(SUBJECT, 0.0) >= LEAST_IOU and SUBJECT in reading.own_colors for reading in found]
    assert sum(drawn) / len(drawn) >= 0.5


@pytest.fixture
def train_rig(tiny_folder: Path, tmp_path: Path) -> TrainRig:
    spec = spec_for(tiny_folder, max_train_steps=2)
    return TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "pictures", 3))


class Loader:
    """load_base that writes down what it was asked for."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def __call__(self, spec: Any, **options: Any) -> BaseModel:
        self.loaded.append(spec.base_quantization)
        return load_base(spec, **options)


class Summaries(TrainWorkload):
    """Keeps what each attempt says of itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.said: list[dict[str, Any]] = []

    def run(self, *given: Any) -> Outcome:
        outcome = super().run(*given)
        self.said.append(outcome.summary)
        return outcome


def test_the_warm_base_is_no_other_than_the_job_wants(train_rig: TrainRig) -> None:
    loader = Loader()
    workload = Summaries(device="cpu", load=loader)
    found: dict[str, list[RecordingReporter]] = {"none": [], "int8": [], "fp8": []}
    for kind in ("none", "int8", "int8", "none", "fp8", "none"):
        spec = train_rig.spec | {"base_quantization": kind}
        found[kind].append(train_rig.run(workload=workload, spec=spec))
        assert workload.held() == (model_key("train", spec),)
    assert loader.loaded == ["none", "int8", "none", "fp8", "none"]
    results = [tuple(each.artifacts[KOHYA] for each in runs) for runs in found.values()]
    assert [len(set(files)) for files in results] == [1, 1, 1]
    assert len({load_bytes(files[0]) for files in results}) == 3
    assert len({said["base_sha256"] for said in workload.said}) == 1  # of the weights as they were loaded


def load_bytes(content: bytes) -> bytes:
    """The tensors alone."""
    return b"".join(tensor.numpy().tobytes() for _, tensor in sorted(load(content).items()))
