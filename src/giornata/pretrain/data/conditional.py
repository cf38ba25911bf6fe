"""Writes that succeed only while a file is still what the writer has seen: the base of a fence.

pyarrow's file systems have no such write. On S3 it is a conditional put (If-None-Match, If-Match) by boto3. In a
folder it is a comparison and a rename under a lock of the folder.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from giornata.pretrain.data.storage import Storage

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_UNMET = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "404", "409", "412"}


def read_tagged(storage: Storage, name: str) -> tuple[bytes, str] | None:
    """A small file and the tag of this content; None when there is no such file. Raises OSError."""
    if not _on_s3(storage):
        try:
            content = storage.read(name)
        except FileNotFoundError:
            return None
        return content, _tag(content)
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, key = storage.path(name).split("/", 1)
    try:
        found = _client(storage.address).get_object(Bucket=bucket, Key=key)
        return found["Body"].read(), found["ETag"]
    except ClientError as error:
        if error.response["Error"]["Code"] in {"NoSuchKey", "404"}:
            return None
        raise OSError(f"{storage / name} cannot be read: {error}") from error
    except BotoCoreError as error:
        raise OSError(f"{storage / name} cannot be read: {error}") from error


def write_if(storage: Storage, name: str, content: bytes, tag: str | None) -> str | None:
    """Write the file if it still has this tag (None: if there is no such file). Returns the new tag, or None when the
    file is another by now, and nothing was written. Raises OSError."""
    if not _on_s3(storage):
        return _write_locally(storage, name, content, tag)
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, key = storage.path(name).split("/", 1)
    client = _client(storage.address)
    try:
        if tag is None:
            written = client.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
        else:
            written = client.put_object(Bucket=bucket, Key=key, Body=content, IfMatch=tag)
    except ClientError as error:
        if error.response["Error"]["Code"] in _UNMET:
            return None
        raise OSError(f"{storage / name} cannot be written: {error}") from error
    except BotoCoreError as error:
        raise OSError(f"{storage / name} cannot be written: {error}") from error
    return written["ETag"]


def _on_s3(storage: Storage) -> bool:
    return "://" in storage.address


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_locally(storage: Storage, name: str, content: bytes, tag: str | None) -> str | None:
    folder = Path(storage.path(name)).parent
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        found = read_tagged(storage, name)
        if (None if found is None else found[1]) != tag:
            return None
        storage.write(name, content)
    return _tag(content)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems lock no folders: comparison and rename are what is left
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@lru_cache(maxsize=8)
def _client(address: str) -> "S3Client":
    """By the address's own options, as pyarrow understands them."""
    import boto3.session
    from botocore.config import Config

    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query))
    host, keys = options.get("endpoint_override"), {}
    if host is not None and "://" not in host:
        host = f"{options.get('scheme', 'https')}://{host}"
    if parts.username:
        keys = {
            "aws_access_key_id": unquote(parts.username),
            "aws_secret_access_key": unquote(parts.password or ""),
        }
    config = Config(s3={"addressing_style": "path" if host else "auto"}, connect_timeout=5, read_timeout=60)
    session = boto3.session.Session(region_name=options.get("region"), **keys)
    return session.client("s3", endpoint_url=host, config=config)
