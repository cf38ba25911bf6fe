"""What is minimised."""

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from pydantic import AliasChoices, Field

from giornata.protocol.model import Message
from giornata.protocol.training.meaning import meaningless

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


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


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    return [
        (
            spec.snr_gamma is not None and spec.debiased_estimation_loss,
            "snr_gamma and debiased_estimation_loss are two weightings of the same loss; choose one",
        ),
        (
            spec.rescale_betas_zero_snr and spec.prediction_type == "epsilon",
            "rescale_betas_zero_snr needs prediction_type v_prediction: noise cannot be learned from pure noise",
        ),
        *meaningless(
            spec,
            "huber_c",
            "huber_schedule",
            because="without loss_type huber or smooth_l1",
            unless=spec.loss_type in PSEUDO_HUBER,
        ),
        *meaningless(
            spec,
            "multires_noise_discount",
            because="without multires_noise_iterations",
            unless=spec.multires_noise_iterations is not None,
        ),
        *_edm_contradictions(spec),
        (spec.min_timestep >= spec.max_timestep, "min_timestep is not below max_timestep"),
    ]


def _edm_contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    edm = spec.do_edm_style_training
    return [
        (
            edm and spec.snr_gamma is not None,
            "snr_gamma does not go with do_edm_style_training, which has a weighting of its own",
        ),
        (
            edm and spec.debiased_estimation_loss,
            "debiased_estimation_loss does not go with do_edm_style_training, which has a weighting of its own",
        ),
        (
            edm and spec.loss_type is not LossType.L2,
            "loss_type has to be l2 with do_edm_style_training, whose weighting is one of squares",
        ),
        (
            edm and spec.rescale_betas_zero_snr,
            "rescale_betas_zero_snr does not go with do_edm_style_training: pure noise has no finite sigma",
        ),
    ]
