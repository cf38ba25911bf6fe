"""Requests to storage by signed URLs: what is sent, and what the answers mean."""

import contextlib
import json
from collections.abc import Iterator

import httpx

from giornata.domain.errors import BlobMismatch, BlobMissing, Forbidden, GiornataError, TooLarge, Unavailable
from giornata.protocol.uploads import SignedUrl

_TIMEOUT = httpx.Timeout(connect=10, read=120, write=60, pool=60)
_EXPIRED = frozenset({401, 403})
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 509})


class StorageTrouble(Exception):
    """A failure of storage after which another try may succeed. `error` is what to raise when it does not."""

    def __init__(self, error: GiornataError) -> None:
        super().__init__(str(error))
        self.error = error


def storage_request(signed: SignedUrl, more: dict[str, str], body: Iterator[bytes] | None = None) -> httpx.Request:
    """The signed request with `more` headers, and nothing of the client's own."""
    # Not the client's build_request, which would add its key, its cookies and its default headers.
    headers = httpx.Headers(signed.headers)
    headers.update(more)
    return httpx.Request(
        signed.method, signed.url, headers=headers, content=body, extensions={"timeout": _TIMEOUT.as_dict()}
    )


def refusal(response: httpx.Response) -> Exception:
    """Return the error that the storage's status means: a StorageTrouble when another try may succeed."""
    status, text = response.status_code, response.text
    said = f"storage answered {status}: {text[:300]}"
    if status in _EXPIRED:
        return StorageTrouble(Forbidden(said))
    # S3 calls a body that came too slowly a bad request.
    # A missing bucket does not mean a missing object, which the caller would give up for good.
    if status in _TRY_AGAIN or (status == 400 and "RequestTimeout" in text) or "<Code>NoSuchBucket</Code>" in text:
        return StorageTrouble(Unavailable(said))
    code = _problem_code(text)
    if status == 413 or code == TooLarge.code:
        return TooLarge(said)
    if status in {404, 410} or code == BlobMissing.code:
        return BlobMissing(said)
    return BlobMismatch(said) if status in {400, 409, 412, 422} else Unavailable(said)


def _problem_code(text: str) -> str:
    """The `code` of a problem document; empty when it is none."""
    with contextlib.suppress(ValueError):
        problem = json.loads(text)
        if isinstance(problem, dict):
            return str(problem.get("code", ""))
    return ""


def lost(error: httpx.TransportError) -> Unavailable:
    """Return the error for a failed connection to storage."""
    return Unavailable(f"the connection to storage failed: {type(error).__name__}: {error}")
