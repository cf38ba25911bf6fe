"""How it is minimised."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, StringConstraints, model_validator

from giornata.protocol.model import Message
from giornata.protocol.training import args_text, block_rates
from giornata.protocol.training.meaning import meaningless

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


ArgValue = bool | int | float | tuple[float, ...]
Rate = Annotated[float, Field(ge=0, le=10)]
BlockName = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(block_rates.plain)]


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
    ADAMW_8BIT = "adamw_8bit"
    PRODIGY = "prodigy"
    ADAFACTOR = "adafactor"
    SCHEDULE_FREE = "adamw_schedule_free"
    LION = "lion"
    CAME = "came"


WITHOUT_ADAMS = frozenset({Optimizer.ADAFACTOR, Optimizer.LION, Optimizer.CAME})
"""Those whose inertia and epsilon are no Adam's: they are told in optimizer_args."""


def _optimizer_name(name: Any) -> Any:
    plain = "".join(letter for letter in name.lower() if letter.isalnum()) if isinstance(name, str) else name
    return next((each for each in Optimizer if each.replace("_", "") == plain), name)


class Compile(StrEnum):
    """Whether steps run as compiled kernels."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class CudaGraphs(StrEnum):
    """Whether forward and backward passes run as CUDA graphs."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def _switch(wanted: Any) -> Any:
    """kohya's and OneTrainer's switch knows yes and no."""
    return {True: "on", False: "off"}[wanted] if isinstance(wanted, bool) else wanted


def _precision(name: Any) -> Any:
    """fp16 is taken for bf16, which has fp32's range: so there is no loss scale whose history would be a state."""
    return "bf16" if name == "fp16" else name


