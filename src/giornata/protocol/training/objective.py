"""The loss that a training job minimizes, and what keeps an adapter from learning its pictures by heart."""

from enum import StrEnum
from typing import Literal

from pydantic import AliasChoices, Field

from giornata.protocol.model import Message


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


class ObjectiveFields(Message):
    """What is minimised."""

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
    loss_type: LossType = Field(LossType.L2, description="How the prediction is compared with its target.")
    huber_schedule: HuberSchedule = Field(HuberSchedule.SNR, description="For loss_type huber and smooth_l1.")
    huber_c: float = Field(0.1, gt=0, le=1, description="For loss_type huber and smooth_l1.")
    noise_offset: float = Field(
        0.0, ge=0, le=1, description="Strength of noise that is equal all over a latent channel: darker darks."
    )
    multires_noise_iterations: int | None = Field(
        None,
        ge=1,
        le=10,
        description="Multi-resolution noise: so many levels of ever coarser noise are added to the noise, which is "
        "then scaled back to its strength. 6 is usual; by default none.",
    )
    multires_noise_discount: float = Field(
        0.3, gt=0, le=1, description="Strength of each level of multi-resolution noise against the one before."
    )
    ip_noise_gamma: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Input perturbation: noise of this strength is added to what the UNet is shown, and not to what "
        "it is to tell. 0.1 is usual.",
        validation_alias=AliasChoices("ip_noise_gamma", "input_perturbation"),
    )
    rescale_betas_zero_snr: bool = Field(
        False,
        description="Zero terminal SNR: the last timestep is pure noise. Needs v_prediction.",
        validation_alias=AliasChoices("rescale_betas_zero_snr", "zero_terminal_snr"),
    )
    do_edm_style_training: bool = Field(
        False,
        description="Compare denoised latents, weighted by 1 / sigma² (Karras et al., 2022), as diffusers does.",
    )
    min_timestep: int = Field(0, ge=0, le=999, description="First of the timesteps that are trained on.")
    max_timestep: int = Field(1000, ge=1, le=1000, description="End of the timesteps that are trained on.")


DROPOUTS = ("network_dropout", "rank_dropout", "module_dropout")


class RegularizationFields(Message):
    """What keeps an adapter from learning its pictures by heart."""

    network_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Part of the numbers between A and B that is set to 0 in each step; the others are divided by "
        "1 - network_dropout. sd-scripts' meaning.",
    )
    rank_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Part of the ranks of each layer that is left out for a picture in each step; the others are "
        "divided by 1 - rank_dropout. sd-scripts' meaning.",
    )
    module_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Part of the layers whose adapter is left out of a micro-batch; the others stay as they are. "
        "sd-scripts' meaning.",
    )
    scale_weight_norms: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="After each step a layer whose product (alpha / rank) B A has a larger Frobenius norm is scaled "
        "to this one. 1 is usual. The metric norms_scaled counts such layers.",
    )


def has_dropout(spec: RegularizationFields) -> bool:
    """Whether something of the adapter is left out in each step."""
    return any(getattr(spec, name) > 0 for name in DROPOUTS)
