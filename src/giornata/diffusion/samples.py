"""What a job has learned, to the eye: each prompt drawn by the base model and with the LoRA, from the same noise.

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
from PIL import Image

from giornata.diffusion.adapters_off import adapters_off
from giornata.diffusion.grid_layout import Group, SheetRow, cell_side_px, compose_sheet
from giornata.diffusion.lora import Adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.painting import Brush, initial_noise, paint
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.train_fields import spoken

PURPOSE = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
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
) -> tuple[Sample, ...]:
    """All of `spec.sample_prompts`. `adapters` are on the base, and `result` are the weights that the user gets.

    `tick(pictures done, pictures in all)` is called before each denoising step and may raise to stop. The base and
    the adapters are left as they were, whatever happens.
    """
    prompts, total = spec.sample_prompts, 2 * len(spec.sample_prompts)
    with adapters_off((base.unet, *base.text_encoders)):
        brushes = _brushes(base, spec, {}, lambda done: tick(done, total))
        plain = _drawn(base, spec, prompts, brushes)
    learned = draw_learned(base, spec, adapters, result, tick=lambda done, _: tick(len(prompts) + done, total))
    pairs = zip(prompts, plain, learned, strict=True)
    return tuple(Sample(prompt=prompt, base=one, lora=other) for prompt, one, other in pairs)


def draw_learned(
    base: BaseModel,
    spec: TrainSpec,
    adapters: Adapters,
    result: Mapping[str, torch.Tensor],
    *,
    tick: Callable[[int, int], None],
) -> list[Image.Image]:
    """As `draw_samples`, the pictures with the LoRA alone."""
    prompts = spec.sample_prompts
    with showing(adapters, result), adapters.worn():
        brushes = _brushes(base, spec, _as_trained(base, spec), lambda done: tick(done, len(prompts)))
        return _drawn(base, spec, [spoken(spec, prompt) for prompt in prompts], brushes)


def sheet(samples: Sequence[Sample], base: BaseModel, spec: TrainSpec) -> Image.Image:
    """All samples on one picture, a row for each prompt."""
    groups = [Group(heading="Base model", captions=("",)), Group(heading="With LoRA", captions=("",))]
    rows = [SheetRow(label="", text=one.prompt, pictures=((one.base,), (one.lora,))) for one in samples]
    title, subtitle = f"After {spec.max_train_steps} steps", f"{_how(base, spec)}; the same noise for both"
    return compose_sheet(rows, groups, title=title, subtitle=subtitle, cell_px=cell_side_px(spec.resolution))


def step_sheet(pictures: Sequence[Image.Image], base: BaseModel, spec: TrainSpec, *, step: int) -> Image.Image:
    """What `draw_learned` drew after this step, a row for each prompt."""
    groups = [Group(heading="With LoRA", captions=("",))]
    rows = [
        SheetRow(label="", text=prompt, pictures=((one,),))
        for prompt, one in zip(spec.sample_prompts, pictures, strict=True)
    ]
    title = f"After {step} of {spec.max_train_steps} steps"
    return compose_sheet(rows, groups, title=title, subtitle=_how(base, spec), cell_px=cell_side_px(spec.resolution))


def by_step_sheet(
    steps: Sequence[tuple[str, Sequence[Image.Image]]], base: BaseModel, spec: TrainSpec, *, cell_px: int
) -> Image.Image:
    """All steps beside each other: a row for each prompt, a column for each of `steps` with its words over it. A step
    without pictures has empty cells."""
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


def _drawn(base: BaseModel, spec: TrainSpec, prompts: Sequence[str], brushes: Iterator[Brush]) -> list[Image.Image]:
    if spec.seed is None:
        raise ValueError("a job's seed is set at submission")
    pictures = []
    for number, (prompt, brush) in enumerate(zip(prompts, brushes, strict=False)):
        noise_BCHW = initial_noise(base, spec.seed, PURPOSE, number, side_px=spec.resolution)
        pictures.append(Image.fromarray(paint(base, prompt, noise_BCHW, brush).numpy()))
    return pictures


def _brushes(
    base: BaseModel, spec: TrainSpec, scheduler: dict[str, Any], tick: Callable[[int], None]
) -> Iterator[Brush]:
    """One for each picture, which says how many were done before."""
    for done in itertools.count():
        yield Brush(
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
    """What whoever draws with the LoRA has to tell the scheduler."""
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
