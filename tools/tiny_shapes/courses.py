"""The two stages: the VAE learns to keep pictures, then the UNet learns to draw them from words.

Shapes: B pictures of one process, C = 3 colors or 4 latent channels, H, W pixels or latents; N pictures in all;
K captions, L tokens, D and P widths as in giornata.diffusion.encode.captions. Pixels are in [-1, 1], all is float32.
"""

import math
import random

import numpy as np
import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from PIL import Image

from giornata.diffusion.draws.randomness import normal, uniform
from giornata.diffusion.encode.captions import Embedding, encode
from giornata.diffusion.optim.objective import NoisyBatch, Objective
from giornata.diffusion.shapes import pictures
from giornata.diffusion.shapes.model import PREDICTION_TYPE, TextParts
from giornata.diffusion.tiny.drawings import (
    BACKGROUNDS,
    CENTER,
    JITTER,
    RGB,
    Pen,
    Placing,
    Point,
    capsule,
    ellipse,
    paint,
    shifted,
)
from giornata.diffusion.tiny.tiny_model import scheduler
from tools.tiny_shapes.stage import Peers, Ramp, StagePlan, TrainedPart

L1_WEIGHT, EDGE_WEIGHT, KL_WEIGHT = 0.3, 0.2, 2e-5
# How often a picture is shown without its caption: as the pipeline does it without a negative prompt (all zeros),
# and as caption dropout does it (the empty caption).
ZERO_SHARE, EMPTY_SHARE = 0.08, 0.04
# How often the picture is said to be cut down from a larger one, so that users' larger pictures are nothing new.
LARGER_SHARE, LARGEST_PX = 0.1, 512
ENCODED_AT_ONCE = 40


def tensor_of(drawn: list[Image.Image]) -> torch.Tensor:
    """pixels_BCHW of pictures of one size."""
    pixels_BHWC = np.stack([np.asarray(picture, dtype=np.float32) for picture in drawn])
    return torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2).contiguous() / 127.5 - 1


def vae_course(vae: AutoencoderKL, plan: StagePlan, peers: Peers) -> TrainedPart:
    """Half captioned pictures, half compositions, drawn anew at every step."""

    def loss(step: int) -> torch.Tensor:
        first = (step * peers.count + peers.rank) * plan.vae_batch
        drawn = [_any_picture(plan, index) for index in range(first, first + plan.vae_batch)]
        pixels_BCHW = tensor_of(drawn)
        posterior = vae.encode(pixels_BCHW).latent_dist
        noise_BCHW = normal(plan.seed, "drawing-vae-sample", step, peers.rank, shape=tuple(posterior.mean.shape))
        decoded_BCHW = vae.decode(posterior.mean + posterior.std * noise_BCHW).sample
        return (
            reconstruction_loss(decoded_BCHW, pixels_BCHW) + KL_WEIGHT * posterior.kl().mean() / noise_BCHW[0].numel()
        )

    ramp = Ramp(steps=plan.vae_steps, warmup_steps=20, constant_share=0.5)
    return TrainedPart(name="vae", model=vae, loss=loss, learning_rate=plan.vae_lr, ramp=ramp, ema_decay=0.995)


