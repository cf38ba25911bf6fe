"""What is trained."""

from typing import TYPE_CHECKING

from pydantic import AliasChoices, Field

from giornata.protocol.model import Message

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


class AdapterFields(Message):
    """What is trained."""

    rank: int = Field(16, ge=1, le=512, validation_alias=AliasChoices("rank", "network_dim"))
    alpha: float | None = Field(
        None,
        gt=0,
        le=4096,
        description="Defaults to rank.",
        validation_alias=AliasChoices("alpha", "network_alpha"),
    )
    target_modules: tuple[str, ...] = Field(
        ("to_k", "to_q", "to_v", "to_out.0"),
        min_length=1,
        max_length=64,
        description="Suffixes of UNet modules.",
    )
    use_rslora: bool = Field(False, description="Scale the adapter by alpha / sqrt(rank) instead of alpha / rank.")
    train_text_encoder: bool = Field(False, description="Also train adapters on the text encoders.")
    stop_text_encoder_training: int | None = Field(
        None, ge=1, description="Optimizer steps after which the text encoders' adapters stay as they are."
    )
    use_ema: bool = Field(False, description="The result is a running average of the weights.")
    ema_decay: float = Field(0.999, gt=0, lt=1, description="The average's inertia, once it has warmed up.")


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    return [
        (
            spec.stop_text_encoder_training is not None and not spec.train_text_encoder,
            "stop_text_encoder_training means nothing without train_text_encoder",
        ),
    ]
