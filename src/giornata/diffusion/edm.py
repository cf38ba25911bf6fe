"""Training in the formulation of EDM (Karras et al., 2022, arXiv 2206.00364, section 5), as diffusers' script does it
with `--do_edm_style_training` and an EulerDiscreteScheduler.

Shapes: B pictures; C, H, W of the latents. A noise level sigma stands for a timestep of the base's own schedule: its
noise is sigma times as strong as the latents. What the UNet says is turned into the latents it takes for the true
ones, and these are compared with the true ones.
"""

import torch


def sigmas(alphas_cumprod_T: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
    """sigmas_B111 of timesteps: sqrt((1 - a) / a). Infinite where the schedule ends in pure noise."""
    alphas_B = alphas_cumprod_T.to(timesteps_B.device)[timesteps_B]
    return ((1.0 - alphas_B) / alphas_B).sqrt().view(-1, 1, 1, 1)


def noisy(latents_BCHW: torch.Tensor, noise_BCHW: torch.Tensor, sigmas_B111: torch.Tensor) -> torch.Tensor:
    """noisy_BCHW: variance-exploding, latents + sigma · noise."""
    return latents_BCHW + sigmas_B111 * noise_BCHW


def question(noisy_BCHW: torch.Tensor, sigmas_B111: torch.Tensor) -> torch.Tensor:
    """What the UNet is shown: the noisy latents at a variance of about 1."""
    return noisy_BCHW / (sigmas_B111**2 + 1.0).sqrt()


def denoised(
    answer_BCHW: torch.Tensor, noisy_BCHW: torch.Tensor, sigmas_B111: torch.Tensor, *, velocity: bool
) -> torch.Tensor:
    """latents_BCHW that an answer stands for: a velocity, or else noise."""
    if not velocity:
        return noisy_BCHW - sigmas_B111 * answer_BCHW
    return noisy_BCHW / (sigmas_B111**2 + 1.0) - answer_BCHW * (sigmas_B111 / (sigmas_B111**2 + 1.0).sqrt())
