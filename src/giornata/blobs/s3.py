"""Keep objects on anything that speaks S3.

Signed URLs are SigV4 query signatures. A PUT signs Content-Length, and a whole object's PUT signs its SHA-256 too
(`x-amz-checksum-sha256`), so that storage refuses other bytes by itself. SeaweedFS 4.48 does: another length or
another checksum header is SignatureDoesNotMatch (403), a body that does not hash is BadDigest (400), and nothing
is stored; the contract tests hold it to that. A server that ignored the checksum would be found out by `digest`.
"""

import base64
import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import boto3.session
from botocore.config import Config

from giornata.blobs.object_names import attachment, checked_key, checked_prefix
from giornata.blobs.s3_faults import translated
from giornata.control.ports.blobs import ObjectInfo, SignedRequest, StaleUpload, Stored
from giornata.control.ports.clock import Clock
from giornata.domain.errors import BlobMismatch, BlobMissing, GiornataError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

OCTETS = "application/octet-stream"
CHUNK_BYTES = 2**20
WRITE_PART_BYTES = 16 * 2**20
_MD5 = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Credentials:
    """The access key of S3. Without it, boto3's own chain is asked (environment, profile, instance role)."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """The place of objects in S3. `endpoint_url` None is AWS itself; `path_style` puts the bucket into the path.

    `verifies_checksums` says that the server checks SHA-256 checksums at upload, so that `digest` may believe the
    one it reports for a whole object instead of reading the bytes again.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str = "us-east-1"
    path_style: bool = True
    verifies_checksums: bool = False
    page_size: int = 1000


def s3_client(place: S3Place, credentials: S3Credentials | None, *, read_timeout_s: float = 60) -> "S3Client":
    """Return a client that gives up: 5 s to connect, `read_timeout_s` for a reply, 4 tries."""
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if place.path_style else "virtual"},
        connect_timeout=5,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": 4},
        max_pool_connections=32,
        # Otherwise every signed PUT would demand a CRC that browsers and curl do not send.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    given: dict[str, Any] = {}
    if credentials is not None:
        given = {
            "aws_access_key_id": credentials.access_key_id,
            "aws_secret_access_key": credentials.secret_access_key,
            "aws_session_token": credentials.session_token,
        }
    session = boto3.session.Session()
    client: S3Client = session.client(
        "s3", endpoint_url=place.endpoint_url, region_name=place.region, config=config, **given
    )
    return client


