"""Object storage in memory, by the server's own clock: it forgets nothing, and can be handed wrong bytes."""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.fixtures.contexts import ManualClock

from giornata.control.ports.blobs import ObjectInfo, SignedRequest, StaleUpload, Stored
from giornata.domain.errors import BlobMissing


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One object."""

    data: bytes
    sha256: str
    modified_at: datetime


class MemoryBlobs:
    """See `giornata.control.ports.blobs.Blobs`. Objects in parts are not needed here."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self.objects: dict[str, Kept] = {}
        self.changes = 0

    def put(self, key: str, data: bytes) -> None:
        """What arrives at a signed URL, be it right or wrong."""
        kept = Kept(data=data, sha256=hashlib.sha256(data).hexdigest(), modified_at=self._now())
        with self._guard:
            self.objects[key] = kept
            self.changes += 1

    def sign_put(self, key: str, *, size_bytes: int, sha256: str, expires_in_s: int) -> SignedRequest:
        headers = {"Content-Length": str(size_bytes), "x-sha256": sha256}
        return self._signed("PUT", key, expires_in_s, headers)

    def begin_multipart(self, key: str) -> str:
        raise NotImplementedError

    def sign_part(self, key: str, upload: str, number: int, size_bytes: int, expires_in_s: int) -> SignedRequest:
        raise NotImplementedError

    def complete_multipart(self, key: str, upload: str, etags: Sequence[str]) -> None:
        raise NotImplementedError

    def abort_multipart(self, key: str, upload: str) -> None:
        raise NotImplementedError

    def stale_multiparts(self, older_than: datetime) -> Iterator[StaleUpload]:
        return iter(())

    def sweep_leftovers(self) -> int:
        return 0

    def sign_get(
        self, key: str, *, expires_in_s: int, filename: str | None = None, media_type: str | None = None
    ) -> SignedRequest:
        return self._signed("GET", key, expires_in_s, {})

    def digest(self, key: str) -> Stored:
        kept = self._kept(key)
        return Stored(size_bytes=len(kept.data), sha256=kept.sha256)

    def size(self, key: str) -> int:
        return len(self._kept(key).data)

    def read(self, key: str) -> Iterator[bytes]:
        yield self._kept(key).data

    def write(self, key: str, chunks: Iterable[bytes]) -> Stored:
        self.put(key, b"".join(chunks))
        return self.digest(key)

    def delete(self, key: str) -> bool:
        with self._guard:
            self.changes += 1
            return self.objects.pop(key, None) is not None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._guard:
            found = [(key, kept) for key, kept in self.objects.items() if key.startswith(prefix)]
        for key, kept in found:
            yield ObjectInfo(key=key, size_bytes=len(kept.data), modified_at=kept.modified_at)

    def _kept(self, key: str) -> Kept:
        kept = self.objects.get(key)
        if kept is None:
            raise BlobMissing(f"there is no object {key}")
        return kept

    def _signed(self, method: str, key: str, expires_in_s: int, headers: dict[str, str]) -> SignedRequest:
        expires_at = self._now() + timedelta(seconds=expires_in_s)
        return SignedRequest(method=method, url=f"memory:///{key}", headers=headers, expires_at=expires_at)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
