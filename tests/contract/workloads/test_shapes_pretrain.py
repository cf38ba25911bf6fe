"""The pre-training: the same bytes after a break, files that anybody loads, and a card of what was measured."""

import hashlib
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from tools.tiny_shapes import pretrain as program
from tools.tiny_shapes.courses import (
    EMPTY_SHARE,
    ZERO_SHARE,
    Words,
    encode_pictures,
    reconstruction_loss,
    tensor_of,
    time_ids,
)
from tools.tiny_shapes.evaluate import ceiling, load
from tools.tiny_shapes.stage import Peers, Ramp, Stage, StageDependencies, StagePlan, TrainedPart
from torch import nn

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.shapes.model import new_vae, text_parts
from giornata.diffusion.shapes.pictures import captioned, captions
from giornata.domain.errors import InvalidInput

SMALL = StagePlan(
    processes=1, pictures=40, vae_steps=3, vae_batch=2, unet_steps=4, unet_batch=4, checkpoint_steps=2, seed=3
)

STEPS = 100  # of the straight line


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def around(folder: Path, plan: StagePlan = SMALL, lines: list[str] | None = None) -> StageDependencies:
    told = [] if lines is None else lines
    return StageDependencies(plan=plan, peers=Peers(), folder=folder, say=told.append, clock_s=lambda: 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretrain") / "model"
    program.pretrain(out, SMALL, score_seeds=())
    return out


def a_stage(folder: Path, *, plan: StagePlan = SMALL, lines: list[str] | None = None) -> tuple[Stage, nn.Module]:
    """Fits a straight line to random points, other ones at every step."""
    line = nn.Linear(3, 1)
    with torch.no_grad():
        line.weight.copy_(normal(0, "line", shape=(1, 3)))
        line.bias.zero_()

    def loss(step: int) -> torch.Tensor:
        points = normal(0, "points", step, shape=(8, 3))
        return (line(points)[:, 0] - points.sum(dim=1)).square().mean()

    ramp = Ramp(steps=STEPS, warmup_steps=5, constant_share=0.5)
    course = TrainedPart(name="line", model=line, loss=loss, learning_rate=0.1, ramp=ramp, ema_decay=0.9)
    return Stage(course, around(folder, plan, lines)), line


def test_a_stage_learns_and_ends_with_the_average(tmp_path: Path) -> None:
    stage, line = a_stage(tmp_path)
    stage.run()
    assert torch.allclose(line.weight, torch.ones(1, 3), atol=0.1)
    assert not line.training


@pytest.mark.parametrize("stop", [1, 2, 3, 7, STEPS - 1, STEPS])
def test_a_stage_that_was_stopped_anywhere_ends_with_the_same_bits(stop: int, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir(), broken.mkdir()
    reference, expected = a_stage(whole)
    reference.run()
    a_stage(broken)[0].run(until=stop)
    lines: list[str] = []
    stage, line = a_stage(broken, lines=lines)
    stage.run()
    assert all(torch.equal(a, b) for a, b in zip(line.parameters(), expected.parameters(), strict=True))
    assert (whole / "line.safetensors").read_bytes() == (broken / "line.safetensors").read_bytes()
    assert lines[:1] == ([f"line goes on from step {stop - stop % 2}"] if stop >= 2 else lines[:1])


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path) -> None:
    a_stage(tmp_path)[0].run(until=4)
    with pytest.raises(InvalidInput, match="other numbers"):
        a_stage(tmp_path, plan=StagePlan(seed=8))[0].run()


def test_the_whole_of_it_gives_the_same_bytes_again(model: Path, tmp_path: Path) -> None:
    program.pretrain(tmp_path / "again", SMALL, score_seeds=())
    assert hashes(tmp_path / "again") == hashes(model)
    program.pretrain(tmp_path / "other", StagePlan(**(vars_of(SMALL) | {"seed": 4})), score_seeds=())
    changed = {name for name, value in hashes(tmp_path / "other").items() if hashes(model)[name] != value}
    assert {name for name in changed if name.endswith(".safetensors")} == {
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    }


def vars_of(plan: StagePlan) -> dict[str, int | float]:
    return {name: getattr(plan, name) for name in StagePlan.__dataclass_fields__}


@pytest.mark.long
def test_two_processes_give_the_same_bytes_after_a_break(tmp_path: Path) -> None:
    plan = StagePlan(**(vars_of(SMALL) | {"processes": 2, "vae_steps": 2, "unet_steps": 3}))
    out, work = tmp_path / "model", tmp_path / "model.work"
    program.pretrain(out, plan, score_seeds=())
    whole = hashes(out)
    # As after a kill while the UNet was trained: neither the model is there nor the UNet's last checkpoint.
    (work / "unet.safetensors").unlink()
    shutil.rmtree(out)
    program.pretrain(out, plan, score_seeds=())
    assert hashes(out) == whole


def test_anybody_can_load_the_files_and_they_are_small(model: Path) -> None:
    loaded = StableDiffusionXLPipeline.from_pretrained(model)
    assert {part.dtype for part in (loaded.unet, loaded.vae, loaded.text_encoder, loaded.text_encoder_2)} == {
        torch.float32
    }
    assert loaded.scheduler.config.prediction_type == "v_prediction"
    assert sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) < 8_000_000
    loaded.set_progress_bar_config(disable=True)
    picture = loaded("a red star", height=64, width=64, num_inference_steps=2).images[0]
    assert picture.size == (64, 64)


