"""Object storage that holds nothing: what matters to a scheduler is that bytes were committed, not what they are."""

# ruff: noqa: ARG002 - the port's arguments

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from giornata.control.ports.blobs import ObjectInfo, SignedRequest, StaleUpload, Stored
from giornata.domain.errors import BlobMissing

_NEVER = datetime(2100, 1, 1, tzinfo=UTC)


class ModeledBlobs:
    """Implements `giornata.control.ports.blobs.Blobs`. Whoever reads or writes bytes finds none."""

    def sign_put(self, key: str, *, size_bytes: int, sha256: str, expires_in_s: int) -> SignedRequest:
        return SignedRequest(method="PUT", url=key, expires_at=_NEVER)

    def begin_multipart(self, key: str) -> str:
        return key

    def sign_part(self, key: str, upload: str, number: int, size_bytes: int, expires_in_s: int) -> SignedRequest:
        return SignedRequest(method="PUT", url=key, expires_at=_NEVER)

    def complete_multipart(self, key: str, upload: str, etags: Sequence[str]) -> None:
        """Do nothing: there are no parts to join."""

    def abort_multipart(self, key: str, upload: str) -> None:
        """Do nothing: there are no parts to drop."""

    def stale_multiparts(self, older_than: datetime) -> Iterator[StaleUpload]:
        return iter(())

    def sweep_leftovers(self) -> int:
        return 0

    def sign_get(
        self, key: str, *, expires_in_s: int, filename: str | None = None, media_type: str | None = None
    ) -> SignedRequest:
        return SignedRequest(method="GET", url=key, expires_at=_NEVER)

    def digest(self, key: str) -> Stored:
        raise BlobMissing(f"{key} is modeled, and has no bytes")

    def size(self, key: str) -> int:
        raise BlobMissing(f"{key} is modeled, and has no bytes")

    def read(self, key: str) -> Iterator[bytes]:
        raise BlobMissing(f"{key} is modeled, and has no bytes")

    def write(self, key: str, chunks: Iterable[bytes]) -> Stored:
        raise BlobMissing("modeled storage holds nothing")

    def delete(self, key: str) -> bool:
        return False

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())
