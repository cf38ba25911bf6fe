"""Pictures that are held out of training, and the loss on them."""

from typing import TYPE_CHECKING

from pydantic import Field

from giornata.protocol.model import Message
from giornata.protocol.training.meaning import meaningless

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec

MOST_LOSSES = 1000


class HeldOutFields(Message):
    """Pictures that are held out of training, and the loss on them."""

    validation_split: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Pictures that are held out of training, drawn by the seed: below 1 a share of all, from 1 on "
        "their number. The metric validation_loss is the loss on them. The job trains alone.",
    )
    validate_every_n_steps: int = Field(
        100,
        ge=1,
        description="Steps between two losses on the held-out pictures; after the last step there is one too.",
    )


def validated_steps(spec: "TrainSpec") -> tuple[int, ...]:
    """After which steps there is a loss on held-out pictures; empty for jobs that hold none out."""
    if spec.validation_split == 0:
        return ()
    every, total = spec.validate_every_n_steps, spec.max_train_steps
    return (*range(every, total, every), total)


def held_count(spec: "TrainSpec", pictures: int) -> int:
    """How many of so many pictures are held out: at least one."""
    split = spec.validation_split
    return int(split) if split >= 1 else max(1, round(split * pictures))


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    split = spec.validation_split
    return [
        *meaningless(spec, "validate_every_n_steps", because="without validation_split", unless=split > 0),
        (
            split > 1 and split != int(split),
            f"validation_split {split:g} is neither a share below 1 nor a whole number of pictures",
        ),
        (
            split > 0 and spec.num_train_epochs is not None,
            "validation_split does not go with num_train_epochs, which count all pictures; use max_train_steps",
        ),
        (
            split > 0 and spec.num_train_epochs is None and len(validated_steps(spec)) > MOST_LOSSES,
            f"validate_every_n_steps {spec.validate_every_n_steps} are more than {MOST_LOSSES} losses in "
            f"{spec.max_train_steps} steps; look less often",
        ),
    ]
