"""However many pictures a job has, few are decoded at a time, and their encodings take as much memory as allowed."""

import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from giornata.diffusion.draws.sample_order import Sample, by_content
from giornata.diffusion.encode.pixels import Undecodable
from giornata.domain.errors import WorkloadFailed
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.inputs.encoding import AHEAD, MOST_THREADS, CachedInputs, ahead, cache_inputs
from giornata.workloads.train.inputs.sample_set import SampleSet

SIDE = 64
MANY = 10_000


class Vae:
    """Stands for a VAE: the mean of each square of 8 x 8 pixels, in four channels."""

    device, dtype = torch.device("cpu"), torch.float32
    config = SimpleNamespace(block_out_channels=(8, 8, 8, 8), scaling_factor=1.0)

    def encode(self, pixels_BCHW: torch.Tensor) -> Any:
        mean_B1HW = pixels_BCHW[:, :1, ::8, ::8]
        mean = mean_B1HW.expand(-1, 4, -1, -1)
        return SimpleNamespace(latent_dist=SimpleNamespace(mean=mean, std=torch.zeros_like(mean)))


class Album:
    """Pictures that are drawn when they are asked for. Counts how many are alive; `broken` cannot be decoded."""

    def __init__(self, count: int, broken: frozenset[int] = frozenset()) -> None:
        self._lock, self._broken, self.alive, self.most_alive = threading.Lock(), broken, 0, 0
        samples = [
            Sample(role="instance", sha256=f"{number:064d}", caption="a toy", name=str(number), path=Path("n"))
            for number in range(count)
        ]
        self.sample_set = SampleSet(
            role="instance", samples=by_content(samples), load=self._load, size=lambda _: (SIDE, SIDE)
        )

    def _load(self, sample: Sample) -> Image.Image:
        number = int(sample.sha256)
        if number in self._broken:
            raise Undecodable("is damaged")
        image = Image.new("RGB", (SIDE, SIDE), (number % 256, 0, 0))
        with self._lock:
            self.alive += 1
            self.most_alive = max(self.most_alive, self.alive)
        weakref.finalize(image, self._gone)
        return image

    def _gone(self) -> None:
        with self._lock:
            self.alive -= 1


def prepared(album: Album, **fields: Any) -> CachedInputs:
    count = len(album.sample_set.samples)
    values = {"model": "m", "dataset": "ds_1", "seed": 1, "train_text_encoder": True, "resolution": SIDE}
    spec = TrainSpec.model_validate(values | {"center_crop": True, "max_train_steps": count} | fields)
    base: Any = SimpleNamespace(
        key="m",
        vae=Vae(),
        device=torch.device("cpu"),
        noise_scheduler=SimpleNamespace(config=SimpleNamespace(num_train_timesteps=1000)),
    )
    return cache_inputs(base, spec, (album.sample_set,), seed=1, first_step=0, tick=lambda *_: None)


def test_ten_thousand_pictures_go_through_in_bounded_memory() -> None:
    album, bound_bytes = Album(MANY), 100_000
    cached_inputs = prepared(album, latent_memory_bytes=bound_bytes)
    store = cached_inputs.latents._entries
    entry_bytes = 2 * 4 * (SIDE // 8) ** 2 * 4
    assert len(cached_inputs.latents) == MANY
    assert bound_bytes - entry_bytes < store.in_memory_bytes <= bound_bytes
    assert store.in_memory_bytes + store.on_disk_bytes == MANY * entry_bytes
    # Each thread has one under way and AHEAD begun, and one is on its way to the VAE.
    assert 0 < album.most_alive <= (AHEAD + 1) * MOST_THREADS + 1
    assert album.alive == 0
    for sample in (album.sample_set.samples[0], album.sample_set.samples[-1]):
        view = cached_inputs.draws.crop_policy.draw(sample.sha256, "instance", 0, 0, 0)
        expected = (int(sample.sha256) % 256) / 127.5 - 1
        assert cached_inputs.latents[view][0].mean_CHW.flatten().tolist() == pytest.approx([expected] * 4 * 64)
    cached_inputs.close()


def test_all_broken_pictures_are_named_though_nothing_is_encoded_after_the_first() -> None:
    with pytest.raises(WorkloadFailed) as caught:
        prepared(Album(9, frozenset({2, 7})))
    assert [fault.where for fault in caught.value.faults] == ["2", "7"]


def test_looking_ahead_keeps_the_order_and_the_bound() -> None:
    begun: list[int] = []
    found = ahead(range(50), lambda number: begun.append(number) or number * number, threads=3)
    for number in range(50):
        assert next(found) == number * number
        assert len(begun) <= number + AHEAD * 3
    assert list(found) == []


def test_read_ahead_error_is_raised_in_order_and_ends_the_threads() -> None:
    def look(number: int) -> int:
        if number == 3:
            raise KeyError(number)
        return number

    before = threading.active_count()
    found = ahead(range(50), look, threads=2)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(found)
    assert threading.active_count() == before


def test_closing_it_ends_the_threads() -> None:
    before = threading.active_count()
    found: Any = ahead(range(50), lambda number: number, threads=2)
    next(found)
    found.close()
    assert threading.active_count() == before
