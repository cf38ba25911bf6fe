"""Sends files to storage: only those that the project has not got, several at a time."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from giornata.client.connection import LONG_TIMEOUT, Connection
from giornata.client.storage.transfer import upload_file
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.uploads import (
    Blob,
    CompleteUpload,
    FileToUpload,
    RenewParts,
    SignedPart,
    UploadReply,
    UploadRequest,
    UploadTicket,
)

AT_A_TIME = 4
# URLs live for minutes only: they are asked for shortly before they are used.
TICKETS_PER_REQUEST = 50

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), from one thread at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFile:
    """A file whose bytes the server has, and has verified. `sent` is False when it had them already."""

    path: Path
    sha256: str
    size_bytes: int
    sent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file to send. Its bytes are not to change before it has arrived."""

    path: Path
    sha256: str
    size_bytes: int


def local_files(paths: Sequence[Path]) -> list[LocalFile]:
    """The files with their hashes. Raises InvalidInput with every file that cannot be read, or is empty."""
    files, faults = [], []
    for path in paths:
        try:
            file = _hashed(path)
        except OSError as error:
            faults.append(Fault(where=str(path), message=f"cannot be read: {error.strerror or error}"))
            continue
        if not file.size_bytes:
            faults.append(Fault(where=str(path), message="is empty", hint="leave it out"))
        files.append(file)
    if faults:
        raise InvalidInput(faults)
    return files


def upload(
    connection: Connection, files: Sequence[LocalFile], *, progress: Progress | None = None
) -> tuple[UploadedFile, ...]:
    """Bring the server to have all of these; equal bytes travel once. Raises what the server or storage says."""
    distinct = {file.sha256: file for file in files}
    meter = _UploadMeter(sum(file.size_bytes for file in distinct.values()), progress)
    sent: set[str] = set()
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="upload") as pool:
        for batch in _batches(list(distinct.values()), TICKETS_PER_REQUEST):
            tickets = _tickets(connection, batch)
            missing = [ticket for ticket in tickets if not ticket.exists]
            for ticket in tickets:
                if ticket.exists:
                    meter.at(ticket.sha256, distinct[ticket.sha256].size_bytes)
            try:
                list(pool.map(lambda ticket: _send(connection, distinct[ticket.sha256], ticket, meter), missing))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            sent |= {ticket.sha256 for ticket in missing}
    return tuple(
        UploadedFile(path=file.path, sha256=file.sha256, size_bytes=file.size_bytes, sent=file.sha256 in sent)
        for file in files
    )


class _UploadMeter:
    """Adds up how far several threads are, each with its file."""

    def __init__(self, total_bytes: int, progress: Progress | None) -> None:
        self._total_bytes, self._progress, self._of_file = total_bytes, progress, dict[str, int]()
        self._done_bytes = 0
        self._lock = threading.Lock()

    def at(self, sha256: str, done_bytes: int) -> None:
        """Note the sent bytes of the file; the count steps back when something has to be sent again."""
        with self._lock:
            self._done_bytes += done_bytes - self._of_file.get(sha256, 0)
            self._of_file[sha256] = done_bytes
            if self._progress is not None:
                self._progress(self._done_bytes, self._total_bytes)


def _tickets(connection: Connection, files: Sequence[LocalFile]) -> tuple[UploadTicket, ...]:
    wanted = tuple(FileToUpload(sha256=file.sha256, size_bytes=file.size_bytes) for file in files)
    return connection.call("POST", "/v1/uploads", UploadReply, body=UploadRequest(files=wanted)).items


def _send(connection: Connection, file: LocalFile, ticket: UploadTicket, meter: _UploadMeter) -> None:
    route = f"/v1/uploads/{ticket.upload_id}"

    def renew(numbers: list[int]) -> list[SignedPart]:
        body = RenewParts(numbers=tuple(numbers))
        fresh = connection.call("POST", f"{route}/urls", UploadTicket, body=body)
        if fresh.put is not None:
            return [SignedPart(number=1, size_bytes=file.size_bytes, request=fresh.put)]
        return list(fresh.parts)

    etags = upload_file(connection.http, file.path, ticket, renew=renew, progress=partial(meter.at, file.sha256))
    done = CompleteUpload(etags=tuple(etags))
    connection.call("POST", f"{route}/complete", Blob, body=done, timeout=LONG_TIMEOUT)


def _batches(files: list[LocalFile], size: int) -> Iterator[list[LocalFile]]:
    for begin in range(0, len(files), size):
        yield files[begin : begin + size]


def _hashed(path: Path) -> LocalFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return LocalFile(path=path, sha256=digest.hexdigest(), size_bytes=file.tell())
