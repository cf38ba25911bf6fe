"""The feed gives every picture of every step once, whatever is put into one pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from giornata.diffusion.draws.sample_order import Sample, by_content
from giornata.diffusion.encode.captions import CaptionAugmentation
from giornata.diffusion.encode.latents import CropPolicy, CropView, LatentCache
from giornata.workloads.train.inputs.encoding import CachedInputs
from giornata.workloads.train.inputs.sample_set import SampleSet
from giornata.workloads.train.inputs.sampling_plan import SamplingPlan
from giornata.workloads.train.steps import PassFeed, ReadyPass


class NumberedLatents(LatentCache):
    """Gives a picture's number in each latent; fails for pictures that are named in `broken`."""

    def __init__(self, crop_policy: CropPolicy, broken: frozenset[str] = frozenset()) -> None:
        super().__init__(vae=None, vae_key="", crop_policy=crop_policy)
        self._frame, self._broken = crop_policy, broken

    def __getitem__(self, view: CropView) -> Any:
        if view.picture_sha256 in self._broken:
            raise KeyError(view.picture_sha256)
        from giornata.diffusion.encode.latents import LatentEntry

        value = float(int(view.picture_sha256.rpartition("-")[2]))
        entry = LatentEntry(mean_CHW=torch.full((4, 2, 2), value), std_CHW=torch.zeros(4, 2, 2))
        return entry, self._frame.place(view, original=(64, 64), resized=(64, 64))


class Config:
    scaling_factor = 1.0


def sample_set(role: Any, count: int) -> SampleSet:
    samples = [
        Sample(role=role, sha256=f"{role}-{number}", caption=f"{role} {number}", name="n", path=Path("n"))
        for number in range(count)
    ]
    return SampleSet(
        role=role, samples=by_content(samples), load=lambda _: Image.new("RGB", (64, 64)), size=lambda _: (64, 64)
    )


def cached_inputs(*, broken: frozenset[str] = frozenset(), classes: int = 3) -> CachedInputs:
    crop_policy = CropPolicy(seed=1, resolution=64, center_crop=True, random_flip=False)
    sample_sets = (sample_set("instance", 5), *((sample_set("class", classes),) if classes else ()))
    draws = SamplingPlan(
        seed=1,
        batch=2,
        micros=3,
        timesteps=range(1000),
        crop_policy=crop_policy,
        sample_sets=sample_sets,
        augmentation=CaptionAugmentation(),
    )
    return CachedInputs(draws=draws, latents=NumberedLatents(crop_policy, broken), embeddings=None)


def feed(given: CachedInputs, *, rows: int | None, clock: Callable[[], float] = lambda: 0.0) -> PassFeed:
    return PassFeed(given, Config(), first_step=4, end_step=7, rows=rows, pinned=False, clock=clock)


def all_of(given: CachedInputs, rows: int | None) -> list[ReadyPass]:
    taken = []
    with feed(given, rows=rows) as passes, pytest.raises(IndexError):
        while True:
            taken.append(passes.take())
    return taken


def pictures(ready: list[ReadyPass]) -> set[tuple[Any, ...]]:
    return {
        (one.step, caption, int(timestep), *noise.flatten().tolist(), float(latents[0, 0, 0]))
        for one in ready
        for caption, timestep, noise, latents in zip(
            one.captions, one.batch.timesteps_B, one.batch.noise_BCHW, one.batch.latents_BCHW, strict=True
        )
    }


@pytest.mark.parametrize(("rows", "sizes"), [(None, [12]), (6, [12]), (4, [8, 4]), (2, [4, 4, 4]), (1, [2] * 6)])
def test_all_sizes_of_passes_see_the_same_pictures(rows: int | None, sizes: list[int]) -> None:
    taken = all_of(cached_inputs(), rows)
    assert [len(one.captions) for one in taken] == sizes * 3
    assert [one.step for one in taken] == [step for step in (4, 5, 6) for _ in sizes]
    assert pictures(taken) == pictures(all_of(cached_inputs(), None))
    assert len(pictures(taken)) == 36
    for step in (4, 5, 6):
        assert sum(one.share for one in taken if one.step == step) == pytest.approx(1.0)


def test_instances_come_first_in_every_pass() -> None:
    for one in all_of(cached_inputs(), 4):
        half = len(one.captions) // 2
        assert [caption.partition(" ")[0] for caption in one.captions] == ["instance"] * half + ["class"] * half


def test_feed_thread_error_is_raised_by_take() -> None:
    with feed(cached_inputs(broken=frozenset({"instance-3"}), classes=0), rows=1) as passes, pytest.raises(KeyError):
        for _ in range(18):
            passes.take()


def test_feed_counts_seconds_that_take_waited() -> None:
    times = iter(range(100))
    with feed(cached_inputs(), rows=None, clock=lambda: float(next(times))) as passes:
        passes.take()
        passes.take()
        assert passes.waited_s == 2.0
