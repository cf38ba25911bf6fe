"""How long to wait before the next try."""

import random
from collections.abc import Iterator


def delays_s(rng: random.Random, *, first_s: float = 0.5, most_s: float = 15.0) -> Iterator[float]:
    """Delays that double up to `most_s`, each between half and the whole of its bound.

    The jitter keeps a thousand nodes, all cut off at the same moment, from coming back at the same moment.
    """
    bound_s = first_s
    while True:
        yield rng.uniform(bound_s / 2, bound_s)
        bound_s = min(most_s, bound_s * 2)
