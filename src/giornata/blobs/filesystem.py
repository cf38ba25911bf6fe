"""Keep objects in a folder, for a server on one machine.

    objects/<key>   what is stored; only ever whole files
    uploads/        multipart uploads (`giornata.blobs.upload_folders`)
    aside/          files that are being written

The three lie on one file system, so that a rename moves between them.
"""

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from giornata.blobs.durable import away_is_unavailable, pour, prune_empty, publish, written_aside
from giornata.blobs.object_names import attachment, checked_key, checked_prefix
from giornata.blobs.upload_folders import CHUNK_BYTES, UploadFolders
from giornata.blobs.url_signature import UrlSigner
from giornata.control.ports.blobs import BlobRequest, ObjectInfo, OpenedBlob, SignedRequest, StaleUpload, Stored
from giornata.control.ports.clock import Clock
from giornata.domain.errors import BlobMismatch, BlobMissing, GiornataError, TooLarge, Unavailable
from giornata.protocol.model import sendable_media_type

_ABANDONED_AFTER_MS = 24 * 3_600_000  # longer than any upload takes
_EPOCH = datetime.fromtimestamp(0, UTC)
_NO_SUCH_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class FilesystemBlobs:
    """`Blobs` and `ServesBlobs` below one folder, which is made when it is not there."""

    def __init__(self, root: Path, *, signing_key: bytes, base_url: str | Callable[[], str], clock: Clock) -> None:
        self._objects, aside, uploads = root / "objects", root / "aside", root / "uploads"
        for folder in (root, self._objects, aside, uploads):
            folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        for folder in (self._objects, aside, uploads):
            with contextlib.suppress(OSError):  # of another user, or on a file system that keeps no rights
                folder.chmod(stat.S_IRWXU)
        self._aside, self._clock = aside, clock
        self._uploads = UploadFolders(uploads, aside=aside)
        self._signer = UrlSigner(
            signing_key=signing_key, base_url=base_url if callable(base_url) else lambda: base_url, clock=clock
        )
        self.sweep_leftovers()

    # ---- signing ----

    def sign_put(self, key: str, *, size_bytes: int, sha256: str, expires_in_s: int) -> SignedRequest:
        query = {"size": str(size_bytes), "sha256": sha256}
        return self._sign_upload(key, query, size_bytes=size_bytes, expires_in_s=expires_in_s)

    def sign_part(self, key: str, upload: str, number: int, size_bytes: int, expires_in_s: int) -> SignedRequest:
        query = {"upload": upload, "part": str(number), "size": str(size_bytes)}
        return self._sign_upload(key, query, size_bytes=size_bytes, expires_in_s=expires_in_s)

    def sign_get(
        self, key: str, *, expires_in_s: int, filename: str | None = None, media_type: str | None = None
    ) -> SignedRequest:
        named = {"filename": filename, "type": media_type}
        query = {name: value for name, value in named.items() if value is not None}
        return self._signer.sign("GET", checked_key(key), query, expires_in_s=expires_in_s)

    def _sign_upload(self, key: str, query: dict[str, str], *, size_bytes: int, expires_in_s: int) -> SignedRequest:
        signed = self._signer.sign("PUT", checked_key(key), query, expires_in_s=expires_in_s)
        headers = {"Content-Length": str(size_bytes)}
        return SignedRequest(method=signed.method, url=signed.url, headers=headers, expires_at=signed.expires_at)

    # ---- serving signed URLs ----

    def accept_put(self, request: BlobRequest, chunks: Iterator[bytes]) -> str:
        query = self._signer.checked(request, names=("size", "sha256"))
        size_bytes, sha256 = int(query["size"]), query["sha256"]
        _refuse_length(request, size_bytes)
        with written_aside(self._aside) as file:
            stored = pour(chunks, file, most_bytes=size_bytes)
            if stored.size_bytes < size_bytes:
                raise BlobMismatch(f"{stored.size_bytes} bytes came, not {size_bytes}")
            if stored.sha256 != sha256:
                raise BlobMismatch(f"the bytes hash to {stored.sha256}, not {sha256}")
            publish(file, self._objects / checked_key(request.key), root=self._objects)
        return stored.sha256

    def accept_part(self, request: BlobRequest, chunks: Iterator[bytes]) -> str:
        query = self._signer.checked(request, names=("upload", "part", "size"))
        size_bytes = int(query["size"])
        _refuse_length(request, size_bytes)
        return self._uploads.put_part(request.key, query["upload"], int(query["part"]), chunks, size_bytes=size_bytes)

    @away_is_unavailable("read")
    def open_get(self, request: BlobRequest) -> OpenedBlob:
        query = self._signer.checked(request, names=())
        path, filename = self._objects / checked_key(request.key), query.get("filename")
        if not path.is_file():
            raise self._missing(request.key)
        named = {} if filename is None else {"Content-Disposition": attachment(filename)}
        return OpenedBlob(
            path=path,
            media_type=sendable_media_type(query.get("type")),
            filename=filename,
            headers={**named, "X-Content-Type-Options": "nosniff"},
        )

    # ---- multipart ----

    def begin_multipart(self, key: str) -> str:
        return self._uploads.begin(checked_key(key), now_ms=self._clock.now_ms())

    def complete_multipart(self, key: str, upload: str, etags: Sequence[str]) -> None:
        plain = [etag.strip('"') for etag in etags]
        target = self._objects / checked_key(key)
        self._uploads.join(key, upload, plain, target, root=self._objects)

    @away_is_unavailable("written")
    def abort_multipart(self, key: str, upload: str) -> None:
        self._uploads.drop(checked_key(key), upload)

    def stale_multiparts(self, older_than: datetime) -> Iterator[StaleUpload]:
        before_ms = (older_than - _EPOCH) // timedelta(milliseconds=1)
        for key, upload, started_ms in self._uploads.begun(before_ms=before_ms):
            yield StaleUpload(key, upload, _EPOCH + timedelta(milliseconds=started_ms))

    def sweep_leftovers(self) -> int:
        swept, before_s = 0, (self._clock.now_ms() - _ABANDONED_AFTER_MS) / 1000
        for path in self._aside.iterdir():
            with contextlib.suppress(FileNotFoundError):  # published or removed since it was listed
                if path.stat().st_mtime < before_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    swept += 1
        return swept

    # ---- objects ----

    @away_is_unavailable("read")
    def digest(self, key: str) -> Stored:
        try:
            with self._path(key).open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                return Stored(size_bytes=file.tell(), sha256=sha256)
        except _NO_SUCH_FILE:
            raise self._missing(key) from None

    @away_is_unavailable("read")
    def size(self, key: str) -> int:
        path = self._path(key)
        if not path.is_file():
            raise self._missing(key)
        return path.stat().st_size

    def read(self, key: str) -> Iterator[bytes]:
        with away_is_unavailable("read"):
            try:
                file = self._path(key).open("rb")
            except _NO_SUCH_FILE:
                raise self._missing(key) from None
            with file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk

    def write(self, key: str, chunks: Iterable[bytes]) -> Stored:
        target = self._path(key)
        with written_aside(self._aside) as file:
            stored = pour(chunks, file)
            publish(file, target, root=self._objects)
        return stored

    @away_is_unavailable("written")
    def delete(self, key: str) -> bool:
        path = self._path(key)
        try:
            path.unlink()
        except (*_NO_SUCH_FILE, PermissionError):  # unlink of a folder: EISDIR on Linux, EPERM by POSIX
            if path.is_file():
                raise
            return False
        prune_empty(path.parent, root=self._objects)
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, _ = checked_prefix(prefix).rpartition("/")
        for parent, folders, names in os.walk(self._objects / folder):
            folders.sort()
            for name in sorted(names):
                path = Path(parent, name)
                key = path.relative_to(self._objects).as_posix()
                if key.startswith(prefix):
                    with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                        yield _info(key, path)

    def _path(self, key: str) -> Path:
        return self._objects / checked_key(key)

    def _missing(self, key: str) -> GiornataError:
        # A disk that is not mounted has lost nothing.
        if not self._objects.is_dir():
            public = "storage is away: its folder is missing"
            return Unavailable(f"storage is away: there is no folder {self._objects}", public=public)
        return BlobMissing(f"{key} is not in storage")


def _refuse_length(request: BlobRequest, size_bytes: int) -> None:
    """Refuse a body that says it has another size, before a byte of it is read."""
    length = request.content_length
    if length is None or length == size_bytes:
        return
    if length > size_bytes:
        raise TooLarge(f"{length} bytes, and the URL was signed for {size_bytes}")
    raise BlobMismatch(f"{length} bytes, and the URL was signed for {size_bytes}")


def _info(key: str, path: Path) -> ObjectInfo:
    status = path.stat()
    modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
    return ObjectInfo(key=key, size_bytes=status.st_size, modified_at=modified_at)
