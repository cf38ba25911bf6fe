"""Every random choice in one optimizer step, as functions of (seed, step, micro-batch, place).

Shapes: B pictures of a micro-batch (instances first, then as many class pictures, as diffusers lays them out);
C, H, W of the latents.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from giornata.diffusion.draws import randomness
from giornata.diffusion.draws.randomness import Multires
from giornata.diffusion.draws.sample_order import BucketOrder, Role, Sample, SampleOrder, by_bucket
from giornata.diffusion.encode.captions import CaptionAugmentation
from giornata.diffusion.encode.latents import CropPolicy, CropView, LatentCache, sample
from giornata.diffusion.optim.objective import NoisyBatch
from giornata.domain.files.buckets import Size
from giornata.workloads.train.inputs.sample_set import SampleSet

AS_WRITTEN = CaptionAugmentation()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The draw of one picture of one micro-batch. `key` is (step, micro, place), all from 0."""

    role: Role
    sample: Sample
    view: CropView
    key: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """The draws of a job. `timesteps` are those of the noise scheduler that are trained on; `ticket` gives a row of
    `giornata.diffusion.adapter.dropping` for jobs that leave something out."""

    seed: int
    batch: int
    micros: int
    timesteps: range
    crop_policy: CropPolicy
    sample_sets: tuple[SampleSet, ...]
    noise_offset: float = 0.0
    multires: Multires | None = None
    ip_noise_gamma: float = 0.0
    ticket: Callable[[str, tuple[int, int, int]], list[int]] | None = None
    augmentation: CaptionAugmentation = AS_WRITTEN
    _orders: tuple[Callable[[int], list[int]], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        orders = tuple(batches_of(sample_set, seed=self.seed, batch=self.batch) for sample_set in self.sample_sets)
        object.__setattr__(self, "_orders", orders)

    def micro_batch(self, step: int, micro: int) -> list[Draw]:
        """Return the pictures of a micro-batch: `batch` of each sample set, in turn. All pictures of one set are of
        one size."""
        return [draw for number in range(len(self.sample_sets)) for draw in self._batch(number, step, micro)]

    def passes(self, step: int, rows: int | None) -> list[list[Draw]]:
        """Return the pictures of a step, whatever micro-batch they are of, `rows` of each sample set at a time (None:
        all); instances come before class pictures. Pictures in buckets pass with those of their own size and set
        only."""
        drawn = [
            [draw for micro in range(self.micros) for draw in self._batch(number, step, micro)]
            for number in range(len(self.sample_sets))
        ]
        size = rows or self.micros * self.batch
        if self.crop_policy.buckets:
            return [
                group[start : start + size]
                for sample_set, draws in zip(self.sample_sets, drawn, strict=True)
                for group in _by_size(draws, sample_set)
                for start in range(0, len(group), size)
            ]
        return [
            [draw for draws in drawn for draw in draws[start : start + size]]
            for start in range(0, self.micros * self.batch, size)
        ]

    def role_of(self, drawn: Sequence[Draw]) -> Role | None:
        """Return the role of a pass that lacks what the other one holds; None where there is one role only, or
        both."""
        roles = {draw.role for draw in drawn}
        return roles.pop() if len(roles) < len(self.sample_sets) else None

    def views(self, first_step: int, end_step: int) -> dict[CropView, Sample]:
        """Return the views that these steps use, in the order of first use. Stops looking when all possible views are
        found."""
        possible = sum(
            len(self.crop_policy.views(*picture))
            for picture in {
                (s.sha256, self.crop_policy.lesser(s.resolution)) for m in self.sample_sets for s in m.samples
            }
        )
        found: dict[CropView, Sample] = {}
        for draw in self._all(first_step, end_step):
            found.setdefault(draw.view, draw.sample)
            if len(found) == possible:
                break
        return found

    def timestep(self, draw: Draw) -> int:
        """Draw a timestep, uniform over `timesteps`."""
        low, high = self.timesteps.start, self.timesteps.stop
        return randomness.integer(self.seed, f"timestep/{draw.role}", *draw.key, low=low, high=high)

    def caption(self, draw: Draw) -> str:
        """Return the caption that the text encoders read in this draw."""
        return self.augmentation.draw(draw.sample.caption, draw.role, *draw.key)

    def noise(self, draw: Draw, shape_CHW: Sequence[int]) -> torch.Tensor:
        """Draw noise_CHW: standard normal, plus `noise_offset` times one number for each whole channel (N.
        Guttenberg, "Diffusion with offset noise", 2023)."""
        noise_CHW = self.normal("noise", draw, shape_CHW)
        if self.noise_offset != 0.0:
            noise_CHW = noise_CHW + self.noise_offset * self.normal("noise-offset", draw, (shape_CHW[0], 1, 1))
        if self.multires is None:
            return noise_CHW
        return self.multires.added(noise_CHW, self.seed, f"multires/{draw.role}", draw.key)

    def shown_noise(self, draw: Draw, noise_CHW: torch.Tensor) -> torch.Tensor | None:
        """Return the noise that the UNet is shown instead, noise + gamma · normal; None when it is shown the noise
        itself. From Ning et al., "Input perturbation reduces exposure bias in diffusion models", 2023, arXiv
        2301.11706."""
        if self.ip_noise_gamma == 0.0:
            return None
        return noise_CHW + self.ip_noise_gamma * self.normal("input-perturbation", draw, noise_CHW.shape)

    def normal(self, what: str, draw: Draw, shape: Sequence[int]) -> torch.Tensor:
        """Draw standard normal numbers for one draw, float32 on the CPU."""
        return randomness.normal(self.seed, f"{what}/{draw.role}", *draw.key, shape=tuple(shape))

    def _all(self, first_step: int, end_step: int) -> Iterator[Draw]:
        for step in range(first_step, end_step):
            for micro in range(self.micros):
                yield from self.micro_batch(step, micro)

    def _batch(self, number: int, step: int, micro: int) -> list[Draw]:
        """Return a sample set's pictures of a micro-batch."""
        sample_set = self.sample_sets[number]
        indices = self._orders[number](step * self.micros + micro)
        return [
            self._draw(sample_set.role, sample_set.samples[index], (step, micro, place))
            for place, index in enumerate(indices)
        ]

    def _draw(self, role: Role, drawn: Sample, key: tuple[int, int, int]) -> Draw:
        view = self.crop_policy.draw(drawn.sha256, role, *key, resolution=drawn.resolution)
        return Draw(role=role, sample=drawn, view=view, key=key)


def batches_of(sample_set: SampleSet, *, seed: int, batch: int) -> Callable[[int], list[int]]:
    """Map a batch's number, from 0, to the indices of its samples. See `giornata.diffusion.draws.sample_order`."""
    repeats = [sample.repeats for sample in sample_set.samples]
    if sample_set.buckets is not None:
        members = by_bucket(
            repeats, [sample_set.buckets[sample.sha256, sample.resolution] for sample in sample_set.samples]
        )
        return BucketOrder(seed=seed, role=sample_set.role, batch=batch, members=members).batch_at
    places = [index for index, count in enumerate(repeats) for _ in range(count)]
    order = SampleOrder(seed=seed, role=sample_set.role, count=len(places))
    return lambda number: [places[place] for place in order.batch_at(number, batch)]


def _by_size(draws: Sequence[Draw], sample_set: SampleSet) -> list[list[Draw]]:
    """Return the draws in groups of one bucket, in the order of first use."""
    groups: dict[Size, list[Draw]] = {}
    for draw in draws:
        bucket = (sample_set.buckets or {})[draw.sample.sha256, draw.sample.resolution]
        groups.setdefault(bucket, []).append(draw)
    return list(groups.values())


def assemble(draws: SamplingPlan, batch: Sequence[Draw], latents: LatentCache, vae_config: Any) -> NoisyBatch:
    """Assemble latents, noise, timesteps and micro-conditioning of these pictures, on the CPU."""
    latent_rows, noise_rows, mask_rows, time_ids = [], [], [], []
    shown_rows = []
    for draw in batch:
        entry, placement = latents[draw.view]
        shape_CHW = entry.mean_CHW.shape
        latent_rows.append(sample(entry, draws.normal("posterior", draw, shape_CHW), vae_config))
        noise_rows.append(draws.noise(draw, shape_CHW))
        shown_rows.append(draws.shown_noise(draw, noise_rows[-1]))
        mask_rows.append(entry.mask_HW)
        time_ids.append(placement.time_ids())
    return NoisyBatch(
        latents_BCHW=torch.stack(latent_rows),
        noise_BCHW=torch.stack(noise_rows),
        timesteps_B=torch.tensor([draws.timestep(draw) for draw in batch], dtype=torch.int64),
        time_ids_B6=torch.tensor(time_ids, dtype=torch.float32),
        mask_B1HW=_masks(mask_rows, latent_rows[0].shape[1:]),
        shown_noise_BCHW=None if shown_rows[0] is None else torch.stack(shown_rows),
        tickets_B5=None
        if draws.ticket is None
        else torch.tensor([draws.ticket(each.role, each.key) for each in batch]),
    )


def _masks(rows: Sequence[torch.Tensor | None], shape_HW: Sequence[int]) -> torch.Tensor | None:
    """Return mask_B1HW; a picture without a mask is learned whole. None when none has one."""
    if all(row is None for row in rows):
        return None
    whole_HW = torch.ones(tuple(shape_HW))
    return torch.stack([whole_HW if row is None else row for row in rows]).unsqueeze(1)
