"""How it is minimised."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from giornata.protocol.model import Message

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


class LrScheduler(StrEnum):
    """The schedules of `diffusers.optimization`, by its names."""

    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"


class Optimizer(StrEnum):
    """The optimizers, by their names in diffusers, kohya and OneTrainer, whatever the case and the separators."""

    ADAMW = "adamw"
    PRODIGY = "prodigy"
    ADAFACTOR = "adafactor"
    SCHEDULE_FREE = "adamw_schedule_free"


def _optimizer_name(name: Any) -> Any:
    plain = "".join(letter for letter in name.lower() if letter.isalnum()) if isinstance(name, str) else name
    return next((each for each in Optimizer if each.replace("_", "") == plain), name)


class OptimisationFields(Message):
    """How it is minimised."""

    max_train_steps: int = Field(500, ge=1, le=1_000_000, description="Optimizer steps.")
    train_batch_size: int = Field(1, ge=1, le=256)
    gradient_accumulation_steps: int = Field(1, ge=1, le=1024)
    optimizer: Annotated[Optimizer, BeforeValidator(_optimizer_name)] = Field(
        Optimizer.ADAMW,
        description="All resume exactly. adam_* holds for each that has such a thing.",
        validation_alias=AliasChoices("optimizer", "optimizer_type"),
    )
    learning_rate: float = Field(1e-4, gt=0, le=10, validation_alias=AliasChoices("learning_rate", "unet_lr"))
    text_encoder_lr: float = Field(5e-6, gt=0, le=10)
    lr_scheduler: LrScheduler = LrScheduler.CONSTANT
    lr_warmup_steps: int = Field(0, ge=0)
    lr_num_cycles: int = Field(
        1, ge=1, le=1000, validation_alias=AliasChoices("lr_num_cycles", "lr_scheduler_num_cycles")
    )
    lr_power: float = Field(1.0, gt=0, le=10, validation_alias=AliasChoices("lr_power", "lr_scheduler_power"))
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_weight_decay: float = Field(1e-4, ge=0, le=1)
    adam_epsilon: float = Field(1e-8, gt=0, le=1)
    max_grad_norm: float = Field(1.0, gt=0, le=1e6)
    mixed_precision: Literal["no", "bf16"] = Field("bf16", description="Autocast; adapter weights stay fp32.")
    gradient_checkpointing: bool | Literal["selective"] = Field(
        False,
        description="Compute activations twice instead of keeping them: all, or selective: only those of the higher "
        "resolutions, which are large and cheap. Changes no bit.",
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="Drawn at submission, and recorded, when not given.")


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    prodigy, schedule_free = spec.optimizer is Optimizer.PRODIGY, spec.optimizer is Optimizer.SCHEDULE_FREE
    constant = {LrScheduler.CONSTANT, LrScheduler.CONSTANT_WITH_WARMUP}
    return [
        (spec.lr_warmup_steps > spec.max_train_steps, "lr_warmup_steps is larger than max_train_steps"),
        (
            spec.lr_scheduler is LrScheduler.CONSTANT and spec.lr_warmup_steps > 0,
            "lr_scheduler constant has no warm-up; use constant_with_warmup, or lr_warmup_steps 0",
        ),
        (
            prodigy and spec.learning_rate < 0.1,
            "learning_rate is a factor of the rate that prodigy finds by itself; use 1.0",
        ),
        (
            prodigy and spec.train_text_encoder and spec.text_encoder_lr != spec.learning_rate,
            "text_encoder_lr has to be the learning_rate with prodigy, which finds one for all",
        ),
        (
            schedule_free and spec.lr_scheduler not in constant,
            "lr_scheduler has to be constant or constant_with_warmup with adamw_schedule_free",
        ),
        (
            schedule_free and spec.adam_beta1 == 0,
            "adam_beta1 has to be above 0 with adamw_schedule_free, which averages by it",
        ),
        (
            schedule_free and spec.use_ema,
            "use_ema averages what adamw_schedule_free has averaged already; choose one",
        ),
        (
            (prodigy or schedule_free) and spec.stop_text_encoder_training is not None,
            "stop_text_encoder_training does not go with prodigy and adamw_schedule_free, which move all weights",
        ),
    ]