def test_scores_and_card_are_of_the_written_files(model: Path) -> None:
    kept = ceiling(load(model).vae)
    assert kept.grid.count == 192 and 5 < kept.psnr_db < 20  # a VAE that has hardly learned
    counts = {"count": 192, "form": 0.5, "color": 0.75, "background": 1.0, "both": 0.4, "all": 0.375, "mean_iou": 0.8}
    forms = dict.fromkeys(("circle", "square", "triangle", "star", "cross", "ring"), counts)
    seed = {"seed": 7, "grid": counts, "trained": counts, "held_out": counts, "shuffled": counts, "forms": forms}
    scores = {
        "ceiling": {"psnr_db": 28.25, "grid": counts, "forms": forms},
        "seeds": [seed],
        "steps": 25,
        "guidance": 4.0,
    }
    card = program.model_card(SMALL, json.loads(json.dumps(scores)), weights_bytes=7_770_000)
    for said in (
        "7.77 MB",
        "seed 7: pairs that were held out | 192 | 0.500 | 0.750 | 1.000 | 0.375 | 0.800",
        "28.2 dB",
    ):
        assert said in card
    assert "license: apache-2.0" in card and "blue star" in card and "4 steps of 1 x 4" in card


def test_latents_have_unit_deviation_and_do_not_depend_on_the_number_of_processes() -> None:
    latents = encode_pictures(new_vae(), SMALL, Peers())
    assert len(latents.captions) == 40 and latents.latents_NCHW.shape == (40, 4, 8, 8)
    assert float(latents.latents_NCHW.std()) == pytest.approx(1, abs=1e-4)


def test_the_learning_rate_warms_up_stays_and_falls_to_nothing() -> None:
    ramp = Ramp(steps=100, warmup_steps=10, constant_share=0.5)
    assert [ramp.factor(step) for step in (0, 4, 9, 30, 50)] == pytest.approx([0.1, 0.5, 1, 1, 1])
    assert ramp.factor(75) == pytest.approx(0.5)
    assert ramp.factor(99) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.98)))


def test_a_blurred_edge_costs_more_than_a_tint_of_the_same_error() -> None:
    pixels_BCHW = tensor_of([captioned(0)])
    tinted_BCHW = pixels_BCHW + 0.1
    checkered_BCHW = pixels_BCHW + 0.1 * (-1.0) ** torch.arange(64)
    assert torch.equal(reconstruction_loss(pixels_BCHW, pixels_BCHW), torch.tensor(0.0))
    assert float(reconstruction_loss(tinted_BCHW, pixels_BCHW)) == pytest.approx(0.01 + 0.3 * 0.1, abs=1e-5)
    assert float(reconstruction_loss(checkered_BCHW, pixels_BCHW)) == pytest.approx(
        0.01 + 0.3 * 0.1 + 0.2 * 0.2, abs=1e-5
    )


def test_captions_are_left_out_in_two_ways() -> None:
    words = Words(text_parts())
    rows_B = words.rows(["a red star", "a red star", "a red star"])
    chance_B = torch.tensor([0.0, ZERO_SHARE + EMPTY_SHARE / 2, 0.5])
    embedding = words.embedding(words.left_out(rows_B, chance_B))
    empty = words.embedding(words.rows([""]))
    assert not embedding.prompt_BLD[0].any() and not embedding.pooled_BP[0].any()
    assert torch.equal(embedding.prompt_BLD[1], empty.prompt_BLD[0])
    assert torch.equal(embedding.prompt_BLD[2], words.embedding(rows_B[:1]).prompt_BLD[0])
    assert len(words.prompt_KLD) == len(captions()) + 1


def test_some_pictures_are_said_to_be_cut_down_from_larger_ones() -> None:
    ids_B6 = time_ids(torch.tensor([0.0, 0.0999, 0.1, 0.9]))
    assert ids_B6[:, 0].tolist()[::2] == [64, 64] and 500 < float(ids_B6[1, 0]) < 512
    assert ids_B6[3].tolist() == [64, 64, 0, 0, 64, 64]
