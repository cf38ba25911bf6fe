"""What is to be kept: prior preservation."""

from typing import TYPE_CHECKING

from pydantic import Field

from giornata.protocol.model import Message
from giornata.protocol.training.meaning import meaningless
from giornata.protocol.training.text import Prompt

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


class PriorFields(Message):
    """What is to be kept: prior preservation."""

    with_prior_preservation: bool = Field(
        False,
        description="Keep what the base model draws under class_prompt; see prior_prediction for the other way.",
    )
    class_prompt: Prompt | None = Field(None, description="What the class is called, such as: a photo of a dog.")
    class_dataset: str | None = Field(
        None,
        pattern=r"^ds_[0-9a-z]+$",
        description="Own class pictures; without it the base model draws them once.",
    )
    num_class_images: int = Field(
        100, ge=1, le=5000, description="Class pictures that the base model draws where class_dataset is not given."
    )
    prior_loss_weight: float = Field(1.0, ge=0, le=100, description="Weight of the class against the subject.")
    prior_prediction: bool = Field(
        False,
        description="No class pictures: under class_prompt the subject's pictures are to look as the base sees them.",
    )


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    return [
        (
            spec.with_prior_preservation and spec.class_prompt is None,
            "class_prompt is required with with_prior_preservation",
        ),
        (
            not spec.with_prior_preservation and (spec.class_prompt or spec.class_dataset) is not None,
            "class_prompt and class_dataset mean nothing without with_prior_preservation",
        ),
        *meaningless(
            spec,
            "prior_prediction",
            "prior_loss_weight",
            "num_class_images",
            because="without with_prior_preservation",
            unless=spec.with_prior_preservation,
        ),
        (
            spec.prior_prediction and spec.class_dataset is not None,
            "class_dataset is of no use with prior_prediction, which looks at no class pictures; choose one",
        ),
        *meaningless(
            spec,
            "num_class_images",
            because="with prior_prediction, which draws none",
            unless=not (spec.with_prior_preservation and spec.prior_prediction),
        ),
        *meaningless(
            spec,
            "num_class_images",
            because="with class_dataset, whose pictures are taken",
            unless=not (spec.with_prior_preservation and spec.class_dataset),
        ),
    ]