class S3Blobs:
    """`Blobs` in one bucket, below one prefix. `client` may be shared between threads."""

    def __init__(self, place: S3Place, client: "S3Client", *, clock: Clock) -> None:
        self._place, self._client, self._clock = place, client, clock
        self._prefix = checked_key(place.prefix.strip("/")) + "/" if place.prefix.strip("/") else ""

    # ---- signing: local, nothing is sent ----

    def sign_put(self, key: str, *, size_bytes: int, sha256: str, expires_in_s: int) -> SignedRequest:
        checksum = _base64_of(sha256)
        params = {"ContentLength": size_bytes, "ChecksumSHA256": checksum}
        headers = {"Content-Length": str(size_bytes), "x-amz-checksum-sha256": checksum}
        return self._sign("put_object", key, params, headers=headers, expires_in_s=expires_in_s)

    def sign_part(self, key: str, upload: str, number: int, size_bytes: int, expires_in_s: int) -> SignedRequest:
        params = {"UploadId": upload, "PartNumber": number, "ContentLength": size_bytes}
        headers = {"Content-Length": str(size_bytes)}
        return self._sign("upload_part", key, params, headers=headers, expires_in_s=expires_in_s)

    def sign_get(
        self, key: str, *, expires_in_s: int, filename: str | None = None, media_type: str | None = None
    ) -> SignedRequest:
        params = {"ResponseContentType": media_type or OCTETS}
        if filename is not None:
            params["ResponseContentDisposition"] = attachment(filename)
        return self._sign("get_object", key, params, headers={}, expires_in_s=expires_in_s)

    def _sign(
        self, operation: str, key: str, params: dict[str, Any], *, headers: dict[str, str], expires_in_s: int
    ) -> SignedRequest:
        method = "GET" if operation == "get_object" else "PUT"
        # Taken before signing: the URL never ends sooner than it is said to.
        now = datetime.fromtimestamp(self._clock.now_ms() // 1000, UTC)
        with translated(key):
            url = self._client.generate_presigned_url(
                operation, Params=self._at(key) | params, ExpiresIn=expires_in_s, HttpMethod=method
            )
        return SignedRequest(
            method=method, url=url, headers=headers, expires_at=now + timedelta(seconds=expires_in_s)
        )

    # ---- multipart ----

    def begin_multipart(self, key: str) -> str:
        with translated(key):
            return self._client.create_multipart_upload(**self._at(key))["UploadId"]

    def complete_multipart(self, key: str, upload: str, etags: Sequence[str]) -> None:
        if not etags:
            raise BlobMismatch(f"an upload to {key} is completed with at least one part")
        parts: Any = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, start=1)]
        try:
            with translated(key):
                self._client.complete_multipart_upload(
                    **self._at(key), UploadId=upload, MultipartUpload={"Parts": parts}
                )
        except BlobMissing:
            if not self._made_of(key, etags):
                raise

    def abort_multipart(self, key: str, upload: str) -> None:
        try:
            with translated(key):
                self._client.abort_multipart_upload(**self._at(key), UploadId=upload)
        except BlobMissing:
            return

    def stale_multiparts(self, older_than: datetime) -> Iterator[StaleUpload]:
        for page in self._pages("list_multipart_uploads", ""):
            for row in page.get("Uploads", ()):
                if row["Initiated"] < older_than:
                    yield StaleUpload(self._without_prefix(row["Key"]), row["UploadId"], row["Initiated"])

    def sweep_leftovers(self) -> int:
        return 0  # an object is there whole or not at all, and parts belong to uploads

    def _made_of(self, key: str, etags: Sequence[str]) -> bool:
        """Return True when the object's ETag is the one that these parts give: the MD5 of their MD5s, and their
        number.

        Under KMS encryption ETags are no MD5s, and the number of parts has to do; `digest` decides anyway.
        """
        try:
            with translated(key):
                head = self._client.head_object(**self._at(key))
        except BlobMissing:
            return False
        found, plain = head["ETag"].strip('"'), [etag.strip('"') for etag in etags]
        if str(head.get("ServerSideEncryption", "")).startswith("aws:kms") or not all(map(_MD5.fullmatch, plain)):
            return found.endswith(f"-{len(plain)}")
        joined = hashlib.md5(b"".join(map(bytes.fromhex, plain)), usedforsecurity=False).hexdigest()
        return found == f"{joined}-{len(plain)}"

    # ---- objects ----

    def digest(self, key: str) -> Stored:
        if self._place.verifies_checksums:
            with translated(key):
                head = self._client.head_object(**self._at(key), ChecksumMode="ENABLED")
            checksum = head.get("ChecksumSHA256", "")
            # A multipart object's checksum is one of checksums, and says so by its suffix or its type.
            if checksum and "-" not in checksum and head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
                return Stored(size_bytes=head["ContentLength"], sha256=base64.b64decode(checksum).hex())
        hasher, size_bytes = hashlib.sha256(), 0
        for chunk in self.read(key):
            hasher.update(chunk)
            size_bytes += len(chunk)
        return Stored(size_bytes=size_bytes, sha256=hasher.hexdigest())

    def size(self, key: str) -> int:
        with translated(key):
            return self._client.head_object(**self._at(key))["ContentLength"]

    def read(self, key: str) -> Iterator[bytes]:
        with translated(key):
            body = self._client.get_object(**self._at(key))["Body"]
            try:
                yield from body.iter_chunks(CHUNK_BYTES)
            finally:
                body.close()

    def write(self, key: str, chunks: Iterable[bytes]) -> Stored:
        """Write with one PUT when the object fits into a part, otherwise with a multipart upload; holds one part in
        memory.
        """
        hasher, size_bytes, etags = hashlib.sha256(), 0, list[str]()
        upload: str | None = None
        try:
            for part, last in _parts(chunks):
                hasher.update(part)
                size_bytes += len(part)
                if last and upload is None:
                    self._put_whole(key, part)
                    break
                upload = upload or self.begin_multipart(key)
                etags.append(self._put_part(key, upload, len(etags) + 1, part))
            if upload is not None:
                self.complete_multipart(key, upload, etags)
        except BaseException:
            if upload is not None:
                with contextlib.suppress(GiornataError):  # what went wrong first is what matters
                    self.abort_multipart(key, upload)
            raise
        return Stored(size_bytes=size_bytes, sha256=hasher.hexdigest())

    def delete(self, key: str) -> bool:
        try:
            self.size(key)  # S3's own answer does not say whether there was anything
        except BlobMissing:
            return False
        with translated(key):
            self._client.delete_object(**self._at(key))
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for page in self._pages("list_objects_v2", checked_prefix(prefix)):
            for row in page.get("Contents", ()):
                if not row["Key"].endswith("/"):  # a console's idea of a folder
                    yield ObjectInfo(
                        key=self._without_prefix(row["Key"]),
                        size_bytes=row["Size"],
                        modified_at=row["LastModified"].astimezone(UTC),
                    )

    def _put_whole(self, key: str, body: bytes) -> None:
        checksum = _base64_of(hashlib.sha256(body).hexdigest())
        with translated(key):
            self._client.put_object(**self._at(key), Body=body, ChecksumSHA256=checksum)

    def _put_part(self, key: str, upload: str, number: int, body: bytes) -> str:
        with translated(key):
            reply = self._client.upload_part(**self._at(key), UploadId=upload, PartNumber=number, Body=body)
        return reply["ETag"]

    def _pages(self, operation: Any, prefix: str) -> Iterator[Any]:
        with translated(prefix):
            yield from self._client.get_paginator(operation).paginate(
                Bucket=self._place.bucket,
                Prefix=self._prefix + prefix,
                PaginationConfig={"PageSize": self._place.page_size},
            )

    def _at(self, key: str) -> Any:
        return {"Bucket": self._place.bucket, "Key": self._prefix + checked_key(key)}

    def _without_prefix(self, key: str) -> str:
        return key.removeprefix(self._prefix)


def _base64_of(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _parts(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield the chunks as parts of WRITE_PART_BYTES; True comes with the last, which may be shorter, or empty."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) > WRITE_PART_BYTES:
            yield bytes(held[:WRITE_PART_BYTES]), False
            del held[:WRITE_PART_BYTES]
    yield bytes(held), True
