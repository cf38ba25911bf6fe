"""How many pictures the VAE encodes in a second, and how many captions the text encoders, by the size of a batch; and
whether a picture's bits depend on its place in a batch, which the caching phase must not find (ADR 0053)."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.base import Built, layout_of
from benchmarks.gpu.plain import seconds
from benchmarks.gpu.settings import GpuSettings
from benchmarks.rig.figures import spread
from giornata.diffusion.encode import captions, latent_batches
from giornata.protocol.specs import TrainSpec


@torch.no_grad()
def encoders(settings: GpuSettings, home: Path) -> dict[str, Any]:
    """Rates on the device, host and back."""
    spec = TrainSpec.model_validate({"model": "random-sdxl", "dataset": "ds_0", "seed": 1})
    base = Built(layout_of(settings.model, home), settings.device)(spec, device=settings.device, dtype=torch.bfloat16)
    side, found = settings.resolution, dict[str, Any]()
    for rows in settings.batches:
        pixels_BCHW = torch.rand(rows, 3, side, side).mul_(2).sub_(1)
        mean_BCHW, _ = latent_batches.posterior(base.vae, pixels_BCHW)
        rolled_BCHW, _ = latent_batches.posterior(base.vae, pixels_BCHW.roll(1, 0))
        alone_BCHW, _ = latent_batches.posterior(base.vae, pixels_BCHW[:1])

        def encode(batch_BCHW: torch.Tensor = pixels_BCHW) -> object:
            return latent_batches.posterior(base.vae, batch_BCHW)

        found[f"pictures, {rows} at a time"] = {
            "per_s": _rates(encode, rows, base.device, settings),
            "place_changes_bits": not torch.equal(mean_BCHW.roll(1, 0), rolled_BCHW),
            "off_one_at_a_time": float((mean_BCHW[:1] - alone_BCHW).abs().max()),
        }
    for rows in settings.captions:
        texts = [f"a red circle on a white background, number {number}" for number in range(rows)]
        if settings.model == "tiny":
            texts = ["a toy"] * rows

        def say(said: list[str] = texts) -> object:
            return captions.encode(base.tokenizers, base.text_encoders, said, family=base.family).prompt_BLD.cpu()

        found[f"captions, {rows} at a time"] = {"per_s": _rates(say, rows, base.device, settings)}
    chosen = latent_batches.rows_on(base.vae, base.device)((side, side))
    return {"rates": found, "vae_dtype": str(base.vae.dtype), "rows_of_the_trainer": chosen}


def _rates(work: Any, rows: int, device: torch.device, settings: GpuSettings) -> dict[str, float]:
    taken_s = [seconds(work, device, warm=1, count=settings.laps) for _ in range(settings.repetitions)]
    return spread([rows / each for each in taken_s], 3)
