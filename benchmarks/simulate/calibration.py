"""How well the model fits what was published of the ancestor's 1000 jobs.

Calibrated, by a random search over runs of `ancestor-1000` under the ancestor's policy with seed 0: the seconds of a
step, the distribution of machines' speeds (fastest, spread, share of those that throttle), one very slow machine,
and the rate of interruptions. Taken as published: price, jobs, steps, nodes, the start-up curve, the pace of
heartbeats and checkpoints. Assumed: 60 s to load the model for each job, uplinks around 20 Mbit/s, and the noise and
the heat of `giornata.simulate.rented.machines`, with which the search was run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A figure, and how far the model may be from it: as a share of it."""

    value: float
    within: float


# blog.salad.com/fine-tuning-stable-diffusion-sdxl and its sequel on cost.
PUBLISHED: Mapping[str, Published] = {
    "succeeded": Published(value=1000, within=0.0),
    "mean_job_min": Published(value=62.01, within=0.02),
    "median_job_min": Published(value=53.82, within=0.02),
    "best_job_min": Published(value=41.95, within=0.03),
    "worst_job_min": Published(value=737.92, within=0.03),
    "usd_per_job_in_attempts": Published(value=0.3348, within=0.02),
    "one": Published(value=0.901, within=0.01),
    "two": Published(value=0.09, within=0.10),
    "more": Published(value=0.009, within=0.50),
}


def misfits(told: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """(ours, published) of the figures of a run's summary that lie too far from what was published."""
    ours = fit(told)
    return {name: pair for name, pair in ours.items() if abs(pair[0] / pair[1] - 1) > PUBLISHED[name].within}


def fit(told: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """(ours, published) of every published figure."""
    flat = {**told, **told["attempts_per_job"]}
    return {name: (float(flat[name]), each.value) for name, each in PUBLISHED.items()}
