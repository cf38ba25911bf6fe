"""Epochs to steps, and what the ancestor and other trainers call that is not offered here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec

_PICTURES = "pictures are drawn when the job is done: sample_prompts; during training draw with any checkpoint's LoRA"

NOT_OFFERED: Mapping[str, str] = MappingProxyType(
    {
        "sample_batch_size": "class pictures are drawn one at a time, so that their bits depend on nothing else; "
        "remove it",
        "validation_prompt": _PICTURES,
        "validation_epochs": _PICTURES,
        "num_validation_images": _PICTURES,
        "sample_every_n_steps": _PICTURES,
        "sample_every_n_epochs": _PICTURES,
        "sample_at_first": "pictures are drawn when the job is done, and the base model's are beside them; remove it",
        "sample_sampler": "sample_prompts are drawn by Euler's method; remove it",
        "wandb_api_key": "a spec is kept and shown, so no key may be in it: keep it as a secret of the project "
        "(giornata secrets set WANDB), and give its name as wandb_api_key_secret",
    }
)
"""Fields of the trainers that people come from → why there is no such thing, and what to do."""


def steps_of(spec: "TrainSpec", *, pictures: int) -> int:
    """Optimizer steps of the spec's `num_train_epochs` over so many pictures, as diffusers' scripts count them: the
    last batch of an epoch may be short, and so may its last accumulation. Raises ValueError without epochs."""
    if spec.num_train_epochs is None:
        raise ValueError("the spec counts in steps")
    batches = -(-pictures // spec.train_batch_size)
    return spec.num_train_epochs * -(-batches // spec.gradient_accumulation_steps)