class OptimisationFields(Message):
    """How it is minimised."""

    max_train_steps: int = Field(500, ge=1, le=1_000_000, description="Optimizer steps.")
    num_train_epochs: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Instead of max_train_steps, which it is turned into at submission by the number of pictures.",
        validation_alias=AliasChoices("num_train_epochs", "max_train_epochs"),
    )
    train_batch_size: int = Field(1, ge=1, le=256, description="Pictures in a micro-batch.")
    gradient_accumulation_steps: int = Field(
        1, ge=1, le=1024, description="Micro-batches in an optimizer step; one batch where memory allows."
    )
    share_batch: bool = Field(
        True,
        description="May train in one batch with other jobs, each for itself, which is cheaper. false: alone, for "
        "the bits of an uninterrupted run alone (exactness solo).",
    )
    optimizer: Annotated[Optimizer, BeforeValidator(_optimizer_name)] = Field(
        Optimizer.ADAMW,
        description="All resume exactly. adam_* holds for each that has such a thing.",
        validation_alias=AliasChoices("optimizer", "optimizer_type"),
    )
    use_8bit_adam: bool = Field(
        False, exclude=True, description="diffusers' way to say optimizer adamw_8bit, which is how it is kept."
    )
    optimizer_args: Annotated[dict[str, ArgValue], BeforeValidator(args_text.read)] = Field(
        {},
        max_length=16,
        description="More of what the optimizer is told, by the names of its package: {'d_coef': 2}. Each takes the "
        "place of the adam_* field that says the same. sd-scripts' NAME=VALUE is understood.",
    )
    learning_rate: float = Field(
        1e-4,
        gt=0,
        le=10,
        description="Of the UNet's adapter.",
        validation_alias=AliasChoices("learning_rate", "unet_lr"),
    )
    text_encoder_lr: float = Field(
        5e-6, gt=0, le=10, description="Of the text encoders' adapters, and of new tokens."
    )
    text_encoder_learning_rates: tuple[Rate, ...] | None = Field(
        None,
        min_length=1,
        max_length=2,
        description="A rate for the adapter of each text encoder, in their order, instead of text_encoder_lr. "
        "0: that one's stays as it begins.",
    )
    block_learning_rates: Annotated[dict[BlockName, Rate], BeforeValidator(block_rates.read)] = Field(
        {},
        max_length=256,
        description="Other rates than learning_rate in parts of the UNet: {'down_blocks': 5e-5, 'mid_block': 0}. The "
        "longest name that holds counts; 0: that part's adapter stays as it begins. sd-scripts' block_lr, 23 rates "
        "for SDXL, is understood.",
        validation_alias=AliasChoices("block_learning_rates", "block_lr"),
    )
    lr_scheduler: LrScheduler = Field(LrScheduler.CONSTANT, description="diffusers' schedules, over all steps.")
    lr_warmup_steps: int = Field(0, ge=0, description="Steps in which the rate rises from 0.")
    lr_num_cycles: int = Field(
        1,
        ge=1,
        le=1000,
        description="For lr_scheduler cosine_with_restarts.",
        validation_alias=AliasChoices("lr_num_cycles", "lr_scheduler_num_cycles"),
    )
    lr_power: float = Field(
        1.0,
        gt=0,
        le=10,
        description="For lr_scheduler polynomial.",
        validation_alias=AliasChoices("lr_power", "lr_scheduler_power"),
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Inertia of the first moment.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="Inertia of the second moment.")
    adam_weight_decay: float = Field(1e-4, ge=0, le=1, description="Decoupled from the gradient, as AdamW has it.")
    adam_epsilon: float = Field(1e-8, gt=0, le=1, description="Keeps the division by the second moment finite.")
    max_grad_norm: float = Field(1.0, gt=0, le=1e6, description="Gradients are clipped to this norm.")
    mixed_precision: Annotated[Literal["no", "bf16"], BeforeValidator(_precision)] = Field(
        "bf16",
        description="Precision of the frozen base and its products; the adapter stays fp32. fp16 is taken for bf16.",
    )
    gradient_checkpointing: bool | Literal["selective"] = Field(
        False,
        description="Compute activations twice instead of keeping them: all, or selective: only those of the higher "
        "resolutions, which are large and cheap. Changes no bit.",
    )
    compile: Annotated[Compile, BeforeValidator(_switch)] = Field(
        Compile.AUTO,
        description="Run the UNet's transformer blocks, on a GPU its resnets too, as compiled kernels "
        "(torch.compile). auto weighs the seconds that they save against those that the compiler takes.",
        validation_alias=AliasChoices("compile", "torch_compile"),
    )
    cuda_graphs: Annotated[CudaGraphs, BeforeValidator(_switch)] = Field(
        CudaGraphs.AUTO,
        description="Run forward and backward passes as CUDA graphs, each checked to the byte against plain passes. "
        "Changes no bit. auto: on CUDA, in jobs of at least 50 steps.",
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="Drawn at submission, and recorded, when not given.")

    @model_validator(mode="before")
    @classmethod
    def _eight_bits(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("use_8bit_adam") is not True:
            return given
        name = "optimizer_type" if "optimizer_type" in given else "optimizer"
        plain = _optimizer_name(given.get(name, Optimizer.ADAMW)) is Optimizer.ADAMW
        return {**given, name: Optimizer.ADAMW_8BIT} if plain else given


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    prodigy, schedule_free = spec.optimizer is Optimizer.PRODIGY, spec.optimizer is Optimizer.SCHEDULE_FREE
    constant = {LrScheduler.CONSTANT, LrScheduler.CONSTANT_WITH_WARMUP}
    return [
        (
            spec.use_8bit_adam and spec.optimizer is not Optimizer.ADAMW_8BIT,
            f"use_8bit_adam does not go with optimizer {spec.optimizer}; choose one",
        ),
        (
            spec.num_train_epochs is not None and "max_train_steps" in spec.model_fields_set,
            "num_train_epochs does not go with max_train_steps; choose one",
        ),
        (
            spec.num_train_epochs is None and spec.lr_warmup_steps > spec.max_train_steps,
            "lr_warmup_steps is larger than max_train_steps",
        ),
        (
            spec.cuda_graphs is CudaGraphs.ON and (spec.train_text_encoder or spec.train_text_encoder_ti),
            "cuda_graphs on does not go with train_text_encoder and train_text_encoder_ti, whose captions become "
            "tokens on the CPU within each pass; use auto",
        ),
        (
            spec.lr_scheduler is LrScheduler.CONSTANT and spec.lr_warmup_steps > 0,
            "lr_scheduler constant has no warm-up; use constant_with_warmup, or lr_warmup_steps 0",
        ),
        *_meaningless(spec),
        (
            prodigy and spec.learning_rate < 0.1,
            "learning_rate is a factor of the rate that prodigy finds by itself; use 1.0",
        ),
        (
            prodigy
            and (spec.train_text_encoder or spec.train_text_encoder_ti)
            and spec.text_encoder_lr != spec.learning_rate,
            "text_encoder_lr has to be the learning_rate with prodigy, which finds one for all",
        ),
        *(
            (prodigy and bool(getattr(spec, name)), f"{name} does not go with prodigy, which finds one rate for all")
            for name in ("text_encoder_learning_rates", "block_learning_rates")
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
        (
            prodigy and spec.train_text_encoder_ti and spec.train_text_encoder_ti_frac < 1,
            "train_text_encoder_ti_frac has to be 1 with prodigy, which moves all weights",
        ),
        (
            schedule_free and spec.train_text_encoder_ti,
            "train_text_encoder_ti does not go with adamw_schedule_free, whose average knows nothing of the new "
            "tokens' rescaling",
        ),
    ]


def _meaningless(spec: "TrainSpec") -> list[tuple[bool, str]]:
    schedule = spec.lr_scheduler
    return [
        *meaningless(
            spec,
            "lr_num_cycles",
            because="without lr_scheduler cosine_with_restarts",
            unless=schedule is LrScheduler.COSINE_WITH_RESTARTS,
        ),
        *meaningless(
            spec,
            "lr_power",
            because="without lr_scheduler polynomial",
            unless=schedule is LrScheduler.POLYNOMIAL,
        ),
        *meaningless(
            spec,
            "text_encoder_lr",
            because="without train_text_encoder or train_text_encoder_ti",
            unless=spec.train_text_encoder or spec.train_text_encoder_ti,
        ),
        *meaningless(
            spec,
            "text_encoder_lr",
            because="with text_encoder_learning_rates, which take its place",
            unless=spec.text_encoder_learning_rates is None or spec.train_text_encoder_ti,
        ),
        *meaningless(
            spec,
            "text_encoder_learning_rates",
            because="without train_text_encoder",
            unless=spec.train_text_encoder,
        ),
        *meaningless(
            spec,
            "adam_beta1",
            "adam_beta2",
            "adam_epsilon",
            because=f"with optimizer {spec.optimizer}, which has no such thing",
            unless=spec.optimizer not in WITHOUT_ADAMS,
        ),
    ]
