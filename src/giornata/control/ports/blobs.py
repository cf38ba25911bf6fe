"""The interface of object storage, as the use cases see it.

A key is a safe relative path (`giornata.blobs.object_names`), and no key may be another key's folder. Every method
may be called from any thread. All of them raise Unavailable when storage cannot be reached, and InvalidInput for a
key that is not safe.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """One HTTP request that storage accepts without credentials, until `expires_at` (UTC).

    Storage checks the URL's life when the request begins, so a transfer that outlasts it still ends well. Every
    header is part of the signature and has to be sent; `Content-Length` is among them for uploads.
    """

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object as the server itself found it in storage; `sha256` is lower-case hex."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One row of a listing; `modified_at` is UTC, by the storage's clock."""

    key: str
    size_bytes: int
    modified_at: datetime


class StaleUpload(NamedTuple):
    """A multipart upload that was begun and neither completed nor aborted."""

    key: str
    upload: str
    started_at: datetime


class Blobs(Protocol):
    """Named, immutable-by-habit objects, and signed URLs to them. A write is whole or not there."""

    def sign_put(self, key: str, *, size_bytes: int, sha256: str, expires_in_s: int) -> SignedRequest:
        """Sign a PUT of exactly these bytes: another size or another hash is refused, and nothing is stored."""

    def begin_multipart(self, key: str) -> str:
        """Begin an upload in parts; returns its id."""

    def sign_part(self, key: str, upload: str, number: int, size_bytes: int, expires_in_s: int) -> SignedRequest:
        """Sign a PUT of part `number` (from 1) of exactly this size. Its reply's ETag names the part.

        A part may be sent again; `complete_multipart` says by its ETag which one counts.
        """

    def complete_multipart(self, key: str, upload: str, etags: Sequence[str]) -> None:
        """Join the parts, numbered from 1 in the order of `etags`. Repeating it after a lost reply succeeds.

        Raises BlobMismatch when a part is not there under its ETag, and BlobMissing when storage knows neither
        the upload nor an object that it could have made.
        """

    def abort_multipart(self, key: str, upload: str) -> None:
        """Drop the upload and its parts. Does nothing when there is none, or when it was completed."""

    def stale_multiparts(self, older_than: datetime) -> Iterator[StaleUpload]:
        """Return uploads begun before `older_than` that were neither completed nor aborted, on all pages."""

    def sweep_leftovers(self) -> int:
        """Remove half-written files that killed servers left, a day after the last byte; return how many.

        Storage that keeps nothing of a broken write has none.
        """

    def sign_get(
        self, key: str, *, expires_in_s: int, filename: str | None = None, media_type: str | None = None
    ) -> SignedRequest:
        """Sign a GET of the object, with or without a Range. `filename` makes browsers save it under that name.

        `media_type` is what the reply says it is, whatever the uploader claimed; octets when not given.
        """

    def digest(self, key: str) -> Stored:
        """Return size and sha256 as storage has them, never as the uploader claimed them. Raises BlobMissing."""

    def size(self, key: str) -> int:
        """Return the size in bytes. Raises BlobMissing."""

    def read(self, key: str) -> Iterator[bytes]:
        """Yield the object in chunks of at most a few MiB. Raises BlobMissing before the first chunk."""

    def write(self, key: str, chunks: Iterable[bytes]) -> Stored:
        """Store the chunks as one object. When anything fails on the way, what was there before remains."""

    def delete(self, key: str) -> bool:
        """Delete the object; return True when there was one."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with `prefix` (a string, not a folder), on all pages, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRequest:
    """A request to a signed URL, as the HTTP layer received it. Nothing in it is trusted.

    `query` holds the decoded query string; `content_length` the header of that name, None when there is none.
    """

    method: str
    key: str
    query: Mapping[str, str]
    content_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBlob:
    """A file to send as the reply to a signed GET, with exactly these headers besides length and range.

    `headers` holds Content-Disposition when the URL names a file, and `X-Content-Type-Options: nosniff`.
    """

    path: Path
    media_type: str
    filename: str | None
    headers: dict[str, str]


class ServesBlobs(Protocol):
    """Storage without an HTTP server of its own: the API mounts `/v1/blobs/{key}` and calls these.

    A PUT whose query has `part` goes to `accept_part`, any other PUT to `accept_put`, a GET to `open_get` (a HEAD is
    another method, and refused as S3 refuses it). The ETag that is returned goes, quoted, into the reply's ETag
    header. Raises Forbidden for a signature that is wrong, expired or made for another request.
    """

    def accept_put(self, request: BlobRequest, chunks: Iterator[bytes]) -> str:
        """Store a body, and return its ETag.

        Raises TooLarge when more bytes come than were signed (at once, without reading on), and BlobMismatch
        when fewer come or when they do not hash. Nothing is visible until everything has been checked.
        """

    def accept_part(self, request: BlobRequest, chunks: Iterator[bytes]) -> str:
        """Store one part, and return its ETag. Raises as `accept_put`, and BlobMissing for an unknown upload."""

    def open_get(self, request: BlobRequest) -> OpenedBlob:
        """Return the file to send. Raises BlobMissing."""
