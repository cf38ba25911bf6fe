"""In which sense a job's result is exact."""

from collections.abc import Sequence
from typing import Any

JOINT = "joint"
"""The fingerprint's entry of steps that were made in a shared batch: {"place": …, "width": …, "rank": …}."""


def exactness_of(history: Sequence[dict[str, Any]]) -> dict[str, str]:
    """{"class": "solo" | "joint", "why": …} of weights that went through these fingerprints (checkpoint.Header).

    solo: the bits of an uninterrupted run alone, on equal hardware and versions. joint: the bits of any run that has
    the same places and widths at the same steps, whoever the neighbours are; equal to solo up to rounding.
    """
    shared = [entry["from_step"] for entry in history if JOINT in entry["fingerprint"]]
    if not shared:
        return {"class": "solo", "why": "every step was made alone"}
    return {"class": "joint", "why": f"from step {shared[0]} on, steps were made in a batch shared with other jobs"}