def _any_picture(plan: StagePlan, index: int) -> Image.Image:
    if index % 2:
        return composition(index // 2, seed=plan.seed)
    return pictures.captioned(index // 2, seed=plan.seed)


def composition(index: int, *, seed: int = 0) -> Image.Image:
    """The `index`-th picture of no shape in particular, for the VAE: up to four patches of any color anywhere."""
    chance = random.Random(f"{seed}:composition:{index}")

    def any_color() -> RGB:
        return chance.randint(0, 255), chance.randint(0, 255), chance.randint(0, 255)

    def draw(pen: Pen) -> None:
        for _ in range(chance.randint(1, 4)):
            pen.polygon(patch(chance), any_color())

    known = shifted(chance.choice(list(BACKGROUNDS.values())), [chance.randint(-JITTER, JITTER) for _ in range(3)])
    ground = known if chance.random() < 0.6 else any_color()
    placing = Placing(
        center=(chance.uniform(*CENTER), chance.uniform(*CENTER)),
        radius=chance.uniform(*pictures.RADIUS),
        tilt_radians=chance.uniform(0, 2 * math.pi),
    )
    return paint(draw, ground=ground, placing=placing, size_px=pictures.SIZE_PX)


def patch(chance: random.Random) -> list[Point]:
    """Return an outline of no form in particular: an ellipse, a capsule or a polygon."""
    x, y, kind = chance.uniform(-0.6, 0.6), chance.uniform(-0.6, 0.6), chance.randrange(3)
    if kind == 0:
        return ellipse((x, y), chance.uniform(0.1, 0.9), chance.uniform(0.1, 0.9))
    if kind == 1:
        return capsule((x, y), (chance.uniform(-1, 1), chance.uniform(-1, 1)), chance.uniform(0.08, 0.35))
    angles = sorted(chance.uniform(0, 2 * math.pi) for _ in range(chance.randint(3, 7)))
    reach = [chance.uniform(0.4, 1.1) for _ in angles]
    return [(x + r * math.cos(a), y + r * math.sin(a)) for r, a in zip(reach, angles, strict=True)]


def reconstruction_loss(decoded_BCHW: torch.Tensor, pixels_BCHW: torch.Tensor) -> torch.Tensor:
    """Squared and absolute error of the pixels, and absolute error of the differences between neighbors: the last
    is high where an edge is blurred (Mathieu et al., 2016, arXiv 1511.05440)."""
    error_BCHW = decoded_BCHW - pixels_BCHW
    edges = error_BCHW.diff(dim=2).abs().mean() + error_BCHW.diff(dim=3).abs().mean()
    return error_BCHW.square().mean() + L1_WEIGHT * error_BCHW.abs().mean() + EDGE_WEIGHT * edges


class ShapeLatents:
    """Every captioned picture as the VAE sees it, with unit deviation over all of them."""

    def __init__(self, means_NCHW: torch.Tensor, captions: list[str]) -> None:
        self.scaling_factor = 1.0 / float(means_NCHW.double().std())
        self.latents_NCHW = means_NCHW * self.scaling_factor
        self.captions = captions


@torch.no_grad()
def encode_pictures(vae: AutoencoderKL, plan: StagePlan, peers: Peers) -> ShapeLatents:
    """Draw and encode the plan's pictures; each process a share."""
    share = -(-plan.pictures // (peers.count * ENCODED_AT_ONCE)) * ENCODED_AT_ONCE
    means = []
    for first in range(0, share, ENCODED_AT_ONCE):
        indices = range(first * peers.count + peers.rank, (first + ENCODED_AT_ONCE) * peers.count, peers.count)
        drawn = [pictures.captioned(index, seed=plan.seed) for index in indices]
        means.append(vae.encode(tensor_of(drawn)).latent_dist.mean)
    means_NCHW = peers.interleave(torch.cat(means))[: plan.pictures]
    return ShapeLatents(means_NCHW, [pictures.caption_of(index, seed=plan.seed) for index in range(plan.pictures)])


class Words:
    """The embeddings of all captions, and of none at all: the last row is zeros."""

    def __init__(self, text: TextParts) -> None:
        known = pictures.captions()
        self._row = {caption: row for row, caption in enumerate(known)}
        with torch.no_grad():
            parts = [encode(text.tokenizers, text.encoders, [caption]) for caption in known]
        prompt_KLD = torch.cat([part.prompt_BLD for part in parts])
        pooled_KP = torch.cat([part.pooled_BP for part in parts])
        self.prompt_KLD = torch.cat([prompt_KLD, torch.zeros_like(prompt_KLD[:1])])
        self.pooled_KP = torch.cat([pooled_KP, torch.zeros_like(pooled_KP[:1])])

    def rows(self, captions: list[str]) -> torch.Tensor:
        """rows_N of captions that training uses."""
        return torch.tensor([self._row[caption] for caption in captions])

    def embedding(self, rows_B: torch.Tensor) -> Embedding:
        return Embedding(prompt_BLD=self.prompt_KLD[rows_B], pooled_BP=self.pooled_KP[rows_B])

    def left_out(self, rows_B: torch.Tensor, chance_B: torch.Tensor) -> torch.Tensor:
        """rows_B with some captions taken away, by a number in [0, 1) each."""
        rows_B = torch.where(chance_B < ZERO_SHARE + EMPTY_SHARE, self._row[""], rows_B)
        return torch.where(chance_B < ZERO_SHARE, len(self.prompt_KLD) - 1, rows_B)


def unet_course(
    unet: UNet2DConditionModel, latents: ShapeLatents, words: Words, plan: StagePlan, peers: Peers
) -> TrainedPart:
    """Velocity prediction. Each step's timesteps are spread evenly: one in each of as many equal ranges as there are
    pictures in the batches of all processes."""
    objective = Objective(
        scheduler=DDPMScheduler.from_config(scheduler(PREDICTION_TYPE).config), prediction_type=PREDICTION_TYPE
    )
    rows_N = words.rows(latents.captions)
    mine = slice(peers.rank * plan.unet_batch, (peers.rank + 1) * plan.unet_batch)
    together = peers.count * plan.unet_batch

    def draw(purpose: str, step: int) -> torch.Tensor:
        return uniform(plan.seed, f"drawing-{purpose}", step, shape=(together,))[mine]

    def loss(step: int) -> torch.Tensor:
        chosen_B = (draw("picture", step) * len(rows_N)).long()
        latents_BCHW = latents.latents_NCHW[chosen_B]
        noise_BCHW = normal(plan.seed, "drawing-noise", step, peers.rank, shape=tuple(latents_BCHW.shape))
        spread_B = (torch.arange(together)[mine] + draw("timestep", step)) / together
        batch = NoisyBatch(
            latents_BCHW=latents_BCHW,
            noise_BCHW=noise_BCHW,
            timesteps_B=(spread_B * objective.scheduler.config.num_train_timesteps).long(),
            time_ids_B6=time_ids(draw("larger", step)),
        )
        return objective.loss(unet, batch, words.embedding(words.left_out(rows_N[chosen_B], draw("caption", step))))

    ramp = Ramp(steps=plan.unet_steps, warmup_steps=100, constant_share=0.3)
    return TrainedPart(name="unet", model=unet, loss=loss, learning_rate=plan.unet_lr, ramp=ramp, ema_decay=0.999)


def time_ids(chance_B: torch.Tensor) -> torch.Tensor:
    """time_ids_B6: original height and width, top and left of the crop, target height and width."""
    size = float(pictures.SIZE_PX)
    larger_B = size + (LARGEST_PX - size) * (chance_B / LARGER_SHARE)
    original_B = torch.where(chance_B < LARGER_SHARE, larger_B.floor(), size)
    zero_B, size_B = torch.zeros_like(original_B), torch.full_like(original_B, size)
    return torch.stack([original_B, original_B, zero_B, zero_B, size_B, size_B], dim=1)
