"""ControlNets, refiners, second passes and velocities, held to diffusers' pipelines; and one pass for all rows."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel
from tests.fixtures.claimed_cuda.counting import Count
from tests.fixtures.drawing import (
    SIDE_PX,
    ReferencePicture,
    asked,
    finished,
    inpainting_row,
    photo,
    pipeline_of,
    right_half,
    row_of,
    said,
    scheduler_of,
    sizes,
    text_row,
)
from torch.nn import functional

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.encode.prompt_embeds import PromptEmbeds
from giornata.diffusion.sampling import initial_latents
from giornata.diffusion.sampling.decoded import control_of, mask_of, spared
from giornata.diffusion.sampling.denoising import Denoiser
from giornata.diffusion.sampling.picture_decoder import PictureDecoder
from giornata.diffusion.sampling.row_schedule import RowSchedule
from giornata.diffusion.sampling.rows import DenoisingRow, RowControl


@pytest.fixture(params=["sdxl", "sd15"])
def base(request: pytest.FixtureRequest, tiny_base: BaseModel, tiny_sd15_base: BaseModel) -> BaseModel:
    return tiny_base if request.param == "sdxl" else tiny_sd15_base


def control_net(base: BaseModel, seed: int) -> Any:
    """A ControlNet of the base's architecture. One that is made of a UNet answers zeros; this one does not."""
    net = ControlNetModel.from_unet(base.unet).to(base.unet.dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.startswith("controlnet_"):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return net.requires_grad_(False).eval()


def control(model: Any, **more: Any) -> RowControl:
    image_13HW = control_of(photo(), width=SIDE_PX, height=SIDE_PX).to(model.dtype)
    return RowControl(model=model, image_13HW=image_13HW, **more)


def test_a_row_with_a_controlnet_equals_the_pipeline(base: BaseModel) -> None:
    net, wanted = control_net(base, 1), ReferencePicture()
    theirs = _controlled(base, wanted, net, photo(), 0.7, 0.0, 1.0)

    [ours] = finished(base, text_row(base, wanted, controls=(control(net, weight=0.7),)))

    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, finished(base, text_row(base, wanted))[0])


def test_a_row_with_two_controlnets_that_begin_and_end_equals_the_pipeline(base: BaseModel) -> None:
    nets, wanted = [control_net(base, 1), control_net(base, 2)], ReferencePicture()
    theirs = _controlled(base, wanted, nets, [photo(), photo()], [0.7, 1.2], [0.0, 0.4], [0.6, 1.0])

    controls = control(nets[0], weight=0.7, end=0.6), control(nets[1], weight=1.2, start=0.4)
    [ours] = finished(base, text_row(base, wanted, controls=controls))

    assert torch.equal(ours, theirs)


def test_a_row_without_controlnet_is_as_it_would_be_alone_beside_rows_with(exact_base: BaseModel) -> None:
    net, wanted, other = control_net(exact_base, 1), ReferencePicture(), ReferencePicture(seed=8)
    plain, steered = text_row(exact_base, wanted), text_row(exact_base, other, controls=(control(net),))

    together = finished(exact_base, plain, steered)

    alone = [
        finished(exact_base, text_row(exact_base, wanted)),
        finished(exact_base, text_row(exact_base, other, controls=(control(net),))),
    ]
    for one, [same] in zip(together, alone, strict=True):
        torch.testing.assert_close(one, same, atol=1e-6, rtol=1e-6)


def _controlled(
    base: BaseModel, wanted: ReferencePicture, net: Any, image: Any, scale: Any, start: Any, end: Any
) -> Any:
    import diffusers

    name = base.family.pipeline.replace("Pipeline", "ControlNetPipeline")
    parts = base.family.pipeline_options | pipeline_of(base, wanted).components
    pipeline = getattr(diffusers, name)(**parts, controlnet=net)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(
        **asked(wanted),
        image=image,
        controlnet_conditioning_scale=scale,
        control_guidance_start=start,
        control_guidance_end=end,
        height=SIDE_PX,
        width=SIDE_PX,
        output_type="latent",
    ).images


@pytest.mark.parametrize(
    "class_name", ["EulerDiscreteScheduler", "HeunDiscreteScheduler", "DDIMScheduler", "LMSDiscreteScheduler"]
)
def test_a_picture_that_a_second_model_goes_on_with_equals_the_pipelines(
    tiny_base: BaseModel, class_name: str
) -> None:
    wanted, share = ReferencePicture(class_name=class_name, steps=8), 0.6
    first = pipeline_of(tiny_base, wanted)(
        **asked(wanted), height=SIDE_PX, width=SIDE_PX, denoising_end=share, output_type="latent"
    ).images
    theirs = pipeline_of(tiny_base, wanted, "Img2Img")(
        **asked(wanted), image=first, denoising_start=share, output_type="latent"
    ).images

    begun = text_row(tiny_base, wanted, end=share)
    [handed_over] = finished(tiny_base, begun)
    schedule = RowSchedule.after_share(
        scheduler_of(tiny_base, wanted), wanted.steps, share, generator=initial_latents.seeded(wanted.seed)
    )
    [ours] = finished(tiny_base, row_of(tiny_base, wanted, schedule, handed_over))

    assert torch.equal(handed_over, first)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("class_name", ["EulerDiscreteScheduler", "LMSDiscreteScheduler"])
