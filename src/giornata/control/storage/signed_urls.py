"""Turn storage's signed requests into the protocol's, and into tickets for uploads."""

from collections.abc import Sequence

from giornata.control.context import Context
from giornata.control.ports.blobs import SignedRequest
from giornata.control.ports.user_queries.records import UploadRecord
from giornata.domain.files.transfers import plan_parts
from giornata.protocol.uploads import Download, SignedPart, SignedUrl, UploadTicket


def signed_url(request: SignedRequest) -> SignedUrl:
    """Return the same request, as it crosses the border."""
    return SignedUrl(method=request.method, url=request.url, headers=request.headers, expires_at=request.expires_at)


def signed_get(ctx: Context, key: str, *, filename: str | None = None, media_type: str | None = None) -> SignedUrl:
    """Return a GET of one object for as long as the policy says."""
    life_s = round(ctx.policy.download_url_s)
    return signed_url(ctx.blobs.sign_get(key, expires_in_s=life_s, filename=filename, media_type=media_type))


def download(ctx: Context, *, sha256: str, size_bytes: int, key: str) -> Download:
    """Return a download of these bytes: where to get them."""
    return Download(sha256=sha256, size_bytes=size_bytes, request=signed_get(ctx, key))


def ticket(ctx: Context, upload: UploadRecord, numbers: Sequence[int] = ()) -> UploadTicket:
    """Return fresh URLs for an open upload: its single PUT, or the parts `numbers` (all of them when empty)."""
    life_s = round(ctx.policy.upload_url_s)
    if upload.multipart_id is None:
        put = ctx.blobs.sign_put(upload.key, size_bytes=upload.size_bytes, sha256=upload.sha256, expires_in_s=life_s)
        return UploadTicket(sha256=upload.sha256, exists=False, upload_id=upload.id, put=signed_url(put))
    sizes = plan_parts(upload.size_bytes) or []
    parts = []
    for number in numbers or range(1, len(sizes) + 1):
        size_bytes = sizes[number - 1]
        request = ctx.blobs.sign_part(upload.key, upload.multipart_id, number, size_bytes, life_s)
        parts.append(SignedPart(number=number, size_bytes=size_bytes, request=signed_url(request)))
    return UploadTicket(sha256=upload.sha256, exists=False, upload_id=upload.id, parts=tuple(parts))
