"""Progress of a pre-training run, from the metrics that it reports with each step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

LEVEL = "loss_level_"
"""Before the number of a range of timesteps, 0 for the least noise."""
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProgress:
    """A phase of the schedule, how many of its pictures were trained, and the number of its last step."""

    name: str
    resolution: int
    samples: int
    last_step: int
    trained: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingProgress:
    """Means over the latest steps, and what is left. None: the run does not report it, or it cannot be told yet.

    `loss_by_level` are (range of timesteps, mean loss), the least noise first. Shares are 0 to 1. `to_come_usd` and
    `left_s` take it that pictures cost as much as those of the latest steps.
    """

    steps: int
    phases: tuple[PhaseProgress, ...]
    loss_by_level: tuple[tuple[int, float], ...] = ()
    images_per_s: float | None = None
    data_wait_share: float | None = None
    mfu: float | None = None
    spent_usd: float | None = None
    to_come_usd: float | None = None
    left_s: float | None = None
    skipped_steps: int = 0
    unreadable: int = 0


def pretraining_progress(points: Sequence[Values], phases: Sequence[PhaseProgress]) -> PretrainingProgress:
    """Return the progress of a run with this schedule; `points` are its latest steps, the newest last."""
    if not points:
        return PretrainingProgress(steps=0, phases=tuple(phases))
    newest = points[-1]
    trained = int(newest.get("samples", 0))
    left = max(0, sum(each.samples for each in phases) - trained)
    spent_usd = newest.get("spent_usd") or None
    return PretrainingProgress(
        steps=len(points),
        phases=_phases(phases, trained),
        loss_by_level=_by_level(points),
        images_per_s=_mean(points, "images_per_s"),
        data_wait_share=_mean(points, "data_wait_share"),
        mfu=_mean(points, "mfu"),
        spent_usd=spent_usd,
        to_come_usd=None if spent_usd is None else _of_those_left(points, "spent_usd", left),
        left_s=_of_those_left(points, "time_s", left),
        skipped_steps=int(newest.get("skipped_steps", 0)),
        unreadable=int(newest.get("unreadable", 0)),
    )


def _phases(phases: Sequence[PhaseProgress], trained: int) -> tuple[PhaseProgress, ...]:
    found = []
    for each in phases:
        here = min(each.samples, trained)
        trained -= here
        found.append(replace(each, trained=here))
    return tuple(found)


def phase_of_step(phases: Sequence[PhaseProgress], step: int) -> PhaseProgress | None:
    """Return the phase in which a step was trained; None for a step behind the last phase."""
    return next((each for each in phases if step <= each.last_step), None)


def _mean(points: Sequence[Values], name: str) -> float | None:
    found = [value for each in points if math.isfinite(value := each.get(name, math.nan))]
    return fmean(found) if found else None


def _by_level(points: Sequence[Values]) -> tuple[tuple[int, float], ...]:
    names = {name for each in points for name in each if name.startswith(LEVEL) and name[len(LEVEL) :].isdecimal()}
    means = ((int(name[len(LEVEL) :]), _mean(points, name)) for name in names)
    return tuple(sorted((level, mean) for level, mean in means if mean is not None))


def _of_those_left(points: Sequence[Values], name: str, left: int) -> float | None:
    """Return by how much a sum grows for the pictures that are left, at its rate of the latest steps."""
    both = [each for each in points if name in each and "samples" in each]
    if len(both) < 2 or (samples := both[-1]["samples"] - both[0]["samples"]) <= 0:
        return None
    return max(0.0, both[-1][name] - both[0][name]) / samples * left
