"""Rows are denoised as diffusers' pipelines do it: bit for bit when alone, but for rounding in a batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.fixtures.drawing import (
    SIDE_PX,
    ReferencePicture,
    asked,
    finished,
    image_row,
    inpainting_row,
    photo,
    pipeline_of,
    right_half,
    text_row,
    with_mask_channels,
)

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.sampling.denoising import Denoiser
from giornata.diffusion.sampling.picture_decoder import PictureDecoder
from giornata.protocol.generation.samplers import SAMPLERS
from giornata.protocol.generation.schedulers import all_schedulers

OWN = [sampler.name for sampler in SAMPLERS]
FEW = ("euler", "euler_ancestral", "heun", "pndm", "dpmpp_2m", "lms")
"""One of each sort: noise in each step, two evaluations a step, more timesteps than steps, state across steps, and
state that diffusers counts from the schedule's first step."""


def _cases(first: Sequence[str], whole: str) -> list[Any]:
    """All schedulers in one family, and one of each sort in the other. What is not among the first takes long
    together.

    Between them the tests below have each scheduler with each kind of row and with each family.
    """
    found = []
    for family in ("sdxl", "sd15"):
        quick = first if family == "sdxl" else FEW
        found += [
            pytest.param(family, name, marks=() if name in quick else pytest.mark.long, id=f"{family}-{name}")
            for name in all_schedulers()
            if family == whole or name in quick
        ]
    return found


def _wanted(name: str) -> ReferencePicture:
    scheduler = all_schedulers()[name]
    return ReferencePicture(class_name=scheduler.class_name, settings=tuple(scheduler.settings.items()))


@pytest.fixture
def bases(tiny_base: BaseModel, tiny_sd15_base: BaseModel) -> dict[str, BaseModel]:
    return {"sdxl": tiny_base, "sd15": tiny_sd15_base}


@pytest.fixture(params=["sdxl", "sd15"])
def base(request: pytest.FixtureRequest, bases: dict[str, BaseModel]) -> BaseModel:
    return bases[request.param]


@pytest.mark.parametrize(("family", "name"), _cases([*OWN, "dpmpp_2m_karras", "euler_beta"], "sdxl"))
def test_a_text_row_alone_equals_the_pipeline(bases: dict[str, BaseModel], family: str, name: str) -> None:
    base, wanted = bases[family], _wanted(name)
    pipeline = pipeline_of(base, wanted)
    theirs = pipeline(**asked(wanted), height=SIDE_PX, width=SIDE_PX, output_type="latent").images

    [ours] = finished(base, text_row(base, wanted))

    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("family", "name"), _cases(FEW, "sd15"))
def test_an_image_row_alone_equals_the_pipeline(bases: dict[str, BaseModel], family: str, name: str) -> None:
    base, wanted = bases[family], _wanted(name)
    pipeline = pipeline_of(base, wanted, "Img2Img")
    theirs = pipeline(**asked(wanted), image=photo(), strength=wanted.strength, output_type="latent").images

    [ours] = finished(base, image_row(base, wanted))

    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("family", "name"), _cases(FEW, "sdxl"))
def test_an_inpainting_row_alone_equals_the_pipeline(bases: dict[str, BaseModel], family: str, name: str) -> None:
    base, wanted = bases[family], _wanted(name)
    [ours] = finished(base, inpainting_row(base, wanted))

    assert torch.equal(ours, _inpainted(base, wanted))


@pytest.mark.parametrize("strength", [0.6, 1.0])
def test_an_inpainting_row_of_nine_channels_equals_the_pipeline(base: BaseModel, strength: float) -> None:
    made_for_it, wanted = with_mask_channels(base), ReferencePicture(strength=strength)

    [ours] = finished(made_for_it, inpainting_row(made_for_it, wanted))

    assert torch.equal(ours, _inpainted(made_for_it, wanted))


def _inpainted(base: BaseModel, wanted: ReferencePicture) -> torch.Tensor:
    found: torch.Tensor = pipeline_of(base, wanted, "Inpaint")(
        **asked(wanted),
        image=photo(),
        mask_image=right_half(),
        strength=wanted.strength,
        height=SIDE_PX,
        width=SIDE_PX,
        output_type="latent",
    ).images
    return found


def test_a_row_without_guidance_equals_the_pipeline(base: BaseModel) -> None:
    wanted = ReferencePicture(guidance=1.0)
    theirs = pipeline_of(base, wanted)(**asked(wanted), height=SIDE_PX, width=SIDE_PX, output_type="latent").images

    [ours] = finished(base, text_row(base, wanted))

    assert torch.equal(ours, theirs)


def test_a_finished_picture_equals_the_pipelines_picture(base: BaseModel) -> None:
    wanted = ReferencePicture()
    theirs = pipeline_of(base, wanted)(**asked(wanted), height=SIDE_PX, width=SIDE_PX).images[0]

    [latents] = finished(base, text_row(base, wanted))

    assert PictureDecoder(base).picture(latents).tobytes() == theirs.tobytes()


def test_rows_that_join_and_leave_are_as_they_would_be_alone(exact_base: BaseModel) -> None:
    all_wanted = [
        replace(_wanted(name), seed=seed, steps=3 + seed % 4, guidance=(6.0, 1.0)[seed % 2])
        for seed, name in enumerate((*FEW, "dpmpp_2m_sde", "uni_pc", "lcm"))
    ]
    alone = [finished(exact_base, text_row(exact_base, wanted))[0] for wanted in all_wanted]

    together = _joined_one_by_one(exact_base, all_wanted)

    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-6)


def _joined_one_by_one(base: BaseModel, all_wanted: list[ReferencePicture]) -> list[torch.Tensor]:
    """A row joins at each step, and leaves as soon as it is done."""
    rows = [text_row(base, wanted) for wanted in all_wanted]
    denoiser, waiting, present = Denoiser(base.unet), list(rows), []
    while waiting or present:
        present += [waiting.pop()] if waiting else []
        denoiser.step(present)
        present = [row for row in present if not row.is_done]
    return [row.latents_1CHW for row in rows]
