"""Conditional writes: a file is written only if it is still what the writer has read. A fence is built on them.

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
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import boto3.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from giornata.pretrain.data.storage import Storage

_UNMET = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "404", "409", "412"}


def read_tagged(storage: Storage, name: str) -> tuple[bytes, str] | None:
    """A small file and the tag of its content, or None when there is no such file. Raises OSError."""
    if "://" not in storage.address:
        with suppress(FileNotFoundError):
            content = storage.read(name)
            return content, hashlib.sha256(content).hexdigest()
        return None
    with _asked(storage, name) as (client, where), suppress(client.exceptions.NoSuchKey):
        found = client.get_object(**where)
        return found["Body"].read(), found["ETag"]
    return None


def write_if(storage: Storage, name: str, content: bytes, tag: str | None) -> str | None:
    """Write the file if it still has this tag (None: if there is no such file) and return the new tag.

    Returns None, and writes nothing, when the file has another tag by now. Raises OSError."""
    if "://" not in storage.address:
        return _write_locally(storage, name, content, tag)
    condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
    with _asked(storage, name) as (client, where):
        try:
            return str(client.put_object(Body=content, **where, **condition)["ETag"])
        except ClientError as error:
            if error.response["Error"]["Code"] not in _UNMET:
                raise
    return None


def _write_locally(storage: Storage, name: str, content: bytes, tag: str | None) -> str | None:
    folder = Path(storage.path(name)).parent
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems lock no folders: comparison and rename are what is left
            fcntl.flock(handle, fcntl.LOCK_EX)
        if (read_tagged(storage, name) or (b"", None))[1] != tag:
            return None
        storage.write(name, content)
    finally:
        os.close(handle)
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _asked(storage: Storage, name: str) -> Iterator[tuple[Any, dict[str, str]]]:
    """The client, and the object's place for it. Failures within raise OSError."""
    bucket, key = storage.path(name).split("/", 1)
    try:
        yield _client(storage.address), {"Bucket": bucket, "Key": key}
    except (BotoCoreError, ClientError) as error:
        raise OSError(f"{storage / name}: {error}") from error


@lru_cache(maxsize=8)
def _client(address: str) -> Any:
    """A client with the address's options, as pyarrow reads them, and its keys or else those of the AWS tools."""
    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query))
    host = options.get("endpoint_override")
    if host is not None and "://" not in host:
        host = f"{options.get('scheme', 'https')}://{host}"
    session = boto3.session.Session(
        region_name=options.get("region"),
        aws_access_key_id=None if parts.username is None else unquote(parts.username),
        aws_secret_access_key=None if parts.password is None else unquote(parts.password),
    )
    config = Config(s3={"addressing_style": "path" if host else "auto"}, connect_timeout=5)
    return session.client("s3", endpoint_url=host, config=config)
