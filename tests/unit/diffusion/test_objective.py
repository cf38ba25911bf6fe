"""What the UNet is trained to predict."""

from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler

from giornata.diffusion.captions import Embedding
from giornata.diffusion.objective import NoisyBatch, loss_of, target_of
from giornata.diffusion.randomness import normal


def batch_of(count: int) -> NoisyBatch:
    return NoisyBatch(
        latents_BCHW=normal(1, "latents", shape=(count, 4, 8, 8)),
        noise_BCHW=normal(1, "noise", shape=(count, 4, 8, 8)),
        timesteps_B=torch.arange(count) * 200 + 50,
        time_ids_B6=torch.arange(6.0).repeat(count, 1) + 3001.0,
    )


class Oracle:
    """A UNet that gives a fixed answer, and remembers the question."""

    dtype = torch.float32

    def __init__(self, answer: torch.Tensor) -> None:
        self.answer, self.asked = answer, {}

    def __call__(
        self, noisy_BCHW: torch.Tensor, timesteps_B: torch.Tensor, prompt_BLD: torch.Tensor, **rest: Any
    ) -> Any:
        self.asked = {"noisy": noisy_BCHW, "timesteps": timesteps_B, "prompt": prompt_BLD, **rest}
        return (self.answer,)


EMBEDDING = Embedding(prompt_BLD=torch.ones(4, 77, 8), pooled_BP=torch.ones(4, 3))


def loss(unet: Oracle, batch: NoisyBatch, *, prediction_type: str = "epsilon", prior: float | None = None) -> float:
    scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")
    return float(
        loss_of(
            unet=unet,
            scheduler=scheduler,
            prediction_type=prediction_type,
            batch=batch,
            embedding=EMBEDDING,
            prior_loss_weight=prior,
        )
    )


def test_epsilon_wants_the_noise() -> None:
    batch = batch_of(4)
    assert loss(Oracle(batch.noise_BCHW), batch) == 0.0
    assert loss(Oracle(batch.noise_BCHW + 2.0), batch) == pytest.approx(4.0, rel=1e-5)


def test_v_prediction_wants_the_velocity() -> None:
    batch = batch_of(4)
    scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")
    alphas_B111 = scheduler.alphas_cumprod[batch.timesteps_B].view(-1, 1, 1, 1)
    velocity = alphas_B111.sqrt() * batch.noise_BCHW - (1 - alphas_B111).sqrt() * batch.latents_BCHW
    assert loss(Oracle(velocity), batch, prediction_type="v_prediction") == pytest.approx(0.0, abs=1e-10)
    with pytest.raises(ValueError, match="sample"):
        target_of(scheduler, "sample", batch)


def test_the_question_is_the_noisy_latents_with_sdxls_conditions_unrounded() -> None:
    batch = batch_of(4)
    unet = Oracle(batch.noise_BCHW)
    loss(unet, batch)
    scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")
    alphas_B111 = scheduler.alphas_cumprod[batch.timesteps_B].view(-1, 1, 1, 1)
    noisy = alphas_B111.sqrt() * batch.latents_BCHW + (1 - alphas_B111).sqrt() * batch.noise_BCHW
    torch.testing.assert_close(unet.asked["noisy"], noisy)
    assert unet.asked["added_cond_kwargs"]["time_ids"].dtype is torch.float32
    assert unet.asked["added_cond_kwargs"]["time_ids"][0].tolist() == [3001.0 + n for n in range(6)]
    assert torch.equal(unet.asked["added_cond_kwargs"]["text_embeds"], EMBEDDING.pooled_BP)


def test_prior_preservation_averages_the_halves_apart() -> None:
    batch = batch_of(4)
    wrong = batch.noise_BCHW.clone()
    wrong[:2] += 1.0
    wrong[2:] += 3.0
    assert loss(Oracle(wrong), batch, prior=0.5) == pytest.approx(1.0 + 0.5 * 9.0, rel=1e-5)
    assert loss(Oracle(wrong), batch) == pytest.approx(5.0, rel=1e-5)
