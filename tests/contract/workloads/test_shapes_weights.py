"""The drawing model that comes with the package draws what it is told, by a scorer without learned parts."""

import random
from pathlib import Path

import pytest
from tools.tiny_shapes.evaluate import draw_prompts, load
from tools.tiny_shapes.scoring import Scorer, ShapeReading, count_scores

from giornata.diffusion.shapes.pictures import grid
from giornata.diffusion.shapes.shipped import copy_drawing_model

ASKED = grid()[::4]


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> list[ShapeReading]:
    model: Path = copy_drawing_model(tmp_path_factory.mktemp("shapes") / "model")
    drawn = draw_prompts(load(model), [shape.caption for shape in ASKED], seed=5)
    scorer = Scorer()
    return [scorer.read(picture) for picture in drawn]


def test_drawing_model_follows_its_prompts(readings: list[ShapeReading]) -> None:
    found = count_scores(readings, ASKED)
    assert found.all >= 0.85
    assert found.mean_iou >= 0.8


def test_drawing_model_pictures_do_not_match_shuffled_prompts(readings: list[ShapeReading]) -> None:
    assert count_scores(readings, random.Random(0).sample(ASKED, len(ASKED))).all <= 0.15
