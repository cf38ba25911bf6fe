"""The parts of a multipart upload, and the bytes by which the speed of a link is measured.

S3 wants parts of at least 5 MiB (the last may be smaller), at most 5 GiB, at most 10,000 of them, and objects of
at most 5 TiB (Amazon S3 user guide, "Multipart upload limits").
"""

import functools
import hashlib
import math

from giornata.domain.errors import TooLarge

MIB = 2**20
SINGLE_PUT_BELOW_BYTES = 16 * MIB
SMALLEST_PART_BYTES = 8 * MIB
# Far below S3's 10,000, so that a ticket with one URL per part stays small.
MOST_PARTS = 2_000
LARGEST_OBJECT_BYTES = 5 * 2**40


def plan_parts(size_bytes: int) -> list[int] | None:
    """Sizes of the parts in order, in bytes; None when one PUT is enough.

    All parts but the last are equal and a whole number of MiB. Raises TooLarge above 5 TiB, and ValueError for a
    negative size.
    """
    if size_bytes < 0:
        raise ValueError("size_bytes is never negative")
    if size_bytes > LARGEST_OBJECT_BYTES:
        raise TooLarge(f"{size_bytes} bytes are more than storage takes as one object ({LARGEST_OBJECT_BYTES})")
    if size_bytes < SINGLE_PUT_BELOW_BYTES:
        return None
    even_mib = -(-size_bytes // (MOST_PARTS * MIB))
    part_bytes = max(SMALLEST_PART_BYTES, even_mib * MIB)
    whole, rest = divmod(size_bytes, part_bytes)
    return [part_bytes] * whole + ([rest] if rest else [])


MIN_PROBE_BYTES, MAX_PROBE_BYTES = 2**20, 2**25
PROBE_S = 4.0
PROBE_SEED = b"giornata link probe"


def probe_size(wanted_bytes_per_s: float) -> int:
    """Return the bytes that show if a link is that fast: some seconds' worth, a power of two, 1 to 32 MiB.

    Few sizes, so that storage holds few such objects.
    """
    worth = min(max(wanted_bytes_per_s * PROBE_S, MIN_PROBE_BYTES), MAX_PROBE_BYTES)
    return int(2 ** round(math.log2(worth)))


def probe_bytes(size_bytes: int) -> bytes:
    """Always the same, and nothing that something on the way could pack."""
    return hashlib.shake_256(PROBE_SEED).digest(size_bytes)


@functools.lru_cache(maxsize=8)
def probe_sha256(size_bytes: int) -> str:
    """The sha256 of `probe_bytes(size_bytes)`, as hexadecimal digits."""
    return hashlib.sha256(probe_bytes(size_bytes)).hexdigest()


def probe_timeout_s(size_bytes: int, wanted_bytes_per_s: float) -> float:
    """Seconds after which a transfer is given up: its link has less than a third of the wanted speed."""
    return 3 * size_bytes / wanted_bytes_per_s + 5.0
