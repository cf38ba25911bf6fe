"""Everything that chance decides in one optimizer step, as functions of (seed, step, micro-batch, place).

Shapes: B pictures of a micro-batch (instances first, then as many class pictures, as diffusers lays them out);
C, H, W of the latents.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giornata.diffusion import randomness
from giornata.diffusion.captions import Wording
from giornata.diffusion.latents import Framing, LatentCache, View, sample
from giornata.diffusion.objective import NoisyBatch
from giornata.diffusion.order import Order, Role, Sample, counter_of
from giornata.workloads.train.material import Material

AS_WRITTEN = Wording()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One picture of one micro-batch. `key` is (step, micro, place), all from 0."""

    role: Role
    sample: Sample
    view: View
    key: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """The draws of a job. `timesteps` are those of the noise scheduler that are trained on."""

    seed: int
    batch: int
    micros: int
    timesteps: range
    framing: Framing
    materials: tuple[Material, ...]
    noise_offset: float = 0.0
    wording: Wording = AS_WRITTEN

    def micro_batch(self, step: int, micro: int) -> list[Draw]:
        """The pictures of a micro-batch: `batch` of each material, in turn."""
        return [
            self._draw(material, (step, micro, place)) for material in self.materials for place in range(self.batch)
        ]

    def passes(self, step: int, rows: int | None) -> list[list[Draw]]:
        """The pictures of a step, whatever micro-batch they are of, `rows` of each material at a time (None: all);
        instances come before class pictures.
        """
        places = [(micro, place) for micro in range(self.micros) for place in range(self.batch)]
        size = rows or len(places)
        return [
            [self._draw(material, (step, *at)) for material in self.materials for at in places[start : start + size]]
            for start in range(0, len(places), size)
        ]

    def views(self, first_step: int, end_step: int) -> dict[View, Sample]:
        """What these steps will look at, in the order of first use. Stops looking when there is nothing left."""
        possible = sum(
            len(self.framing.views(picture)) for picture in {s.sha256 for m in self.materials for s in m.samples}
        )
        found: dict[View, Sample] = {}
        for draw in self._all(first_step, end_step):
            found.setdefault(draw.view, draw.sample)
            if len(found) == possible:
                break
        return found

    def timestep(self, draw: Draw) -> int:
        """Uniform over `timesteps`."""
        low, high = self.timesteps.start, self.timesteps.stop
        return randomness.integer(self.seed, f"timestep/{draw.role}", *draw.key, low=low, high=high)

    def caption(self, draw: Draw) -> str:
        """What the text encoders are told of it."""
        return self.wording.draw(draw.sample.caption, draw.role, *draw.key)

    def noise(self, draw: Draw, shape_CHW: Sequence[int]) -> torch.Tensor:
        """noise_CHW: standard normal, plus `noise_offset` times one number for each whole channel (N. Guttenberg,
        "Diffusion with offset noise", 2023)."""
        noise_CHW = self.normal("noise", draw, shape_CHW)
        if self.noise_offset == 0.0:
            return noise_CHW
        return noise_CHW + self.noise_offset * self.normal("noise-offset", draw, (shape_CHW[0], 1, 1))

    def normal(self, what: str, draw: Draw, shape: Sequence[int]) -> torch.Tensor:
        """Standard normal numbers for one draw, float32 on the CPU."""
        return randomness.normal(self.seed, f"{what}/{draw.role}", *draw.key, shape=tuple(shape))

    def _all(self, first_step: int, end_step: int) -> Iterator[Draw]:
        for step in range(first_step, end_step):
            for micro in range(self.micros):
                yield from self.micro_batch(step, micro)

    def _draw(self, material: Material, key: tuple[int, int, int]) -> Draw:
        step, micro, place = key
        order = Order(seed=self.seed, role=material.role, count=len(material.samples))
        counter = counter_of(step=step, micro=micro, index=place, batch=self.batch, micros=self.micros)
        drawn = material.samples[order.sample_at(counter)]
        view = self.framing.draw(drawn.sha256, material.role, *key)
        return Draw(role=material.role, sample=drawn, view=view, key=key)


def assemble(draws: Draws, batch: Sequence[Draw], latents: LatentCache, vae_config: Any) -> NoisyBatch:
    """Latents, noise, timesteps and micro-conditioning of these pictures, on the CPU."""
    latent_rows, noise_rows, time_ids = [], [], []
    for draw in batch:
        entry, placement = latents[draw.view]
        shape_CHW = entry.mean_CHW.shape
        latent_rows.append(sample(entry, draws.normal("posterior", draw, shape_CHW), vae_config))
        noise_rows.append(draws.noise(draw, shape_CHW))
        time_ids.append(placement.time_ids())
    return NoisyBatch(
        latents_BCHW=torch.stack(latent_rows),
        noise_BCHW=torch.stack(noise_rows),
        timesteps_B=torch.tensor([draws.timestep(draw) for draw in batch], dtype=torch.int64),
        time_ids_B6=torch.tensor(time_ids, dtype=torch.float32),
    )
