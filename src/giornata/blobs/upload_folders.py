"""Keep multipart uploads in a folder.

    <upload>/key               the key that the upload is for
    <upload>/<number>.<etag>   a part; the same number may be there with several ETags

An upload's id begins with the epoch milliseconds at which it was begun. A part's ETag is its sha256 and its size,
which is enough to tell, long after the parts are gone, whether an object is what they made.
"""

import contextlib
import hashlib
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from giornata.blobs.durable import pour, publish, publish_into, written_aside
from giornata.domain.errors import BlobMismatch, BlobMissing

CHUNK_BYTES = 2**20
_UPLOAD = re.compile(r"(\d{13})-[0-9a-f]{32}", re.ASCII)
_ETAG = re.compile(r"([0-9a-f]{64})-(\d+)", re.ASCII)
_KEY = "key"


class UploadFolders:
    """The parts of uploads that become objects. `aside` lies on the same file system as `folder`."""

    def __init__(self, folder: Path, *, aside: Path) -> None:
        self._folder, self._aside = folder, aside

    def begin(self, key: str, *, now_ms: int) -> str:
        """Make room for an upload; returns its id."""
        upload = f"{now_ms:013d}-{secrets.token_hex(16)}"
        with written_aside(self._aside) as file:
            file.write(key.encode())
            publish(file, self._folder / upload / _KEY, root=self._folder)
        return upload

    def put_part(self, key: str, upload: str, number: int, chunks: Iterable[bytes], *, size_bytes: int) -> str:
        """Store a part of exactly `size_bytes`; returns its ETag."""
        folder = self._of(key, upload)
        with written_aside(self._aside) as file:
            stored = pour(chunks, file, most_bytes=size_bytes)
            if stored.size_bytes < size_bytes:
                raise BlobMismatch(f"part {number} has {stored.size_bytes} bytes, not {size_bytes}")
            etag = f"{stored.sha256}-{stored.size_bytes}"
            try:
                publish_into(file, folder / f"{number:05d}.{etag}")
            except FileNotFoundError:
                raise _missing(upload) from None
        return etag

    def join(self, key: str, upload: str, etags: Sequence[str], target: Path, *, root: Path) -> None:
        """Write the parts to `target` as one file. Does nothing when `target` is what they made before."""
        if not etags:
            raise BlobMismatch(f"an upload to {key} is completed with at least one part")
        try:
            folder = self._of(key, upload)
            with written_aside(self._aside) as file:
                for number, etag in enumerate(etags, start=1):
                    with _part(folder, number, etag) as part:
                        pour(_chunks(part), file)
                publish(file, target, root=root)
        except BlobMissing:
            if not _made_of(target, etags):
                raise
        else:
            self.drop(key, upload)

    def drop(self, key: str, upload: str) -> None:
        """Forget an upload. Does nothing when there is none."""
        with contextlib.suppress(BlobMissing, FileNotFoundError):
            # Renamed first: a half-deleted upload is never seen.
            shutil.rmtree(self._of(key, upload).rename(self._aside / secrets.token_hex(16)))

    def begun(self, *, before_ms: int) -> Iterator[tuple[str, str, int]]:
        """Yield (key, upload, started at, in epoch ms) of the uploads begun before `before_ms`, oldest first."""
        for folder in sorted(self._folder.iterdir()):
            named = _UPLOAD.fullmatch(folder.name)
            if named is None or int(named[1]) >= before_ms:
                continue
            try:
                yield (folder / _KEY).read_text("utf-8"), folder.name, int(named[1])
            except FileNotFoundError:  # dropped since, or a crash left it before its key was written
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _of(self, key: str, upload: str) -> Path:
        """Return the upload's folder. Raises BlobMissing unless it is there and for this key."""
        folder = self._folder / upload
        with contextlib.suppress(FileNotFoundError):
            if _UPLOAD.fullmatch(upload) and (folder / _KEY).read_text("utf-8") == key:
                return folder
        raise _missing(upload)


def _part(folder: Path, number: int, etag: str) -> BinaryIO:
    if not _ETAG.fullmatch(etag):
        raise BlobMismatch(f"{etag[:100]!r} is not the ETag of a part")
    try:
        return (folder / f"{number:05d}.{etag}").open("rb")
    except FileNotFoundError:
        if not folder.exists():
            raise _missing(folder.name) from None
        raise BlobMismatch(f"part {number} was not uploaded under the ETag {etag}") from None


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _made_of(path: Path, etags: Sequence[str]) -> bool:
    """Return True when the file is the parts of these ETags, one after the other and nothing more."""
    named = [_ETAG.fullmatch(etag) for etag in etags]
    try:
        with path.open("rb") as file:
            same = all(name and _digest(file, int(name[2])) == name[1] for name in named)
            return same and not file.read(1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def _digest(file: BinaryIO, size_bytes: int) -> str:
    hasher = hashlib.sha256()
    while size_bytes and (chunk := file.read(min(CHUNK_BYTES, size_bytes))):
        hasher.update(chunk)
        size_bytes -= len(chunk)
    return hasher.hexdigest()


def _missing(upload: str) -> BlobMissing:
    return BlobMissing(f"there is no upload {upload[:64]!r} for this key; begin a new one")
