"""The pictures and what is said of them."""

from typing import TYPE_CHECKING

from pydantic import AliasChoices, Field

from giornata.protocol.model import Message
from giornata.protocol.training.text import Prompt

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


class DataFields(Message):
    """The pictures and what is said of them."""

    dataset: str = Field(pattern=r"^ds_[0-9a-z]+$", description="Id of the dataset with the subject's pictures.")
    instance_prompt: Prompt | None = Field(None, description="Caption of every picture that has none of its own.")
    shuffle_caption: bool = Field(
        False, description="Put the parts of a caption into another order each time. Text encoders run at every step."
    )
    keep_tokens: int = Field(0, ge=0, le=64, description="First parts of a caption that stay where they are.")
    caption_separator: str = Field(",", min_length=1, max_length=8, description="What stands between the parts.")
    caption_dropout_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="How often a subject's picture goes without its caption.",
        validation_alias=AliasChoices("caption_dropout_rate", "proportion_empty_prompts"),
    )
    resolution: int = Field(1024, ge=64, le=2048, multiple_of=8, description="Side of the square, in pixels.")
    center_crop: bool = Field(False, description="Crop in the middle; otherwise where the seed says.")
    random_flip: bool = Field(
        False,
        description="Mirror a picture half of the time.",
        validation_alias=AliasChoices("random_flip", "flip_aug"),
    )


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    return [
        (spec.keep_tokens > 0 and not spec.shuffle_caption, "keep_tokens means nothing without shuffle_caption"),
    ]
