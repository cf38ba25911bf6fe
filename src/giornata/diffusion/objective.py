"""What the UNet is trained to predict, and how far off it is.

Shapes: B pictures (with prior preservation: first half instances, second half class pictures); C = 4, H, W of the
latents; L, D, P as in giornata.diffusion.captions.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from giornata.diffusion.captions import Embedding

PREDICTION_TYPES = ("epsilon", "v_prediction")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyBatch:
    """All that one forward pass needs, on the device. Latents and noise are float32, timesteps int64."""

    latents_BCHW: torch.Tensor
    noise_BCHW: torch.Tensor
    timesteps_B: torch.Tensor
    time_ids_B6: torch.Tensor


def target_of(scheduler: Any, prediction_type: str, batch: NoisyBatch) -> torch.Tensor:
    """target_BCHW: the noise itself, or the velocity sqrt(a)·noise - sqrt(1-a)·latents (Salimans & Ho, 2022)."""
    if prediction_type == "epsilon":
        return batch.noise_BCHW
    if prediction_type == "v_prediction":
        velocity: torch.Tensor = scheduler.get_velocity(batch.latents_BCHW, batch.noise_BCHW, batch.timesteps_B)
        return velocity
    raise ValueError(f"no objective for prediction type {prediction_type!r}; known are {PREDICTION_TYPES}")


def loss_of(
    *,
    unet: Any,
    scheduler: Any,
    prediction_type: str,
    batch: NoisyBatch,
    embedding: Embedding,
    prior_loss_weight: float | None,
) -> torch.Tensor:
    """Mean squared error over the batch, a float32 scalar.

    With `prior_loss_weight` the two halves are averaged apart: instances + weight · class pictures. SDXL's
    micro-conditioning is passed in float32: bfloat16 cannot hold the size of a large photograph exactly.
    """
    noisy_BCHW = scheduler.add_noise(batch.latents_BCHW, batch.noise_BCHW, batch.timesteps_B)
    predicted_BCHW = unet(
        noisy_BCHW.to(unet.dtype),
        batch.timesteps_B,
        embedding.prompt_BLD,
        added_cond_kwargs={"time_ids": batch.time_ids_B6, "text_embeds": embedding.pooled_BP},
        return_dict=False,
    )[0].float()
    target_BCHW = target_of(scheduler, prediction_type, batch).float()
    if prior_loss_weight is None:
        return functional.mse_loss(predicted_BCHW, target_BCHW)
    instance, prior = predicted_BCHW.chunk(2)
    instance_target, prior_target = target_BCHW.chunk(2)
    return functional.mse_loss(instance, instance_target) + prior_loss_weight * functional.mse_loss(
        prior, prior_target
    )
