"""The optimizer of a training job, its rates, its steps and its precision."""

import ast
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, StringConstraints, model_validator

from giornata.protocol.model import Message

ARG_WORDS = {"true": True, "false": False}


def _read_args(given: Any) -> Any:
    """A list of NAME=VALUE, or such text with spaces between, as a dictionary; anything else as it is."""
    parts = given.split() if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        return given
    found: dict[str, Any] = {}
    for part in parts:
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not NAME=VALUE")
        if name.strip() in found:
            raise ValueError(f"{name.strip()} is given twice; give it once")
        found[name.strip()] = _arg_value(part, text.strip())
    return found


def _arg_value(part: str, text: str) -> Any:
    if text.lower() in ARG_WORDS:
        return ARG_WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{part!r} has a value that is no number, tuple of numbers, true or false") from None


SDXL_BLOCK_LR = (
    ("time_embedding", "add_embedding"),
    ("conv_in",),
    *((f"down_blocks.0.resnets.{number}",) for number in range(2)),
    ("down_blocks.0.downsamplers.0",),
    *((f"down_blocks.1.resnets.{number}", f"down_blocks.1.attentions.{number}") for number in range(2)),
    ("down_blocks.1.downsamplers.0",),
    *((f"down_blocks.2.resnets.{number}", f"down_blocks.2.attentions.{number}") for number in range(2)),
    ("mid_block.resnets.0",),
    ("mid_block.attentions.0",),
    ("mid_block.resnets.1",),
    *((f"up_blocks.0.resnets.{number}", f"up_blocks.0.attentions.{number}") for number in range(2)),
    ("up_blocks.0.resnets.2", "up_blocks.0.attentions.2", "up_blocks.0.upsamplers.0"),
    *((f"up_blocks.1.resnets.{number}", f"up_blocks.1.attentions.{number}") for number in range(2)),
    ("up_blocks.1.resnets.2", "up_blocks.1.attentions.2", "up_blocks.1.upsamplers.0"),
    *((f"up_blocks.2.resnets.{number}",) for number in range(3)),
    ("conv_out",),
)
"""The part of the UNet for each of sd-scripts' 23 rates, by diffusers' names: the embeddings, input blocks 0 to 8,
middle blocks 0 to 2, output blocks 0 to 8, and the output."""


def _read_block_rates(given: Any) -> Any:
    """23 rates, as a list or as text with commas, as a dictionary; anything else as it is. Raises ValueError for
    another number of them."""
    rates = given.split(",") if isinstance(given, str) else given
    if not isinstance(rates, list | tuple):
        return given
    if len(rates) != len(SDXL_BLOCK_LR):
        raise ValueError(
            f"{len(rates)} rates, and block_lr has {len(SDXL_BLOCK_LR)}; or name blocks with their rates"
        )
    return {name: rate for names, rate in zip(SDXL_BLOCK_LR, rates, strict=True) for name in names}


def _plain_block(name: str) -> str:
    """The name of a block without the UNet's."""
    return name.removeprefix("unet.")


ArgValue = bool | int | float | tuple[float, ...]
Rate = Annotated[float, Field(ge=0, le=10)]
BlockName = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_plain_block)]


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
"""Optimizers without Adam's betas and epsilon: optimizer_args has theirs."""


def _optimizer_name(name: Any) -> Any:
    plain = "".join(letter for letter in name.lower() if letter.isalnum()) if isinstance(name, str) else name
    return next((each for each in Optimizer if each.replace("_", "") == plain), name)


class Compile(StrEnum):
    """The choice to run steps as compiled kernels."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class CudaGraphs(StrEnum):
    """The choice to run forward and backward passes as CUDA graphs."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def _switch(wanted: Any) -> Any:
    """kohya's and OneTrainer's switch knows yes and no."""
    return {True: "on", False: "off"}[wanted] if isinstance(wanted, bool) else wanted


def _precision(name: Any) -> Any:
    """fp16 is taken for bf16, which has fp32's range: so there is no loss scale whose history would be a state."""
    return "bf16" if name == "fp16" else name


