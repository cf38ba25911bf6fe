"""Compare the masks of an order with the pictures that they are for, before the order is submitted."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from giornata.control.context import Context
from giornata.control.ports.user_queries.records import BlobRecord
from giornata.control.storage.inspect_blobs import SeenPicture, see_pictures
from giornata.domain.errors import Fault
from giornata.protocol.generation.checks.masked_pictures import MaskedPicture, masked_pictures

MOST_PAIRS = 64
"""Pairs that one request has the server look at. A node compares the others, and fails their pictures."""

Sides = tuple[int, int]


def mask_faults(ctx: Context, project_id: str, spec: Mapping[str, Any]) -> list[Fault]:
    """Return a fault for each mask of another size than its picture, and for each of both that cannot be shown.

    The spec need not be valid. What the project does not have is passed over: the submission refuses it.
    """
    pairs = list(islice(masked_pictures(spec), MOST_PAIRS))
    if not pairs:
        return []
    with ctx.store.read() as tx:
        blobs = tx.uploads.blobs(project_id, sorted({sha256 for each in pairs for sha256 in (each.image, each.mask)}))
    there = [each for each in pairs if {each.image, each.mask} <= blobs.keys()]
    return list(_compared(ctx, project_id, there, blobs))


def _compared(
    ctx: Context, project_id: str, pairs: Sequence[MaskedPicture], blobs: Mapping[str, BlobRecord]
) -> Iterator[Fault]:
    wanted = {sha256: blobs[sha256] for each in pairs for sha256 in (each.image, each.mask)}
    seen = see_pictures(ctx, project_id, wanted)
    for each in pairs:
        yield from mask_fault(each.where, _sides(seen.get(each.image)), _sides(seen.get(each.mask)))


def _sides(found: SeenPicture | Fault | None) -> Sides | Fault | None:
    return (found.width, found.height) if isinstance(found, SeenPicture) else found


def mask_fault(where: str, image: Sides | Fault | None, mask: Sides | Fault | None) -> Iterator[Fault]:
    """Yield what is wrong with a mask. Sides are (width, height) in pixels; a fault says why there are none."""
    for name, found in (("picture", image), ("mask", mask)):
        if isinstance(found, Fault):
            yield Fault(where=where, message=f"the {name} {found.message}", hint=found.hint)
    if isinstance(image, tuple) and isinstance(mask, tuple) and image != mask:
        message = f"the mask has {mask[0]}×{mask[1]} pixels, and its picture has {image[0]}×{image[1]}"
        yield Fault(where=where, message=message, hint="give a mask of the picture's size")
