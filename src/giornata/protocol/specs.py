"""What a job of each kind is asked to do. Field names are those of diffusers' training scripts."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints, model_validator

from giornata.protocol.model import Message

Prompt = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512)]


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


class LossType(StrEnum):
    """The distance of prediction and target, by kohya's names."""

    L2 = "l2"
    L1 = "l1"
    HUBER = "huber"
    SMOOTH_L1 = "smooth_l1"


PSEUDO_HUBER = frozenset({LossType.HUBER, LossType.SMOOTH_L1})


class HuberSchedule(StrEnum):
    """How huber_c depends on the timestep, by the names of diffusers and kohya."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    SNR = "snr"


class TrainSpec(Message):
    """SDXL DreamBooth LoRA."""

    # model
    pretrained_model_name_or_path: ModelName = Field(
        description="Hub id, or a folder in diffusers layout on the node.",
        validation_alias=AliasChoices("pretrained_model_name_or_path", "model"),
    )
    revision: str | None = Field(None, max_length=128, description="Branch, tag or commit on the hub.")
    variant: str | None = Field(None, max_length=32, description="Weight files' variant, such as fp16.")
    pretrained_vae_model_name_or_path: ModelName | None = Field(
        None, description="Another VAE, such as madebyollin/sdxl-vae-fp16-fix."
    )

    # data
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

    # prior preservation
    with_prior_preservation: bool = False
    class_prompt: Prompt | None = None
    class_dataset: str | None = Field(
        None,
        pattern=r"^ds_[0-9a-z]+$",
        description="Own class pictures; without it the base model draws them once.",
    )
    num_class_images: int = Field(100, ge=1, le=5000)
    prior_loss_weight: float = Field(1.0, ge=0, le=100)

    # adapter
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
    train_text_encoder: bool = Field(False, description="Also train adapters on both text encoders.")
    stop_text_encoder_training: int | None = Field(
        None, ge=1, description="Optimizer steps after which the text encoders' adapters stay as they are."
    )
    use_ema: bool = Field(False, description="The result is a running average of the weights.")
    ema_decay: float = Field(0.999, gt=0, lt=1, description="The average's inertia, once it has warmed up.")

    # objective
    prediction_type: Literal["epsilon", "v_prediction"] | None = Field(
        None, description="What the UNet predicts; by default what the base model's scheduler says."
    )
    snr_gamma: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="min-SNR weighting of the loss; 5 is usual.",
        validation_alias=AliasChoices("snr_gamma", "min_snr_gamma"),
    )
    debiased_estimation_loss: bool = Field(False, description="Weigh the loss by 1 / sqrt(SNR).")
    loss_type: LossType = LossType.L2
    huber_schedule: HuberSchedule = Field(HuberSchedule.SNR, description="For loss_type huber and smooth_l1.")
    huber_c: float = Field(0.1, gt=0, le=1, description="For loss_type huber and smooth_l1.")
    noise_offset: float = Field(
        0.0, ge=0, le=1, description="Strength of noise that is equal all over a latent channel: darker darks."
    )
    rescale_betas_zero_snr: bool = Field(
        False,
        description="Zero terminal SNR: the last timestep is pure noise. Needs v_prediction.",
        validation_alias=AliasChoices("rescale_betas_zero_snr", "zero_terminal_snr"),
    )
    min_timestep: int = Field(0, ge=0, le=999, description="First of the timesteps that are trained on.")
    max_timestep: int = Field(1000, ge=1, le=1000, description="End of the timesteps that are trained on.")

    # optimisation
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
    gradient_checkpointing: bool = False
    seed: int | None = Field(None, ge=0, lt=2**63, description="Drawn at submission, and recorded, when not given.")

    # checkpoints and results
    checkpointing_steps: int | Literal["auto"] = Field(
        "auto",
        description="Steps between checkpoints; auto weighs their cost against the fleet's interruptions.",
        validation_alias=AliasChoices("checkpointing_steps", "save_every_n_steps"),
    )
    checkpoints_keep_latest: int = Field(2, ge=1, le=100)
    checkpoints_keep_every: int | None = Field(None, ge=1, description="Also keep each step that this divides.")
    output_formats: tuple[Literal["kohya", "diffusers"], ...] = Field(("kohya", "diffusers"), min_length=1)
    output_dtype: Literal["float32", "float16", "bfloat16"] = "float16"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = [message for broken, message in self._contradictions() if broken]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _contradictions(self) -> list[tuple[bool, str]]:
        every = self.checkpointing_steps
        return [
            (
                self.with_prior_preservation and self.class_prompt is None,
                "class_prompt is required with with_prior_preservation",
            ),
            (
                not self.with_prior_preservation and (self.class_prompt or self.class_dataset) is not None,
                "class_prompt and class_dataset mean nothing without with_prior_preservation",
            ),
            (
                self.lr_warmup_steps > self.max_train_steps,
                "lr_warmup_steps is larger than max_train_steps",
            ),
            *self._optimizer_contradictions(),
            (
                self.lr_scheduler is LrScheduler.CONSTANT and self.lr_warmup_steps > 0,
                "lr_scheduler constant has no warm-up; use constant_with_warmup, or lr_warmup_steps 0",
            ),
            (
                self.stop_text_encoder_training is not None and not self.train_text_encoder,
                "stop_text_encoder_training means nothing without train_text_encoder",
            ),
            (
                self.keep_tokens > 0 and not self.shuffle_caption,
                "keep_tokens means nothing without shuffle_caption",
            ),
            (
                self.snr_gamma is not None and self.debiased_estimation_loss,
                "snr_gamma and debiased_estimation_loss are two weightings of the same loss; choose one",
            ),
            (
                self.rescale_betas_zero_snr and self.prediction_type == "epsilon",
                "rescale_betas_zero_snr needs prediction_type v_prediction: of pure noise, noise is no riddle",
            ),
            (
                self.min_timestep >= self.max_timestep,
                "min_timestep is not below max_timestep",
            ),
            (
                isinstance(every, int) and every < 1,
                "checkpointing_steps is at least 1, or auto",
            ),
        ]

    def _optimizer_contradictions(self) -> list[tuple[bool, str]]:
        prodigy, schedule_free = self.optimizer is Optimizer.PRODIGY, self.optimizer is Optimizer.SCHEDULE_FREE
        constant = {LrScheduler.CONSTANT, LrScheduler.CONSTANT_WITH_WARMUP}
        return [
            (
                prodigy and self.learning_rate < 0.1,
                "learning_rate is a factor of the rate that prodigy finds by itself; use 1.0",
            ),
            (
                prodigy and self.train_text_encoder and self.text_encoder_lr != self.learning_rate,
                "text_encoder_lr has to be the learning_rate with prodigy, which finds one for all",
            ),
            (
                schedule_free and self.lr_scheduler not in constant,
                "lr_scheduler has to be constant or constant_with_warmup with adamw_schedule_free",
            ),
            (
                schedule_free and self.adam_beta1 == 0,
                "adam_beta1 has to be above 0 with adamw_schedule_free, which averages by it",
            ),
            (
                schedule_free and self.use_ema,
                "use_ema averages what adamw_schedule_free has averaged already; choose one",
            ),
            (
                (prodigy or schedule_free) and self.stop_text_encoder_training is not None,
                "stop_text_encoder_training does not go with prodigy and adamw_schedule_free, which move all weights",
            ),
        ]


class ScriptSpec(Message):
    """A kind of your own (`x-…`): any JSON object, handed to the workload as it is."""

    model_config = Message.model_config | {"extra": "allow"}


KINDS: Mapping[str, type[Message]] = MappingProxyType({"train": TrainSpec})
OWN_KIND_PREFIX = "x-"


def spec_type(kind: str) -> type[Message] | None:
    """The spec of a kind; None when there is no such kind."""
    if kind.startswith(OWN_KIND_PREFIX):
        return ScriptSpec
    return KINDS.get(kind)


def model_key(kind: str, spec: Mapping[str, Any]) -> str:
    """Names the base model that a job needs, so that it can go to a node that holds it; empty for none."""
    if kind != "train":
        return ""
    parts = ("pretrained_model_name_or_path", "revision", "variant", "pretrained_vae_model_name_or_path")
    return "|".join(str(spec.get(part) or "") for part in parts)


def total_steps(kind: str, spec: Mapping[str, Any]) -> int | None:
    """How many steps the job has, if its kind says so."""
    value = spec.get("max_train_steps" if kind == "train" else "steps")
    return value if isinstance(value, int) else None
