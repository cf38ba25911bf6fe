"""In which sense a job's result is exact."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from giornata.diffusion.determinism import differences

JOINT = "joint"
"""The fingerprint's entry of steps that were made in a shared batch: {"place": …, "width": …, "rank": …}."""


def exactness_of(history: Sequence[dict[str, Any]]) -> dict[str, str]:
    """{"class": "solo" | "joint", "why": …} of weights that went through these fingerprints (checkpoint.Header).

    solo: the bits of a run alone, on equal hardware and versions. joint: the bits of any run that has the same places
    and widths at the same steps, whoever the neighbours are; equal to solo up to rounding. Where anything else in the
    fingerprint changed on the way, `why` names each change: the bits are then those of a run that changes in the
    same way at the same steps, and of no uninterrupted one.
    """
    shared = [entry["from_step"] for entry in history if JOINT in entry["fingerprint"]]
    kind, how = "solo", "every step was made alone"
    if shared:
        kind, how = "joint", f"from step {shared[0]} on, steps were made in a batch shared with other jobs"
    return {"class": kind, "why": "; ".join([how, *_changes(history)])}


def _changes(history: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What changed besides the place in a shared batch, one sentence for each time."""
    for before, after in pairwise(history):
        changed = differences(before["fingerprint"], after["fingerprint"])
        said = [
            f"{name} {_in_words(now)} instead of {_in_words(then)}"
            for name, (then, now) in changed.items()
            if name != JOINT
        ]
        if said:
            yield f"from step {after['from_step']} on with {', '.join(said)}"


def _in_words(value: Any) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
