"""What is to be kept: prior preservation."""

from typing import TYPE_CHECKING

from pydantic import Field

from giornata.protocol.model import Message
from giornata.protocol.training.text import Prompt

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


class PriorFields(Message):
    """What is to be kept: prior preservation."""

    with_prior_preservation: bool = False
    class_prompt: Prompt | None = None
    class_dataset: str | None = Field(
        None,
        pattern=r"^ds_[0-9a-z]+$",
        description="Own class pictures; without it the base model draws them once.",
    )
    num_class_images: int = Field(100, ge=1, le=5000)
    prior_loss_weight: float = Field(1.0, ge=0, le=100)
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
        (
            spec.prior_prediction and not spec.with_prior_preservation,
            "prior_prediction means nothing without with_prior_preservation",
        ),
        (
            spec.prior_prediction and spec.class_dataset is not None,
            "class_dataset is of no use with prior_prediction, which looks at no class pictures; choose one",
        ),
        (
            spec.prior_prediction and spec.num_class_images != PriorFields.model_fields["num_class_images"].default,
            "num_class_images means nothing with prior_prediction, which draws none",
        ),
    ]
