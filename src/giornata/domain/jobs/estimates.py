"""Estimates for a job before the project has a history: its start, and its pace on a GPU.

The start is forecast by a simple model of the fleet. Each place works on one job at a time. A place that becomes free
takes the next job of the queue. A job takes as long as similar jobs took before. No node joins, leaves or is
interrupted. This is list scheduling (R. L. Graham, 1966), simulated, so the forecast is exact where the model is.

The pace is what others published of SDXL adapter training. Nothing here was measured with Giornata: every figure is
of another trainer, as its source states it, collected in November 2026. So an estimate from them is a range.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds from now. `end_s` is None when the duration of the job is unknown."""

    start_s: float
    end_s: float | None


def forecast(*, free_in_s: Sequence[float], ahead_s: Iterable[float], run_s: float | None) -> Forecast | None:
    """Estimate the start and end of a job behind those that take `ahead_s`; None without a place.

    `free_in_s` has for each place the seconds until it is free, 0 for an idle one.
    """
    if not free_in_s:
        return None
    free = list(free_in_s)
    heapq.heapify(free)
    for takes_s in ahead_s:
        heapq.heapreplace(free, free[0] + takes_s)
    return Forecast(start_s=free[0], end_s=None if run_s is None else free[0] + run_s)


AT_SIDE_PX = 1024
COLLECTED = "November 2026"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPace:
    """Seconds that one picture of 1024 x 1024 took in a training step of an SDXL adapter, least and greatest.

    `price_micro_usd_per_hour` is a published price of the GPU, None where no source states one.
    """

    gpu: str
    least_s: float
    greatest_s: float
    source: str
    price_micro_usd_per_hour: int | None = None
    price_source: str = ""

    def step_s(self, *, side_px: float, pictures: int) -> tuple[float, float]:
        """The range of a step. A picture takes time by its area at the least; a small one gains nothing at the worst,
        and the attention of a large one grows with the square of its area."""
        area = (side_px / AT_SIDE_PX) ** 2
        return self.least_s * area * pictures, self.greatest_s * max(1.0, area**2) * pictures


_SALAD = "SaladCloud, dreambooth/train_on_salad.py, 2024"

PUBLISHED_PACES = (
    PublishedPace(
        gpu="RTX 4090",
        least_s=0.45,
        greatest_s=2.26,
        source="SaladCloud's report of 1,000 jobs (1.80 to 2.66 s for four pictures) and sd-scripts #834",
        price_micro_usd_per_hour=300_000,
        price_source=_SALAD,
    ),
    PublishedPace(
        gpu="RTX 3090 Ti",
        least_s=1.12,
        greatest_s=1.12,
        source="sd-scripts #827",
        price_micro_usd_per_hour=280_000,
        price_source=_SALAD,
    ),
    PublishedPace(
        gpu="RTX 3090",
        least_s=1.23,
        greatest_s=1.23,
        source="kohya_ss #1288, 2023-08",
        price_micro_usd_per_hour=250_000,
        price_source=_SALAD,
    ),
    PublishedPace(gpu="RTX 3060", least_s=2.4, greatest_s=2.8, source="kohya_ss #1288, 2023-08"),
    PublishedPace(gpu="L40S", least_s=0.585, greatest_s=1.029, source="SimpleTuner, SEGMENTED_CHECKPOINTING.md"),
    PublishedPace(
        gpu="H100",
        least_s=0.606,
        greatest_s=1.080,
        source="SimpleTuner, SEGMENTED_CHECKPOINTING.md",
        price_micro_usd_per_hour=3_990_000,
        price_source="lambda.ai/instances, 2026-09-20, an eighth of eight",
    ),
)


def published_pace(device: str) -> PublishedPace | None:
    """Return the published pace of a device that a node names (`NVIDIA GeForce RTX 4090`); None without one."""
    if "laptop" in device.lower():
        return None
    named = [each for each in PUBLISHED_PACES if f" {each.gpu} ".lower() in f" {device} ".lower()]
    return max(named, key=lambda each: len(each.gpu), default=None)
