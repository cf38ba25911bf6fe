"""Moving files to and from storage by signed URLs.

Used by the SDK and by the agent. What is sent is exactly the signed request: neither the client's key nor its
cookies go along. Files are streamed, never held in memory.
"""

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import httpx

from giornata.client.retry import Backoff
from giornata.client.storage.storage_requests import StorageTrouble, lost, refusal, storage_request
from giornata.domain.errors import BlobMismatch, BlobMissing, Forbidden, Unavailable
from giornata.protocol.uploads import SignedPart, SignedUrl, UploadTicket

CHUNK_BYTES = 2**18
RENEW_AT_ONCE = 50
_RENEW_BEFORE_END = timedelta(seconds=5)

Renew = Callable[[list[int]], list[SignedPart]]
Progress = Callable[[int], None]
_PATIENT = Backoff(first_s=0.5, most_s=30.0)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def upload_file(
    http: httpx.Client,
    path: Path,
    ticket: UploadTicket,
    *,
    renew: Renew,
    progress: Progress | None = None,
    backoff: Backoff = _PATIENT,
    now: Callable[[], datetime] = _utc_now,
) -> list[str]:
    """Send the file as the ticket says; returns the ETags that complete the upload, in order.

    `renew` gets numbers of parts, and returns them with fresh URLs; for a single PUT it gets an empty list, and
    returns one entry. It is called shortly before a URL runs out, and when storage says that one did. `progress`
    gets the bytes of the file that were sent so far; the count steps back when something is sent again.

    Raises BlobMismatch when the file is not what the ticket is for, BlobMissing when the upload is gone (ask for a
    new ticket), Forbidden when even fresh URLs are refused, and Unavailable when storage cannot be reached.
    """
    if ticket.exists:
        return []
    parts = _parts(path, ticket)
    single = ticket.put is not None
    upload = _Upload(http, path, parts, single=single, renew=renew, progress=progress, backoff=backoff, now=now)
    return upload.run()


