"""Show pictures as they will be trained, before anything is submitted: size, crop, and how much they are enlarged."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.storage.inspect_blobs import picture_sides
from giornata.domain.errors import BlobMissing, Fault, NotFound, TooLarge
from giornata.domain.files.buckets import bucket_sizes, target_size
from giornata.protocol.project.admin import Scope
from giornata.protocol.specs import TrainSpec

SIGNATURES: Mapping[bytes, str] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"RIFF": "image/webp",
}
"""The first bytes of the image formats that every browser shows, with their media types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedView:
    """The size and the crop of a trained picture. Sizes are (width, height) in pixels, as a viewer shows the picture.

    `crop` is the part that is trained where crops are centered: left, top, width, height in pixels of the picture.
    `scale` is the factor by which the picture is enlarged. Both are of no meaning with a fault.
    """

    sha256: str
    size: tuple[int, int] = (0, 0)
    trained: tuple[int, int] = (0, 0)
    crop: tuple[int, int, int, int] = (0, 0, 0, 0)
    scale: float = 1.0
    fault: Fault | None = None


def view_pictures(ctx: Context, caller: Caller, sha256s: Sequence[str], spec: TrainSpec) -> list[TrainedView]:
    """Return how each of the project's pictures would be trained with this spec, in order.

    A picture that the project does not have, or that cannot be read, has a fault. Raises Forbidden.
    """
    require_scope(caller, Scope.DATASETS)
    with ctx.store.read() as tx:
        blobs = tx.uploads.blobs(caller.project_id, sorted(set(sha256s)))
    sides = picture_sides(ctx, caller.project_id, blobs)
    return list(_views(sha256s, sides, spec))


def _views(
    sha256s: Iterable[str], sides: Mapping[str, tuple[int, int] | Fault], spec: TrainSpec
) -> Iterable[TrainedView]:
    missing = "its bytes are not there, or it is larger than a picture may be"
    for sha256 in sha256s:
        found = sides.get(sha256, Fault(where=sha256, message=missing, hint="upload it again"))
        if isinstance(found, Fault):
            yield TrainedView(sha256=sha256, fault=found)
        else:
            yield trained_view(sha256, found, spec)


def trained_view(sha256: str, size: tuple[int, int], spec: TrainSpec) -> TrainedView:
    """Return how a picture of this width and height would be trained with this spec."""
    width, height = size
    steps, least, most = spec.bucket_reso_steps, spec.min_bucket_reso, spec.max_bucket_reso
    sizes = bucket_sizes(resolution=spec.resolution, steps=steps, least=least, most=most)
    trained_height, trained_width = target_size(
        (height, width),
        resolution=spec.resolution,
        buckets=sizes if spec.enable_bucket else (),
        no_upscale_steps=steps if spec.bucket_no_upscale else None,
    )
    scale = max(trained_width / width, trained_height / height)
    crop_width, crop_height = round(trained_width / scale), round(trained_height / scale)
    crop = ((width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height)
    return TrainedView(sha256=sha256, size=size, trained=(trained_width, trained_height), crop=crop, scale=scale)


def read_picture(ctx: Context, caller: Caller, sha256: str, *, most_bytes: int) -> tuple[str, bytes]:
    """Return the media type and the bytes of an uploaded picture that a browser shows. Raises Forbidden, NotFound,
    TooLarge, and what storage raises.
    """
    require_scope(caller, Scope.DATASETS)
    with ctx.store.read() as tx:
        blob = tx.uploads.blobs(caller.project_id, [sha256]).get(sha256)
    if blob is None:
        raise NotFound(f"there is no picture {sha256[:16]}")
    if blob.size_bytes > most_bytes:
        raise TooLarge(f"the picture has {blob.size_bytes} bytes; at most {most_bytes} are shown")
    try:
        content = b"".join(ctx.blobs.read(blob.key))
    except BlobMissing:
        raise NotFound(f"there is no picture {sha256[:16]}") from None
    for begin, media_type in SIGNATURES.items():
        if content.startswith(begin):
            return media_type, content
    raise NotFound(f"{sha256[:16]} is no picture that a browser shows")
