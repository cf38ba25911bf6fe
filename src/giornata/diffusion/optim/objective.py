"""The UNet's training target, and the loss between prediction and target.

Shapes: B pictures (with prior preservation: first half instances, second half class pictures); C = 4, H, W of the
latents; L, D, P as in giornata.diffusion.encode.captions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from diffusers import DDPMScheduler
from torch.nn import functional

from giornata.diffusion.draws.sample_order import Role
from giornata.diffusion.encode.captions import Embedding
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.objective import HuberSchedule, LossType

PREDICTION_TYPES = ("epsilon", "v_prediction")
# Debiased estimation divides by the square root of the SNR, which has no bound; this one is kohya's.
MOST_SNR = 1000.0
# Less than a mask that shows anything at all can have; only keeps 0 / 0 from being asked.
LEAST_AREA = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyBatch:
    """The inputs of one forward pass. Latents, noise and mask are float32, timesteps int64. The mask is 0 … 1, where
    pictures are learned. `shown_noise_BCHW` is the noise that the UNet is shown, where that is not the noise that it
    has to predict; for `tickets_B5` see giornata.diffusion.adapter.dropping."""

    latents_BCHW: torch.Tensor
    noise_BCHW: torch.Tensor
    timesteps_B: torch.Tensor
    time_ids_B6: torch.Tensor
    mask_B1HW: torch.Tensor | None = None
    shown_noise_BCHW: torch.Tensor | None = None
    tickets_B5: torch.Tensor | None = None

    def twice(self) -> Self:
        """Return the batch, followed by the same again without its mask."""
        twice = self._each(lambda tensor: torch.cat([tensor, tensor]))
        if self.mask_B1HW is None:
            return twice
        return replace(twice, mask_B1HW=torch.cat([self.mask_B1HW, torch.ones_like(self.mask_B1HW)]))

    def pinned(self) -> Self:
        """Copy the batch into memory from which a GPU can copy by itself."""
        return self._each(lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> Self:
        """Copy the batch to the device. From pinned memory this waits for nothing."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items() if tensor is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of a job. `prior_loss_weight` is None without prior preservation; the UNet is fed in `dtype`."""

    scheduler: DDPMScheduler
    prediction_type: str
    dtype: torch.dtype = torch.float32
    snr_gamma: float | None = None
    debiased: bool = False
    loss_type: LossType = LossType.L2
    huber_schedule: HuberSchedule = HuberSchedule.SNR
    huber_c: float = 0.1
    prior_loss_weight: float | None = None
    edm_style: bool = False

    @classmethod
    def of(
        cls, spec: TrainSpec, scheduler: DDPMScheduler, *, prediction_type: str, dtype: torch.dtype = torch.float32
    ) -> Self:
        """Return the objective that the spec wants of a base with this scheduler. Raises ValueError for an unknown
        prediction type."""
        if prediction_type not in PREDICTION_TYPES:
            raise ValueError(f"no objective for prediction type {prediction_type!r}; known are {PREDICTION_TYPES}")
        return cls(
            scheduler=scheduler,
            prediction_type=prediction_type,
            dtype=dtype,
            snr_gamma=spec.snr_gamma,
            debiased=spec.debiased_estimation_loss,
            loss_type=spec.loss_type,
            huber_schedule=spec.huber_schedule,
            huber_c=spec.huber_c,
            prior_loss_weight=spec.prior_loss_weight if spec.with_prior_preservation else None,
            edm_style=spec.do_edm_style_training,
        )

    def loss(self, unet: Any, batch: NoisyBatch, embedding: Embedding) -> torch.Tensor:
        """Return the weighted distance of prediction and target, averaged over the batch: a float32 scalar."""
        return self.total(self.each(unet, batch, embedding))

    def total(self, loss_B: torch.Tensor, role: Role | None = None) -> torch.Tensor:
        """Return the mean of the pictures' losses. With prior preservation the two halves are averaged apart:
        instances + prior_loss_weight · class pictures.

        A batch of one `role` alone is a part of its half: of twice the share that it has of all pictures.
        """
        if self.prior_loss_weight is None:
            return loss_B.mean()
        if role is not None:
            return 2.0 * loss_B.mean() * (self.prior_loss_weight if role == "class" else 1.0)
        instance_B, prior_B = loss_B.chunk(2)
        return instance_B.mean() + self.prior_loss_weight * prior_B.mean()

    def each(
        self, unet: Any, batch: NoisyBatch, embedding: Embedding, *, prior_BCHW: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return loss_B, float32: each picture's weighted distance of prediction and target, averaged over its area.
        With a mask it is averaged over what the mask shows: sum(mask · distance) / (C · sum(mask)), and 0 where the
        mask shows nothing.

        `prior_BCHW` are the targets of the last pictures of the batch, where those are not the noise's.
        """
        target_BCHW = self.target(batch).float()
        if prior_BCHW is not None:
            target_BCHW = torch.cat([target_BCHW[: -len(prior_BCHW)], prior_BCHW])
        return self._weighted(self.predict(unet, batch, embedding), target_BCHW, batch)

    def loss_of(self, answer_BCHW: torch.Tensor, batch: NoisyBatch) -> torch.Tensor:
        """Return the loss, as `loss` does, from the UNet's answer to `shown(batch)`."""
        predicted_BCHW = self.compared(answer_BCHW, batch)
        return self.total(self._weighted(predicted_BCHW, self.target(batch).float(), batch))

    def _weighted(self, predicted_BCHW: torch.Tensor, target_BCHW: torch.Tensor, batch: NoisyBatch) -> torch.Tensor:
        distance_BCHW = self._distance(predicted_BCHW, target_BCHW, batch.timesteps_B)
        return _over_area(distance_BCHW, batch.mask_B1HW) * self.weight(batch.timesteps_B)

    def predict(self, unet: Any, batch: NoisyBatch, embedding: Embedding) -> torch.Tensor:
        """Return predicted_BCHW, float32: the UNet's answer to the noisy latents."""
        answer_BCHW = answer(unet, self.shown(batch), batch.timesteps_B, batch.time_ids_B6, embedding)
        return self.compared(answer_BCHW, batch)

    def shown(self, batch: NoisyBatch) -> torch.Tensor:
        """Return `question` in the precision of the UNet."""
        return self.question(batch).to(self.dtype)

    def question(self, batch: NoisyBatch) -> torch.Tensor:
        """Return noisy_BCHW that the UNet is shown, at a variance of about 1."""
        if self.edm_style:
            return edm_input(self._edm_noisy(batch), self._sigmas(batch.timesteps_B))
        noise_BCHW = batch.noise_BCHW if batch.shown_noise_BCHW is None else batch.shown_noise_BCHW
        noisy_BCHW: torch.Tensor = self.scheduler.add_noise(batch.latents_BCHW, noise_BCHW, batch.timesteps_B)
        return noisy_BCHW

    def compared(self, predicted_BCHW: torch.Tensor, batch: NoisyBatch) -> torch.Tensor:
        """Return the tensor to compare with the target: the UNet's answer, or the latents that the answer
        stands for."""
        if not self.edm_style:
            return predicted_BCHW
        velocity = self.prediction_type == "v_prediction"
        sigmas_B111 = self._sigmas(batch.timesteps_B)
        return edm_denoised(predicted_BCHW, self._edm_noisy(batch), sigmas_B111, velocity=velocity)

    def target(self, batch: NoisyBatch) -> torch.Tensor:
        """Return target_BCHW: the noise itself, or the velocity sqrt(a)·noise - sqrt(1-a)·latents (Salimans & Ho,
        2022); in EDM's formulation the latents."""
        if self.edm_style:
            return batch.latents_BCHW
        if self.prediction_type == "epsilon":
            return batch.noise_BCHW
        velocity: torch.Tensor = self.scheduler.get_velocity(batch.latents_BCHW, batch.noise_BCHW, batch.timesteps_B)
        return velocity

    def weight(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return weight_B of each picture's loss.

        min-SNR (Hang et al., 2023, arXiv 2303.09556): min(SNR, gamma) / SNR, for velocities / (SNR + 1). Debiased
        estimation (Yu et al., 2023, arXiv 2310.08442): 1 / sqrt(SNR), for velocities 1 / (SNR + 1), with the SNR
        bounded by MOST_SNR. EDM: 1 / sigma², which is the SNR.
        """
        if self.edm_style:
            return self._sigmas(timesteps_B).flatten() ** -2
        if self.snr_gamma is None and not self.debiased:
            return torch.ones_like(timesteps_B, dtype=torch.float32)
        snr_B = self._snr(timesteps_B)
        velocity = self.prediction_type == "v_prediction"
        if self.debiased:
            bounded_B = snr_B.clamp(max=MOST_SNR)
            return 1.0 / (bounded_B + 1.0) if velocity else bounded_B.rsqrt()
        return snr_B.clamp(max=self.snr_gamma) / (snr_B + 1.0 if velocity else snr_B)

    def _edm_noisy(self, batch: NoisyBatch) -> torch.Tensor:
        noise_BCHW = batch.noise_BCHW if batch.shown_noise_BCHW is None else batch.shown_noise_BCHW
        return edm_noisy(batch.latents_BCHW, noise_BCHW, self._sigmas(batch.timesteps_B))

    def _sigmas(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        return edm_sigmas(self._alphas(timesteps_B.device), timesteps_B)

    def _snr(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        alphas_B = self._alphas(timesteps_B.device)[timesteps_B]
        return alphas_B / (1.0 - alphas_B)

    def _alphas(self, device: torch.device) -> torch.Tensor:
        """Return alphas_T of the schedule. The tensor stays on the device that asked for it, as in the scheduler's
        own `add_noise`: a copy in every step would wait for the device."""
        alphas_T: torch.Tensor = self.scheduler.alphas_cumprod.to(device)
        self.scheduler.alphas_cumprod = alphas_T
        return alphas_T

    def _distance(
        self, predicted_BCHW: torch.Tensor, target_BCHW: torch.Tensor, timesteps_B: torch.Tensor
    ) -> torch.Tensor:
        """Return the distance, element by element. The two with a parameter c are pseudo-Huber losses (Khrapov et
        al., 2024, arXiv 2403.16728), scaled as in diffusers and kohya."""
        if self.loss_type is LossType.L2:
            return functional.mse_loss(predicted_BCHW, target_BCHW, reduction="none")
        if self.loss_type is LossType.L1:
            return functional.l1_loss(predicted_BCHW, target_BCHW, reduction="none")
        c_B111 = self._c(timesteps_B).view(-1, 1, 1, 1)
        bowl_BCHW = torch.sqrt((predicted_BCHW - target_BCHW) ** 2 + c_B111**2) - c_B111
        return 2.0 * bowl_BCHW * (c_B111 if self.loss_type is LossType.HUBER else 1.0)

    def _c(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the point at which a pseudo-Huber loss turns from a parabola to a line, at each picture's
        timestep."""
        if self.huber_schedule is HuberSchedule.CONSTANT:
            return torch.full_like(timesteps_B, self.huber_c, dtype=torch.float32)
        if self.huber_schedule is HuberSchedule.EXPONENTIAL:
            rate = math.log(self.huber_c) / self.scheduler.config.num_train_timesteps
            return torch.exp(rate * timesteps_B.float())
        sigmas_B = self._snr(timesteps_B).rsqrt()
        return (1.0 - self.huber_c) / (1.0 + sigmas_B) ** 2 + self.huber_c


def answer(
    unet: Any, shown_BCHW: torch.Tensor, timesteps_B: torch.Tensor, time_ids_B6: torch.Tensor, embedding: Embedding
) -> torch.Tensor:
    """Return answer_BCHW, float32: the UNet's answer to noisy latents.

    SDXL's micro-conditioning is passed in float32: bfloat16 cannot hold the size of a large photograph exactly.
    """
    answer_BCHW: torch.Tensor = unet(
        shown_BCHW,
        timesteps_B,
        embedding.prompt_BLD,
        added_cond_kwargs=added_conditions(time_ids_B6, embedding),
        return_dict=False,
    )[0]
    return answer_BCHW.float()


def _over_area(distance_BCHW: torch.Tensor, mask_B1HW: torch.Tensor | None) -> torch.Tensor:
    if mask_B1HW is None:
        return distance_BCHW.mean(dim=(1, 2, 3))
    area_B = distance_BCHW.shape[1] * mask_B1HW.sum(dim=(1, 2, 3))
    return (distance_BCHW * mask_B1HW).sum(dim=(1, 2, 3)) / area_B.clamp(min=LEAST_AREA)


def added_conditions(time_ids_B6: torch.Tensor, embedding: Embedding) -> dict[str, torch.Tensor] | None:
    """Return the UNet's inputs beside the text: sizes and pooled text for SDXL, None where no text is pooled."""
    if embedding.pooled_BP is None:
        return None
    return {"time_ids": time_ids_B6, "text_embeds": embedding.pooled_BP}


def scheduler_of(spec: TrainSpec, scheduler: DDPMScheduler) -> DDPMScheduler:
    """Return the base's noise schedule, with zero terminal SNR if the spec says so (Lin et al., 2024, arXiv
    2305.08891)."""
    if not spec.rescale_betas_zero_snr or scheduler.config.rescale_betas_zero_snr:
        return scheduler
    changed: DDPMScheduler = DDPMScheduler.from_config(scheduler.config, rescale_betas_zero_snr=True)
    return changed


# ---- training in the formulation of EDM (Karras et al., 2022, arXiv 2206.00364, section 5)
#
# diffusers' script does so with `--do_edm_style_training` and an EulerDiscreteScheduler.
#
# Shapes: B pictures; C, H, W of the latents. A noise level sigma stands for a timestep of the base's own schedule:
# its noise is sigma times as strong as the latents. What the UNet says is turned into the latents it takes for the
# true ones, and these are compared with the true ones.


def edm_sigmas(alphas_cumprod_T: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
    """Return sigmas_B111 of timesteps: sqrt((1 - a) / a). Infinite where the schedule ends in pure noise."""
    alphas_B = alphas_cumprod_T.to(timesteps_B.device)[timesteps_B]
    return ((1.0 - alphas_B) / alphas_B).sqrt().view(-1, 1, 1, 1)


def edm_noisy(latents_BCHW: torch.Tensor, noise_BCHW: torch.Tensor, sigmas_B111: torch.Tensor) -> torch.Tensor:
    """Return noisy_BCHW: variance-exploding, latents + sigma · noise."""
    return latents_BCHW + sigmas_B111 * noise_BCHW


def edm_input(noisy_BCHW: torch.Tensor, sigmas_B111: torch.Tensor) -> torch.Tensor:
    """Return the UNet's input: the noisy latents, scaled to a variance of about 1."""
    return noisy_BCHW / (sigmas_B111**2 + 1.0).sqrt()


def edm_denoised(
    answer_BCHW: torch.Tensor, noisy_BCHW: torch.Tensor, sigmas_B111: torch.Tensor, *, velocity: bool
) -> torch.Tensor:
    """Return latents_BCHW that an answer stands for: a velocity, or else noise."""
    if not velocity:
        return noisy_BCHW - sigmas_B111 * answer_BCHW
    return noisy_BCHW / (sigmas_B111**2 + 1.0) - answer_BCHW * (sigmas_B111 / (sigmas_B111**2 + 1.0).sqrt())
