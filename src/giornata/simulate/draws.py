"""Randomness as a function of the seed, the purpose and the thing that it is for: never of the order of asking."""

import itertools
import math
import random
from collections.abc import Sequence

# Share of instances that run by then (minutes after they were asked for): 100 replicas in a published week, high
# priority, an image of 5.53 GB. The first came after 3 minutes, nearly all of them within 80.
PUBLISHED_START_MIN: tuple[tuple[float, float], ...] = (
    (0.0, 3.0),
    (0.5, 10.0),
    (0.8, 20.0),
    (0.9, 40.0),
    (1.0, 80.0),
)


def rng(seed: int, purpose: str, of: object) -> random.Random:
    """A generator for this alone."""
    return random.Random(f"{seed}:{purpose}:{of}")


def by_curve(share: float, curve: Sequence[tuple[float, float]] = PUBLISHED_START_MIN) -> float:
    """The value below which `share` (0 to 1) of all lie, on straight lines between the curve's points."""
    for (left, low), (right, high) in itertools.pairwise(curve):
        if share <= right:
            return low + (high - low) * (share - left) / (right - left)
    return curve[-1][1]


def exponential_s(draw: random.Random, mean_s: float) -> float:
    """Draw the seconds until an event of constant rate; infinite for an infinite mean."""
    return math.inf if math.isinf(mean_s) else draw.expovariate(1.0 / mean_s)