def download(
    http: httpx.Client,
    request: SignedUrl,
    path: Path,
    *,
    sha256: str,
    size_bytes: int,
    progress: Progress | None = None,
    renew: Callable[[], SignedUrl] | None = None,
    backoff: Backoff = _PATIENT,
    part: Path | None = None,
) -> None:
    """Fetch an object into `path`, which appears only when it is whole, verified and synced.

    A connection that drops is taken up where it broke off. Wrong bytes are fetched once more from the start, then
    BlobMismatch. `renew` gives a fresh URL for the same object. Raises BlobMissing, Forbidden when the URL ran out
    and there is no other, Unavailable, and OSError when the disk does not take it.

    `part` is a file on the same file system that holds the bytes on their way. A call that fails or is ended leaves
    the file, and the next call goes on behind its bytes. The caller sees that no two calls use one part at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fetch = _Download(
        http,
        request,
        sha256=sha256,
        size_bytes=size_bytes,
        progress=progress,
        renew=renew,
        backoff=backoff,
        part=part,
    )
    try:
        fetch.into(path)
    except BlobMismatch:
        fetch.into(path)


class _Upload:
    """One file on its way up."""

    def __init__(
        self,
        http: httpx.Client,
        path: Path,
        parts: tuple[SignedPart, ...],
        *,
        single: bool,
        renew: Renew,
        progress: Progress | None,
        backoff: Backoff,
        now: Callable[[], datetime],
    ) -> None:
        self._http, self._path, self._parts, self._single = http, path, parts, single
        self._renew, self._progress, self._backoff = renew, progress or _nobody, backoff
        self._urls = {part.number: part.request for part in parts}
        self._now, self._trusts_clock = now, True

    def run(self) -> list[str]:
        etags, offset = list[str](), 0
        for part in self._parts:
            etag = self._send(part, offset)
            if etag is None and not self._single:
                raise Unavailable(
                    f"storage sent no ETag for part {part.number}; check proxies between this machine and storage"
                )
            etags += [] if etag is None else [etag]
            offset += part.size_bytes
        return etags

    def _send(self, part: SignedPart, offset: int) -> str | None:
        failed, stale = 0, False
        while True:
            if stale or self._runs_out(part.number):
                self._renew_from(part.number)
            try:
                return self._put(part, offset)
            except StorageTrouble as trouble:
                failed += 1
                if failed > self._backoff.retries:
                    raise trouble.error from trouble
                # A server that hangs up on a late URL may not get to say so: renewed from the second failure on.
                stale = isinstance(trouble.error, Forbidden) or failed >= 2
                self._backoff.pause(failed)

    def _put(self, part: SignedPart, offset: int) -> str | None:
        body = _slice(self._path, offset, part.size_bytes, self._progress)
        request = storage_request(self._urls[part.number], {"Content-Length": str(part.size_bytes)}, body)
        try:
            response = self._http.send(request, auth=None, follow_redirects=False)
        except httpx.TransportError as error:
            raise StorageTrouble(lost(error)) from error
        if not response.is_success:
            raise refusal(response)
        etag: str | None = response.headers.get("ETag")
        return etag and etag.strip('"')

    def _runs_out(self, number: int) -> bool:
        left = self._urls[number].expires_at - self._now()
        return self._trusts_clock and left < _RENEW_BEFORE_END

    def _renew_from(self, number: int) -> None:
        """Fresh URLs for this part, and for those behind it that end no later."""
        ends_at = self._urls[number].expires_at
        behind = [each for each, url in self._urls.items() if each > number and url.expires_at <= ends_at]
        wanted = [number, *behind[: RENEW_AT_ONCE - 1]]
        fresh = self._renew([] if self._single else wanted)
        given = {wanted[0]: fresh[0]} if self._single and fresh else {part.number: part for part in fresh}
        if number not in given:
            raise Unavailable(f"the server gave no fresh URL for part {number}")
        self._urls |= {each: given[each].request for each in wanted if each in given}
        # A fresh URL that looks spent says that this machine's clock is wrong; from here on storage has to say so.
        self._trusts_clock = self._trusts_clock and not self._runs_out(number)


class _Download:
    """One object on its way down."""

    def __init__(
        self,
        http: httpx.Client,
        request: SignedUrl,
        *,
        sha256: str,
        size_bytes: int,
        progress: Progress | None,
        renew: Callable[[], SignedUrl] | None,
        backoff: Backoff,
        part: Path | None = None,
    ) -> None:
        self._http, self._request, self._renew, self._backoff, self._part = http, request, renew, backoff, part
        self._sha256, self._size_bytes, self._progress = sha256, size_bytes, progress or _nobody
        self._received_bytes, self._hasher = 0, hashlib.sha256()

    def into(self, path: Path) -> None:
        """Make one whole try: fill a file aside, verify and rename it."""
        aside = self._part or path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with aside.open("a+b") as file:
                self._take_up(file)
                if self._received_bytes < self._size_bytes:
                    self._fill(file)
                self._verify()
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
            _sync_folder(path.parent)
        except (BlobMismatch, BlobMissing, OSError):
            aside.unlink(missing_ok=True)  # such bytes are of no use, and a full disk has no room for them
            raise
        finally:
            if self._part is None:
                aside.unlink(missing_ok=True)

    def _take_up(self, file: BinaryIO) -> None:
        """Count and hash the bytes that an earlier call left."""
        self._received_bytes, self._hasher = 0, hashlib.sha256()
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            self._hasher.update(chunk)
            self._received_bytes += len(chunk)
        if self._received_bytes > self._size_bytes:
            self._restart(file)

    def _fill(self, file: BinaryIO) -> None:
        failed = 0
        while True:
            before_bytes = self._received_bytes
            try:
                self._stream(file)
                return
            except StorageTrouble as trouble:
                failed = 1 if self._received_bytes > before_bytes else failed + 1
                if failed > self._backoff.retries or (isinstance(trouble.error, Forbidden) and self._renew is None):
                    raise trouble.error from trouble
                if isinstance(trouble.error, Forbidden) and self._renew is not None:
                    self._request = self._renew()
                self._backoff.pause(failed)

    def _stream(self, file: BinaryIO) -> None:
        wanted = {"Accept-Encoding": "identity"}
        if self._received_bytes:
            wanted["Range"] = f"bytes={self._received_bytes}-"
        try:
            response = self._http.send(
                storage_request(self._request, wanted), stream=True, auth=None, follow_redirects=False
            )
            with contextlib.closing(response):
                self._begin(response, file)
                for chunk in response.iter_raw():  # with a size, what was gathered would be lost with the line
                    self._take(chunk, file)
        except httpx.TransportError as error:
            raise StorageTrouble(lost(error)) from error
        if self._received_bytes < self._size_bytes:
            raise StorageTrouble(Unavailable(f"storage sent {self._received_bytes} of {self._size_bytes} bytes"))

    def _begin(self, response: httpx.Response, file: BinaryIO) -> None:
        """Make the file ready for what the reply holds: all of the object, or the rest of it."""
        if response.status_code == 416 or (response.status_code == 206 and not self._goes_on(response)):
            self._restart(file)
            raise StorageTrouble(Unavailable("storage could not resume the download after the connection broke"))
        if not response.is_success:
            response.read()
            raise refusal(response)
        if response.status_code != 206:
            length = response.headers.get("Content-Length", str(self._size_bytes))
            if length != str(self._size_bytes):
                raise BlobMismatch(f"storage has {length} bytes, not {self._size_bytes}")
            self._restart(file)

    def _goes_on(self, response: httpx.Response) -> bool:
        begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        return begins is not None and int(begins[1]) == self._received_bytes

    def _take(self, chunk: bytes, file: BinaryIO) -> None:
        self._received_bytes += len(chunk)
        if self._received_bytes > self._size_bytes:
            raise BlobMismatch(f"storage sent more than the {self._size_bytes} bytes that there should be")
        self._hasher.update(chunk)
        file.write(chunk)
        self._progress(self._received_bytes)

    def _restart(self, file: BinaryIO) -> None:
        file.seek(0)
        file.truncate()
        self._received_bytes, self._hasher = 0, hashlib.sha256()

    def _verify(self) -> None:
        found = self._hasher.hexdigest()
        if found != self._sha256:
            raise BlobMismatch(f"the bytes received hash to {found}, not {self._sha256}")


def _parts(path: Path, ticket: UploadTicket) -> tuple[SignedPart, ...]:
    """The ticket's parts; a single PUT counts as one. Raises BlobMismatch when the file has another size."""
    size_bytes = path.stat().st_size
    if ticket.put is not None:
        return (SignedPart(number=1, size_bytes=size_bytes, request=ticket.put),)
    planned_bytes = sum(part.size_bytes for part in ticket.parts)
    if planned_bytes != size_bytes:
        raise BlobMismatch(f"{path.name} has {size_bytes} bytes, and its ticket is for {planned_bytes}")
    return tuple(sorted(ticket.parts, key=lambda part: part.number))


def _slice(path: Path, offset: int, size_bytes: int, progress: Progress) -> Iterator[bytes]:
    """`size_bytes` of the file from `offset` on. Raises BlobMismatch when there are fewer."""
    with path.open("rb") as file:
        file.seek(offset)
        sent_bytes = 0
        while sent_bytes < size_bytes:
            chunk = file.read(min(CHUNK_BYTES, size_bytes - sent_bytes))
            if not chunk:
                raise BlobMismatch(f"{path.name} became shorter while it was being sent")
            sent_bytes += len(chunk)
            yield chunk
            progress(offset + sent_bytes)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _nobody(_: int) -> None: ...
