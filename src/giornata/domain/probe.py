"""The bytes by which the speed of a link is measured. Server and node make the same ones."""

import functools
import hashlib
import math

LEAST_BYTES, MOST_BYTES = 2**20, 2**25
MEASURED_S = 4.0
SEED = b"giornata link probe"


def probe_size(wanted_bytes_per_s: float) -> int:
    """How many bytes show whether a link is that fast: some seconds' worth, a power of two, 1 to 32 MiB.

    Few sizes, so that storage holds few such objects.
    """
    worth = min(max(wanted_bytes_per_s * MEASURED_S, LEAST_BYTES), MOST_BYTES)
    return int(2 ** round(math.log2(worth)))


def probe_bytes(size_bytes: int) -> bytes:
    """Always the same, and nothing that something on the way could pack."""
    return hashlib.shake_256(SEED).digest(size_bytes)


@functools.lru_cache(maxsize=8)
def probe_sha256(size_bytes: int) -> str:
    """Of `probe_bytes`."""
    return hashlib.sha256(probe_bytes(size_bytes)).hexdigest()


def longest_s(size_bytes: int, wanted_bytes_per_s: float) -> float:
    """After how many seconds a transfer need not be waited for: at less than a third of what is asked."""
    return 3 * size_bytes / wanted_bytes_per_s + 5.0
