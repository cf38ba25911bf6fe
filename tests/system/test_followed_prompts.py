"""Prompts are followed through the whole path: server, agent and engine are real, and the pictures are scored."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tests.system.conftest import Up
from tools.tiny_shapes.scoring import ScoreCounts, Scorer, count_scores

from giornata.diffusion.shapes.pictures import SIZE_PX, grid
from giornata.diffusion.shapes.shipped import copy_drawing_model

ASKED = grid()[::3]
LESS_THAN_ITS_OWN = 0.02


@pytest.mark.long
def test_pictures_of_the_fleet_follow_their_prompts_as_those_of_the_pipeline_do(
    start_up: Callable[..., Up], tmp_path: Path
) -> None:
    # Here: a process that runs other tests need not load torch.
    from diffusers import EulerDiscreteScheduler
    from tools.tiny_shapes.evaluate import GUIDANCE, STEPS, draw_prompts, load

    model, prompts = copy_drawing_model(tmp_path / "shapes"), [shape.caption for shape in ASKED]
    client = start_up("--nodes", "1").client
    order = client.generate(
        prompts,
        model=str(model),
        width=SIZE_PX,
        height=SIZE_PX,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        seed=5,
    )
    pipeline = load(model)
    pipeline.scheduler = EulerDiscreteScheduler.from_config(pipeline.scheduler.config)
    own = _score(draw_prompts(pipeline, prompts, seed=5))
    assert len(list(client.pictures(order.id, follow=True))) == len(ASKED)
    drawn = sorted(client.pictures(order.id), key=lambda picture: picture.number)
    ours = _score([Image.open(client.download_picture(each, tmp_path)) for each in drawn])
    assert ours.all >= own.all - LESS_THAN_ITS_OWN
    assert ours.mean_iou >= own.mean_iou - LESS_THAN_ITS_OWN


def _score(pictures: list[Image.Image]) -> ScoreCounts:
    scorer = Scorer()
    return count_scores([scorer.read(picture.convert("RGB")) for picture in pictures], ASKED)
