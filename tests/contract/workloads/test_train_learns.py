"""A job teaches the drawing model a subject that it has never seen, by a scorer without learned parts.

Measured once with these numbers, one seed: subject 0 before, 1.00 after, 0.79 with prior prediction; old forms 1.00
before, 0.60 after, 0.88 with prior prediction. The bounds leave room for other seeds and machines.
"""

from pathlib import Path
from typing import Any

import pytest
from diffusers import StableDiffusionXLPipeline
from tests.fixtures.train_studio import Studio, input_file

from giornata.diffusion.drawings import BACKGROUNDS, draw_subject
from giornata.diffusion.shapes.evaluate import draw_prompts, load
from giornata.diffusion.shapes.pictures import grid
from giornata.diffusion.shapes.scoring import LEAST_IOU, Scorer, tally
from giornata.diffusion.shapes.shipped import copy_drawing_model

SUBJECT = "teal-heart"
SUBJECT_PROMPTS = [f"a sks shape on a {background} background" for background in BACKGROUNDS for _ in range(4)]
OLD = [shape for shape in grid() if not shape.held_out][::8]
JOB = {
    "dataset": "ds_1",
    "instance_prompt": "a sks shape",
    "resolution": 64,
    "center_crop": True,
    "rank": 8,
    "max_train_steps": 300,
    "learning_rate": 2e-3,
    "lr_scheduler": "cosine",
    "train_batch_size": 4,
    "mixed_precision": "no",
    "seed": 0,
    "checkpointing_steps": 1000,
}
PRIOR = {"with_prior_preservation": True, "prior_prediction": True, "class_prompt": "a shape"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_drawing_model(tmp_path_factory.mktemp("shapes") / "model")


def scores(pipeline: StableDiffusionXLPipeline) -> tuple[float, float]:
    """How often the subject is drawn, and how often old prompts are followed."""
    scorer = Scorer((SUBJECT,))
    new = [scorer.read(picture) for picture in draw_prompts(pipeline, SUBJECT_PROMPTS, seed=1)]
    drawn = [reading.iou.get(SUBJECT, 0.0) >= LEAST_IOU and SUBJECT in reading.own_colours for reading in new]
    old = [scorer.read(picture) for picture in draw_prompts(pipeline, [shape.caption for shape in OLD], seed=2)]
    return sum(drawn) / len(drawn), tally(old, OLD).all


def taught(model: Path, folder: Path, **fields: Any) -> StableDiffusionXLPipeline:
    inputs = [input_file(path) for path in draw_subject(SUBJECT, folder / "pictures", count=8)]
    spec = {"pretrained_model_name_or_path": str(model), **JOB, **fields}
    result = Studio(root=folder, spec=spec, inputs=inputs).run()
    lora = folder / "lora.safetensors"
    lora.write_bytes(result.artifacts["pytorch_lora_weights.safetensors"])
    pipeline = load(model)
    pipeline.load_lora_weights(str(lora))
    return pipeline


def test_before_it_knows_the_old_forms_and_not_the_subject(model: Path) -> None:
    subject, old = scores(load(model))
    assert subject == 0.0
    assert old >= 0.9


def test_it_learns_the_subject(model: Path, tmp_path: Path) -> None:
    subject, _ = scores(taught(model, tmp_path))
    assert subject >= 0.5


def test_prior_prediction_keeps_the_old_forms(model: Path, tmp_path: Path) -> None:
    subject, old = scores(taught(model, tmp_path, **PRIOR))
    assert subject >= 0.25
    assert old >= 0.7
