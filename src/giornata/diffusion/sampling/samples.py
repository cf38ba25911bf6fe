"""Sample pictures of a job: the base model and the LoRA draw each prompt from the same noise.

The pictures are a function of (seed, the prompt's place in the list, the weights), on one kind of device. They are
drawn with the weights as the files have them, before those are rounded to the files' precision.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler
from PIL import Image

from giornata.diffusion.adapter.batched_lora import adapters_off
from giornata.diffusion.adapter.lora import Adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws import randomness
from giornata.diffusion.encode.captions import Embedding, encode
from giornata.diffusion.sampling.grid_layout import Group, SheetRow, cell_side_px, compose_sheet
from giornata.domain.files.caption_length import CHUNK
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.train_fields import spoken

# ---- one picture, from the modules that training has in memory; nothing is loaded or changed
#
# Shapes: B = 1 picture; C, H, W of the latents, or of the picture (C = 3) where it says so.


def _nothing() -> None:
    """Do nothing between two denoising steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """The settings of a sample picture: `side_px` pixels square, in `steps` denoising steps of Euler's method.

    `scheduler` holds settings that are other than the base's, such as `prediction_type`. `between` is called before
    each denoising step and may raise to stop. A prompt is cut after `max_token_length` tokens.
    """

    side_px: int
    steps: int
    guidance_scale: float
    scheduler: dict[str, Any] | None = None
    between: Callable[[], None] = _nothing
    max_token_length: int = CHUNK


@torch.no_grad()
def sample_image(base: BaseModel, prompt: str, noise_BCHW: torch.Tensor, sampler: SamplerConfig) -> torch.Tensor:
    """Draw one picture: pixels_HWC, uint8, on the CPU. `noise_BCHW` is standard normal; see `initial_noise`."""
    pipeline = base.family.assemble(
        unet=base.unet,
        vae=base.vae,
        text_encoders=base.text_encoders,
        tokenizers=base.tokenizers,
        scheduler=EulerDiscreteScheduler.from_config(base.noise_scheduler.config, **(sampler.scheduler or {})),
    )
    pipeline.set_progress_bar_config(disable=True)

    def go_on(_pipeline: Any, _step: int, _timestep: Any, _tensors: dict[str, Any]) -> dict[str, Any]:
        sampler.between()
        return {}

    sampler.between()
    latents_BCHW = pipeline(
        **_said(base, pipeline, prompt, sampler),
        latents=noise_BCHW.to(device=base.device, dtype=base.dtype),
        height=sampler.side_px,
        width=sampler.side_px,
        num_inference_steps=sampler.steps,
        guidance_scale=sampler.guidance_scale,
        output_type="latent",
        callback_on_step_end=go_on,
    ).images
    # Decoded here: the pipeline would change the precision of a VAE that is shared with the training.
    scaled_BCHW = latents_BCHW.to(base.vae.dtype) / base.vae.config.scaling_factor
    pixels_CHW = base.vae.decode(scaled_BCHW, return_dict=False)[0][0].float()
    levels_CHW = pixels_CHW.add(1.0).mul(127.5).round().clamp(0.0, 255.0)
    return levels_CHW.permute(1, 2, 0).to(device="cpu", dtype=torch.uint8).contiguous()


def _said(base: BaseModel, pipeline: Any, prompt: str, sampler: SamplerConfig) -> dict[str, Any]:
    """Return the prompt as the pipeline takes it: the text itself, or embeddings where it would cut too early."""
    if sampler.max_token_length == CHUNK:
        return {"prompt": prompt}

    def heard(text: str) -> Embedding:
        return encode(
            base.tokenizers,
            base.text_encoders,
            [text],
            family=base.family,
            max_token_length=sampler.max_token_length,
            truncation=True,
        )

    positive = heard(prompt)
    said = {"prompt_embeds": positive.prompt_BLD.to(base.dtype), "pooled_prompt_embeds": positive.pooled_BP}
    if not pipeline.config.get("force_zeros_for_empty_prompt", False):
        negative = heard("")
        said |= {"negative_prompt_embeds": negative.prompt_BLD.to(base.dtype)}
        said |= {"negative_pooled_prompt_embeds": negative.pooled_BP}
    return {name: tensor for name, tensor in said.items() if tensor is not None}


def initial_noise(base: BaseModel, seed: int, purpose: str, *counters: int, side_px: int) -> torch.Tensor:
    """Return noise_BCHW of a picture of `side_px`, a function of (seed, purpose, counters); float32 on the CPU."""
    side = side_px // 2 ** (len(base.vae.config.block_out_channels) - 1)
    return randomness.normal(seed, purpose, *counters, shape=(1, base.unet.config.in_channels, side, side))


PURPOSE = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptImages:
    """A prompt and its two pictures."""

    prompt: str
    base: Image.Image
    lora: Image.Image


def draw_samples(
    base: BaseModel,
    spec: TrainSpec,
    adapters: Adapters,
    result: Mapping[str, torch.Tensor],
    *,
    tick: Callable[[int, int], None],
) -> tuple[PromptImages, ...]:
    """Draw all of `spec.sample_prompts`. `adapters` are on the base, and `result` are the weights that the user gets.

    `tick(pictures done, pictures in all)` is called before each denoising step and may raise to stop. The base and
    the adapters are left as they were, whatever happens.
    """
    prompts, total = spec.sample_prompts, 2 * len(spec.sample_prompts)
    with adapters_off((base.unet, *base.text_encoders)):
        samplers = _brushes(base, spec, {}, lambda done: tick(done, total))
        plain = _drawn(base, spec, prompts, samplers)
    learned = draw_learned(base, spec, adapters, result, tick=lambda done, _: tick(len(prompts) + done, total))
    pairs = zip(prompts, plain, learned, strict=True)
    return tuple(PromptImages(prompt=prompt, base=one, lora=other) for prompt, one, other in pairs)