class OptimizationFields(Message):
    """The fields of the optimization: steps, batches, optimizer and learning rates."""

    max_train_steps: int = Field(
        500, ge=1, le=1_000_000, description="Number of optimizer steps of the whole training."
    )
    num_train_epochs: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Number of passes over all pictures, in place of max_train_steps. The server converts it to "
        "steps at submission.",
        validation_alias=AliasChoices("num_train_epochs", "max_train_epochs"),
    )
    train_batch_size: int = Field(
        1, ge=1, le=256, description="Number of pictures in one micro-batch. More need more GPU memory."
    )
    gradient_accumulation_steps: int = Field(
        1,
        ge=1,
        le=1024,
        description="Number of micro-batches of one optimizer step. They run as one batch where GPU memory allows "
        "it.",
    )
    share_batch: bool = Field(
        True,
        description="Allow the job to train in one batch with other jobs, independently of them, which costs less. "
        "If false, the job trains alone and its result has exactly the bits of an uninterrupted run "
        "alone (exactness solo).",
    )
    optimizer: Annotated[Optimizer, BeforeValidator(_optimizer_name)] = Field(
        Optimizer.ADAMW,
        description="Optimizer of all trained weights. Every optimizer resumes exactly. The fields adam_* apply to "
        "each optimizer that has such a parameter.",
        validation_alias=AliasChoices("optimizer", "optimizer_type"),
    )
    use_8bit_adam: bool = Field(
        False,
        exclude=True,
        description="diffusers' spelling of optimizer adamw_8bit. The spec is stored with optimizer.",
    )
    optimizer_args: Annotated[dict[str, ArgValue], BeforeValidator(_read_args)] = Field(
        {},
        max_length=16,
        description='Further arguments of the optimizer, by the names of its package: {"d_coef": 2}. An argument '
        "replaces the adam_* field with the same meaning. The form NAME=VALUE of sd-scripts is "
        "accepted.",
    )
    learning_rate: float = Field(
        1e-4,
        gt=0,
        le=10,
        description="Learning rate of the UNet's adapter. A high rate spoils pictures; a low rate learns little.",
        validation_alias=AliasChoices("learning_rate", "unet_lr"),
    )
    text_encoder_lr: float = Field(
        5e-6, gt=0, le=10, description="Learning rate of the text encoders' adapters and of new tokens."
    )
    text_encoder_learning_rates: tuple[Rate, ...] | None = Field(
        None,
        min_length=1,
        max_length=2,
        description="Learning rate of each text encoder, in order, in place of text_encoder_lr. 0 freezes the "
        "adapter of that text encoder. Default: text_encoder_lr for all.",
    )
    block_learning_rates: Annotated[dict[BlockName, Rate], BeforeValidator(_read_block_rates)] = Field(
        {},
        max_length=256,
        description='Learning rates of parts of the UNet, in place of learning_rate: {"down_blocks": 5e-5, '
        '"mid_block": 0}. The longest matching name counts; 0 freezes that part. The 23 rates of '
        "sd-scripts' block_lr for SDXL are accepted.",
        validation_alias=AliasChoices("block_learning_rates", "block_lr"),
    )
    lr_scheduler: LrScheduler = Field(
        LrScheduler.CONSTANT, description="Learning rate schedule over all steps, as in diffusers."
    )
    lr_warmup_steps: int = Field(
        0, ge=0, description="Number of first steps in which the learning rate rises from 0."
    )
    lr_num_cycles: int = Field(
        1,
        ge=1,
        le=1000,
        description="Number of cosine cycles, for lr_scheduler cosine_with_restarts.",
        validation_alias=AliasChoices("lr_num_cycles", "lr_scheduler_num_cycles"),
    )
    lr_power: float = Field(
        1.0,
        gt=0,
        le=10,
        description="Exponent of the decay, for lr_scheduler polynomial. 1 is a straight line.",
        validation_alias=AliasChoices("lr_power", "lr_scheduler_power"),
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Decay rate of the optimizer's first moment, as in Adam.")
    adam_beta2: float = Field(
        0.999, ge=0, lt=1, description="Decay rate of the optimizer's second moment, as in Adam."
    )
    adam_weight_decay: float = Field(
        1e-4, ge=0, le=1, description="Weight decay, decoupled from the gradient as in AdamW. 0: none."
    )
    adam_epsilon: float = Field(
        1e-8, gt=0, le=1, description="Term that keeps Adam's division by the second moment finite."
    )
    max_grad_norm: float = Field(
        1.0, gt=0, le=1e6, description="Maximum norm of the gradient. A larger gradient is scaled down to it."
    )
    mixed_precision: Annotated[Literal["no", "bf16"], BeforeValidator(_precision)] = Field(
        "bf16",
        description="Precision of the frozen base model and its products. no: fp32. bf16: half the memory. The "
        "adapter stays in fp32. fp16 is accepted and means bf16.",
    )
    gradient_checkpointing: bool | Literal["selective"] = Field(
        False,
        description="Recompute activations in the backward pass, which is slower and takes less GPU memory. true: "
        "all. selective: only large and cheap ones. The value changes no bit.",
    )
    compile: Annotated[Compile, BeforeValidator(_switch)] = Field(
        Compile.AUTO,
        description="Run the UNet's transformer blocks, and on a GPU its resnets, as compiled kernels "
        "(torch.compile). auto: when that is expected to save more time than it takes.",
        validation_alias=AliasChoices("compile", "torch_compile"),
    )
    cuda_graphs: Annotated[CudaGraphs, BeforeValidator(_switch)] = Field(
        CudaGraphs.AUTO,
        description="Run forward and backward passes as CUDA graphs, each verified to the byte against plain "
        "passes. The value changes no bit. auto: on CUDA, if at least 50 steps are left.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**63,
        description="Seed of all random draws. Default: the server draws one at submission and records it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _eight_bits(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("use_8bit_adam") is not True:
            return given
        name = "optimizer_type" if "optimizer_type" in given else "optimizer"
        plain = _optimizer_name(given.get(name, Optimizer.ADAMW)) is Optimizer.ADAMW
        return {**given, name: Optimizer.ADAMW_8BIT} if plain else given


def steps_of(spec: OptimizationFields, *, pictures: int) -> int:
    """The optimizer steps of the spec's `num_train_epochs` over so many pictures, as diffusers' scripts count them.

    The last batch of an epoch may be short, and so may its last accumulation. Raises ValueError without epochs.
    """
    if spec.num_train_epochs is None:
        raise ValueError("the spec counts in steps")
    batches = -(-pictures // spec.train_batch_size)
    return spec.num_train_epochs * -(-batches // spec.gradient_accumulation_steps)
