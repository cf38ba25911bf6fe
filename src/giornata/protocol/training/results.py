"""What is kept of it."""

from typing import TYPE_CHECKING, Literal

from pydantic import AliasChoices, Field

from giornata.protocol.model import Message
from giornata.protocol.training.file_names import OutputName

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


class ResultFields(Message):
    """What is kept of it."""

    checkpointing_steps: int | Literal["auto"] = Field(
        "auto",
        description="Steps between checkpoints; auto weighs their cost against the fleet's interruptions.",
        validation_alias=AliasChoices("checkpointing_steps", "save_every_n_steps"),
    )
    checkpoints_keep_latest: int = Field(
        2,
        ge=1,
        le=100,
        description="How many of the newest checkpoints are kept.",
        validation_alias=AliasChoices("checkpoints_keep_latest", "checkpoints_total_limit"),
    )
    checkpoints_keep_every: int | None = Field(None, ge=1, description="Also keep each step that this divides.")
    output_formats: tuple[Literal["kohya", "diffusers"], ...] = Field(
        ("kohya", "diffusers"), min_length=1, description="Whose key names the files have."
    )
    output_name: OutputName | None = Field(
        None,
        description="What the names of the files begin with: my-dog makes my-dog.safetensors. "
        "Default: the job's name.",
    )
    model_card: bool = Field(True, description="Also write README.md, the page that model hubs show.")
    output_dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float16", description="Of the weights in the files."
    )


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    every = spec.checkpointing_steps
    return [
        (isinstance(every, int) and every < 1, "checkpointing_steps is at least 1, or auto"),
    ]
