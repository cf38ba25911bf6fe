"""Show pictures as they will be trained, before anything is submitted: size, crop, and how much they are enlarged."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.storage.inspect_blobs import SeenPicture, preview_of, see_pictures
from giornata.domain.errors import BlobMissing, Fault, NotFound, TooLarge
from giornata.domain.files.buckets import bucket_sizes, target_size
from giornata.protocol.project.admin import Scope
from giornata.protocol.specs import TrainSpec

SIGNATURES: Mapping[tuple[int, bytes], str] = {
    (0, b"\x89PNG\r\n\x1a\n"): "image/png",
    (0, b"\xff\xd8\xff"): "image/jpeg",
    (0, b"RIFF"): "image/webp",
    (0, b"GIF8"): "image/gif",
    (0, b"BM"): "image/bmp",
    (4, b"ftypavif"): "image/avif",
    (4, b"ftypavis"): "image/avif",
}
"""Bytes at an offset of files that every browser shows, with their media types."""
CONVERTED = ((4, b"ftyp"), (0, b"II*\0"), (0, b"MM\0*"))
"""Bytes at an offset of HEIC and TIFF files, which browsers do not show. A JPEG stands for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedView:
    """The size and the crop of a trained picture. Sizes are (width, height) in pixels, as a viewer shows the picture.

    `crop` is the part that is trained where crops are centered: left, top, width, height in pixels of the picture.
    `is_turned`: the EXIF orientation turns the picture, or mirrors it.
    `scale` is the factor by which the picture is enlarged. Both are of no meaning with a fault.
    """

    sha256: str
    size: tuple[int, int] = (0, 0)
    is_turned: bool = False
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
    seen = see_pictures(ctx, caller.project_id, blobs)
    return list(_views(sha256s, seen, spec))


def _views(sha256s: Iterable[str], seen: Mapping[str, SeenPicture | Fault], spec: TrainSpec) -> Iterable[TrainedView]:
    missing = "its bytes are not there, or it is larger than a picture may be"
    for sha256 in sha256s:
        found = seen.get(sha256, Fault(where=sha256, message=missing, hint="upload it again"))
        if isinstance(found, Fault):
            yield TrainedView(sha256=sha256, fault=found)
        else:
            view = trained_view(sha256, (found.width, found.height), spec)
            yield replace(view, is_turned=found.is_turned)


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
    """Return the media type and the bytes of an uploaded picture, or of a JPEG of one that browsers do not show.

    Raises Forbidden, NotFound, TooLarge, Unavailable, and what storage raises.
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
    for (at, sign), media_type in SIGNATURES.items():
        if content.startswith(sign, at):
            return media_type, content
    if any(content.startswith(sign, at) for at, sign in CONVERTED):
        preview = preview_of(ctx, blob)
        if preview is not None:
            return "image/jpeg", preview
    raise NotFound(f"{sha256[:16]} is not a picture that a browser can show")
