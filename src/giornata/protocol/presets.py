"""Named starting points: each is a function that returns fields of a train spec, to be overridden at will; with
`full_spec` all others have their defaults, and `started_from` is what a job gets that names one.

The figures follow what the trainers of the field recommend for a handful of pictures; they are starting points, and
not measured here on a real SDXL.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from giornata.protocol.specs import TrainSpec, canonical_names
from giornata.protocol.training.results import is_prompt_alone

ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
FEED_FORWARD = ("ff.net.0.proj", "ff.net.2")


def subject() -> dict[str, Any]:
    """One person, animal or thing, from a handful of pictures."""
    return {"rank": 16, "learning_rate": 1e-4, "lr_scheduler": "cosine", "max_train_steps": 1000}


def face() -> dict[str, Any]:
    """A person's likeness: more room in the adapter, and no mirroring, for no face is symmetric."""
    return {
        "rank": 32,
        "target_modules": (*ATTENTION, *FEED_FORWARD),
        "learning_rate": 1e-4,
        "lr_scheduler": "cosine",
        "lr_warmup_steps": 50,
        "snr_gamma": 5.0,
        "max_train_steps": 1500,
        "random_flip": False,
    }


def style() -> dict[str, Any]:
    """A look, from some dozens of captioned pictures: colors and strokes rather than a shape."""
    return {
        "rank": 32,
        "target_modules": (*ATTENTION, *FEED_FORWARD),
        "train_batch_size": 4,
        "learning_rate": 1e-4,
        "lr_scheduler": "cosine",
        "lr_warmup_steps": 100,
        "noise_offset": 0.03,
        "max_train_steps": 2000,
        "random_flip": True,
    }


def fast() -> dict[str, Any]:
    """A first look for the least money: a quarter of the picture, few steps, a high rate."""
    return {
        "resolution": 512,
        "rank": 8,
        "learning_rate": 3e-4,
        "lr_scheduler": "cosine",
        "lr_warmup_steps": 20,
        "max_train_steps": 400,
    }


def ancestor() -> dict[str, Any]:
    """The options of this system's predecessor: four micro-batches a step, both text encoders, rank 4."""
    return {
        "rank": 4,
        "learning_rate": 2e-6,
        "text_encoder_lr": 5e-6,
        "train_text_encoder": True,
        "gradient_accumulation_steps": 4,
        "lr_scheduler": "constant",
        "max_train_steps": 500,
        "checkpointing_steps": 100,
    }


PRESETS: Mapping[str, Callable[[], dict[str, Any]]] = MappingProxyType(
    {preset.__name__: preset for preset in (subject, face, style, fast, ancestor)}
)


WITHOUT_PICTURES = frozenset({ancestor.__name__})
"""Presets that are there to be as something else was."""


def started_from(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job that names the preset and gives these besides, under whatever names they are known by.

    Where it has an instance prompt and no word of `sample_prompts`, that prompt is drawn when the job is done, and
    so is its class prompt: a pair of pictures each.
    """
    own, twice = canonical_names(TrainSpec, given)
    fields = PRESETS[name]() | (dict(given) if twice else own)
    prompts = [own.get("instance_prompt"), own.get("class_prompt")]
    if name in WITHOUT_PICTURES or "sample_prompts" in own or not prompts[0]:
        return fields
    return fields | {"sample_prompts": [each for each in prompts if isinstance(each, str) and is_prompt_alone(each)]}


_OF_A_JOB = {"pretrained_model_name_or_path": "model", "dataset": "ds_0"}


def full_spec(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a train spec but for those that only a job can say, its model and its dataset. JSON values."""
    return TrainSpec.model_validate({**fields, **_OF_A_JOB}).model_dump(mode="json", exclude=set(_OF_A_JOB))
