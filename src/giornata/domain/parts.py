"""How a file is cut for a multipart upload.

S3 wants parts of at least 5 MiB (the last may be smaller), at most 5 GiB, at most 10,000 of them, and objects of
at most 5 TiB (Amazon S3 user guide, "Multipart upload limits").
"""

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