def test_a_second_pass_equals_the_pipeline_on_enlarged_latents(base: BaseModel, class_name: str) -> None:
    wanted, side_px = ReferencePicture(class_name=class_name, steps=8), 96
    [first] = finished(base, text_row(base, wanted))
    larger = functional.interpolate(first, size=(12, 12), mode="bilinear")
    theirs = pipeline_of(base, wanted, "Img2Img")(
        **asked(wanted), image=larger, strength=wanted.strength, output_type="latent"
    ).images

    generator = initial_latents.seeded(wanted.seed)
    schedule = RowSchedule.by_strength(scheduler_of(base, wanted), wanted.steps, wanted.strength, generator=generator)
    enlarged = initial_latents.enlarged(base, first, width=side_px, height=side_px)
    latents = initial_latents.from_latents(schedule, generator, enlarged)
    row = row_of(base, wanted, schedule, latents)
    row.sizes = sizes(side_px)
    [ours] = finished(base, row)

    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("zero_snr", [False, True])
def test_a_base_that_predicts_velocities_equals_the_pipeline(base: BaseModel, zero_snr: bool) -> None:
    settings: dict[str, Any] = {"prediction_type": "v_prediction"}
    if zero_snr:
        settings |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    scheduler = type(base.noise_scheduler).from_config(base.noise_scheduler.config, **settings)
    taught, wanted = replace(base, noise_scheduler=scheduler), ReferencePicture()
    theirs = pipeline_of(taught, wanted)(**asked(wanted), height=SIDE_PX, width=SIDE_PX, output_type="latent").images

    [ours] = finished(taught, text_row(taught, wanted))

    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, finished(base, text_row(base, wanted))[0])


def test_a_row_with_a_longer_prompt_draws_what_it_draws_alone(base: BaseModel) -> None:
    """In 64 bits: in 32 the tiny model makes of the rounding of a batch up to five levels, on some processors."""
    exact, wanted = _in_64_bits(base), ReferencePicture()
    short, long = said(exact, wanted), said(exact, ReferencePicture(prompt="a green star"))
    twice = PromptEmbeds(
        prompt_LD=torch.cat([long.prompt_LD] * 2),
        pooled_P=long.pooled_P,
        negative_LD=torch.cat([long.negative_LD] * 2),
        negative_pooled_P=long.negative_pooled_P,
    )

    def row(text: PromptEmbeds) -> DenoisingRow:
        found = text_row(exact, wanted)
        found.text = text
        return found

    together = finished(exact, row(short), row(twice))

    for latents, text in zip(together, (short, twice), strict=True):
        [alone] = finished(exact, row(text))
        assert latents.dtype is torch.float64
        torch.testing.assert_close(latents, alone, rtol=0, atol=1e-9)


def _in_64_bits(base: BaseModel) -> BaseModel:
    encoders = tuple(copy.deepcopy(encoder).double() for encoder in base.text_encoders)
    unet, vae = (copy.deepcopy(part).double() for part in (base.unet, base.vae))
    return replace(base, unet=unet, vae=vae, text_encoders=encoders, dtype=torch.float64)


def test_inpainting_keeps_bytes_outside_the_mask(base: BaseModel) -> None:
    [latents] = finished(base, inpainting_row(base, ReferencePicture()))
    mask = mask_of(right_half(), width=SIDE_PX, height=SIDE_PX)

    drawn = np.asarray(PictureDecoder(base).picture(latents))
    result = np.asarray(spared(PictureDecoder(base).picture(latents), photo(), mask))

    half = SIDE_PX // 2
    assert (result[:, :half] == np.asarray(photo())[:, :half]).all()
    assert (result[:, half:] == drawn[:, half:]).all()


def test_eight_rows_are_one_pass_of_the_unet(base: BaseModel) -> None:
    passes: list[int] = []
    hook = base.unet.register_forward_pre_hook(lambda _unet, given: passes.append(given[0].shape[0]))
    rows = [text_row(base, ReferencePicture(seed=seed, guidance=(6.0, 1.0)[seed % 2])) for seed in range(8)]

    Denoiser(base.unet).step(rows)
    hook.remove()

    assert passes == [8 + 4]  # a half more for each row with guidance


OPERATIONS_A_ROW = 17
"""Of Euler's method: 6 on the row's latents; the others on single numbers on the CPU."""


def test_a_further_row_costs_no_more_than_its_schedulers_step(base: BaseModel) -> None:
    counted = {}
    for count in (1, 8):
        rows, denoiser = [text_row(base, ReferencePicture(seed=seed)) for seed in range(count)], Denoiser(base.unet)
        denoiser.step(rows)
        with Count() as operations:
            denoiser.step(rows)
        counted[count] = sum(operations.operations.values())

    assert (counted[8] - counted[1]) / 7 <= OPERATIONS_A_ROW
