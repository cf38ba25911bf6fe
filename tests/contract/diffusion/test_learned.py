"""Marks of what was learned and kept: the base has learned nothing and moved nothing, and forgetting is seen."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from tools.tiny_shapes.evaluate import load
from tools.tiny_shapes.learned import Examination, main, shows
from tools.tiny_shapes.scoring import Scorer

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.base.models import load_base
from giornata.diffusion.files.formats import write_diffusers
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.shapes.shipped import copy_drawing_model
from giornata.diffusion.tiny.drawings import BACKGROUNDS, SUBJECTS, draw_picture
from giornata.protocol.specs import TrainSpec

PROMPT = "a sks shape"
COUNT = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_drawing_model(tmp_path_factory.mktemp("shapes") / "model")


@pytest.fixture(scope="module")
def pipeline(model: Path) -> StableDiffusionXLPipeline:
    return load(model)


@pytest.fixture(scope="module")
def examination(pipeline: StableDiffusionXLPipeline) -> Examination:
    return Examination(pipeline, count=COUNT)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_is_seen_in_its_own_pictures_and_in_no_other_subjects(subject: str) -> None:
    scorer = Scorer(tuple(SUBJECTS))
    for index in range(2 * len(BACKGROUNDS)):
        reading = scorer.read(draw_picture(subject, index))
        assert [name for name in SUBJECTS if shows(reading, name)] == [subject]


def test_the_base_is_its_own_control(examination: Examination, pipeline: StableDiffusionXLPipeline) -> None:
    marks = examination.of_base("teal-heart", prompt=PROMPT)
    assert (marks.count, marks.subject, marks.background, marks.unmoved) == (COUNT, 0.0, 1.0, 1.0)
    assert marks.old >= 0.75
    assert examination.of(pipeline, "teal-heart", prompt=PROMPT) == marks


def test_a_model_that_follows_no_prompt_any_more_has_moved(model: Path, examination: Examination) -> None:
    deaf = load(model)
    with torch.no_grad():
        for encoder in (deaf.text_encoder, deaf.text_encoder_2):
            for parameter in encoder.parameters():
                parameter.zero_()
    marks = examination.of(deaf, "teal-heart", prompt=PROMPT)
    assert marks.old <= 0.25
    assert marks.unmoved <= 0.25


def idle_lora(model: Path, path: Path) -> Path:
    """An adapter as it is before the first step, which does nothing."""
    spec = TrainSpec.model_validate({"model": str(model), "dataset": "ds_1", "seed": 1, "rank": 2})
    base = load_base(spec, device="cpu", dtype=torch.float32)
    with add_adapters(base, spec) as adapters:
        return write_diffusers(path, adapters.tensors(), facts_of(spec, step=1, layers_per_block=1))


def test_learned_command_writes_marks_of_each_row_and_names_bad_rows(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lora, out = idle_lora(model, tmp_path / "idle.safetensors"), tmp_path / "learned.json"
    common = ["--model", str(model), "--out", str(out), "--count", "2"]
    assert main([*common, f"--row=teal-heart={lora}:{PROMPT}", f"--row=two-tone-house={lora}:{PROMPT}"]) == 0
    found = json.loads(out.read_text())
    assert set(found) == {"teal-heart", "two-tone-house"}
    for marks in found.values():
        assert marks["lora"] == marks["base"]
    out.unlink()
    assert main([*common, f"--row=a dog={lora}:{PROMPT}", f"--row=teal-heart={tmp_path / 'gone'}:{PROMPT}"]) == 2
    told = capsys.readouterr().err
    assert "--row a dog: nobody draws a dog" in told
    assert "gone" in told
    assert not out.exists()