def draw_learned(
    base: BaseModel,
    spec: TrainSpec,
    adapters: Adapters,
    result: Mapping[str, torch.Tensor],
    *,
    tick: Callable[[int, int], None],
) -> list[Image.Image]:
    """Draw the pictures with the LoRA alone, as `draw_samples` does."""
    prompts = spec.sample_prompts
    with showing(adapters, result), adapters.swapped_in():
        samplers = _brushes(base, spec, _as_trained(base, spec), lambda done: tick(done, len(prompts)))
        return _drawn(base, spec, [spoken(spec, prompt) for prompt in prompts], samplers)


def sheet(samples: Sequence[PromptImages], base: BaseModel, spec: TrainSpec) -> Image.Image:
    """Compose all samples into one picture, a row for each prompt."""
    groups = [Group(heading="Base model", captions=("",)), Group(heading="With LoRA", captions=("",))]
    rows = [SheetRow(label="", text=one.prompt, pictures=((one.base,), (one.lora,))) for one in samples]
    title, subtitle = f"After {spec.max_train_steps} steps", f"{_how(base, spec)}; the same noise for both"
    return compose_sheet(rows, groups, title=title, subtitle=subtitle, cell_px=cell_side_px(spec.resolution))


def step_sheet(
    pictures: Sequence[Image.Image], base: BaseModel, spec: TrainSpec, *, step: int, cell_px: int
) -> Image.Image:
    """Compose the sheet of the pictures that `draw_learned` drew after this step, a row for each prompt."""
    groups = [Group(heading="With LoRA", captions=("",))]
    rows = [
        SheetRow(label="", text=prompt, pictures=((one,),))
        for prompt, one in zip(spec.sample_prompts, pictures, strict=True)
    ]
    title = f"After {step} of {spec.max_train_steps} steps"
    return compose_sheet(rows, groups, title=title, subtitle=_how(base, spec), cell_px=cell_px)


def by_step_sheet(
    steps: Sequence[tuple[str, Sequence[Image.Image]]], base: BaseModel, spec: TrainSpec, *, cell_px: int
) -> Image.Image:
    """Compose all steps beside each other: a row for each prompt, a column for each of `steps` with its words over
    it. A step without pictures has empty cells."""
    group = Group(heading="After so many steps of training", captions=tuple(words for words, _ in steps))
    pictures = [found or [None] * len(spec.sample_prompts) for _, found in steps]
    rows = [
        SheetRow(label="", text=prompt, pictures=(tuple(of_prompt),))
        for prompt, of_prompt in zip(spec.sample_prompts, zip(*pictures, strict=True), strict=True)
    ]
    title, subtitle = "Samples by step", f"{_how(base, spec)}; the same noise in each row"
    return compose_sheet(rows, [group], title=title, subtitle=subtitle, cell_px=cell_px)


def _how(base: BaseModel, spec: TrainSpec) -> str:
    return f"{spec.sample_steps} steps, guidance {_guidance(base, spec):g}, {spec.resolution} px"


def _drawn(
    base: BaseModel, spec: TrainSpec, prompts: Sequence[str], samplers: Iterator[SamplerConfig]
) -> list[Image.Image]:
    if spec.seed is None:
        raise ValueError("a job's seed is set at submission")
    pictures = []
    for number, (prompt, sampler) in enumerate(zip(prompts, samplers, strict=False)):
        noise_BCHW = initial_noise(base, spec.seed, PURPOSE, number, side_px=spec.resolution)
        pictures.append(Image.fromarray(sample_image(base, prompt, noise_BCHW, sampler).numpy()))
    return pictures


def _brushes(
    base: BaseModel, spec: TrainSpec, scheduler: dict[str, Any], tick: Callable[[int], None]
) -> Iterator[SamplerConfig]:
    """Yield a sampler for each picture, which reports how many were done before."""
    for done in itertools.count():
        yield SamplerConfig(
            side_px=spec.resolution,
            steps=spec.sample_steps,
            guidance_scale=_guidance(base, spec),
            scheduler=scheduler,
            max_token_length=spec.max_token_length,
            between=partial(tick, done),
        )


def _guidance(base: BaseModel, spec: TrainSpec) -> float:
    return base.family.guidance_scale if spec.sample_guidance_scale is None else spec.sample_guidance_scale


def _as_trained(base: BaseModel, spec: TrainSpec) -> dict[str, Any]:
    """Return the scheduler settings with which the LoRA has to be drawn."""
    settings: dict[str, Any] = {"prediction_type": spec.prediction_type or base.prediction_type}
    if spec.rescale_betas_zero_snr:
        settings |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    return settings


@contextmanager
def showing(adapters: Adapters, result: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Within, the adapters have these weights: an average may be what the user gets."""
    before = adapters.tensors()
    try:
        adapters.load(result)
        yield
    finally:
        adapters.load(before)
