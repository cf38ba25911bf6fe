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
    """The dependence of huber_c on the timestep, by the names of diffusers and kohya."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    SNR = "snr"


class ObjectiveFields(Message):
    """The loss that a training job minimizes."""

    prediction_type: Literal["epsilon", "v_prediction"] | None = Field(
        None, description="Target that the UNet predicts. Default: as the base model's scheduler says."
    )
    snr_gamma: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="Gamma of min-SNR loss weighting. 5 is usual; lower values give steps with little noise less "
        "weight. Default: no weighting.",
        validation_alias=AliasChoices("snr_gamma", "min_snr_gamma"),
    )
    debiased_estimation_loss: bool = Field(
        False, description="Weight the loss by 1 / sqrt(SNR), so that noisy steps count more."
    )
    loss_type: LossType = Field(
        LossType.L2,
        description="Loss between prediction and target. huber, smooth_l1 and l1 weigh outliers less than l2.",
    )
    huber_schedule: HuberSchedule = Field(
        HuberSchedule.SNR, description="Change of huber_c over the timesteps, for loss_type huber and smooth_l1."
    )
    huber_c: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Parameter c of loss_type huber and smooth_l1. A lower c makes the loss more like l1.",
    )
    noise_offset: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Strength of extra noise that is constant over each latent channel. The model can then draw "
        "darker and brighter pictures. 0: none.",
    )
    multires_noise_iterations: int | None = Field(
        None,
        ge=1,
        le=10,
        description="Number of levels of multi-resolution noise. Each level is coarser; the sum is scaled back to "
        "unit strength. 6 is usual. Default: none.",
    )
    multires_noise_discount: float = Field(
        0.3, gt=0, le=1, description="Strength of each level of multi-resolution noise, relative to the level before."
    )
    ip_noise_gamma: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Input perturbation: strength of extra noise in the UNet's input that its target does not "
        "contain. 0.1 is usual. 0: none.",
        validation_alias=AliasChoices("ip_noise_gamma", "input_perturbation"),
    )
    rescale_betas_zero_snr: bool = Field(
        False,
        description="Rescale the noise schedule to zero terminal SNR, so that the last timestep is pure noise. "
        "Needs v_prediction.",
        validation_alias=AliasChoices("rescale_betas_zero_snr", "zero_terminal_snr"),
    )
    do_edm_style_training: bool = Field(
        False,
        description="Compute the loss on denoised latents, weighted by 1 / sigma² (Karras et al., 2022), as in "
        "diffusers.",
    )
    min_timestep: int = Field(
        0, ge=0, le=999, description="First timestep that is trained; 0 is the one with least noise."
    )
    max_timestep: int = Field(
        1000,
        ge=1,
        le=1000,
        description="First timestep that is not trained any more: 1000 trains up to the noisiest.",
    )


DROPOUTS = ("network_dropout", "rank_dropout", "module_dropout")


class RegularizationFields(Message):
    """The fields that regularize the adapter."""

    network_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the values between A and B that each step sets to 0, against overfitting. The others "
        "are divided by 1 - network_dropout. As in sd-scripts.",
    )
    rank_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the ranks of each layer that each step omits for a picture. The others are divided "
        "by 1 - rank_dropout. As in sd-scripts.",
    )
    module_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the layers whose adapter is omitted in a micro-batch. The others are not rescaled. "
        "As in sd-scripts.",
    )
    scale_weight_norms: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Maximum Frobenius norm of (alpha / rank) B A. After each step a layer with a larger norm is "
        "scaled to this norm. 1 is usual. The metric norms_scaled counts such layers. Default: no maximum.",
    )


def has_dropout(spec: RegularizationFields) -> bool:
    """Return True when something of the adapter is left out in each step."""
    return any(getattr(spec, name) > 0 for name in DROPOUTS)
