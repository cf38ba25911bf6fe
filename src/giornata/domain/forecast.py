"""When a job that is queued now would start and end, in a simple model of the fleet.

The model: places work on one job at a time; each that becomes free takes the next job of the queue; a job takes as
long as jobs like it took before; nobody joins, leaves or is interrupted. It is list scheduling (R. L. Graham, 1966),
played through, so that the forecast is exact wherever the model is.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds from now. `end_s` is None when nobody knows how long the job takes."""

    start_s: float
    end_s: float | None


def forecast(*, free_in_s: Sequence[float], ahead_s: Iterable[float], run_s: float | None) -> Forecast | None:
    """When a job behind those that take `ahead_s` begins; None without a place.

    `free_in_s` has for each place the seconds until it is free, 0 for an idle one.
    """
    if not free_in_s:
        return None
    free = list(free_in_s)
    heapq.heapify(free)
    for takes_s in ahead_s:
        heapq.heapreplace(free, free[0] + takes_s)
    return Forecast(start_s=free[0], end_s=None if run_s is None else free[0] + run_s)
