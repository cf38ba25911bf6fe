"""One command at a time writes to a storage: `run`, `encode` and `ingest` hold a record of their owner there.

The record, OWNER, is written by conditional writes alone. Its owner renews it every BEAT_S. Another command refuses
to begin, or takes over what is dead: a record that its owner ended, whose process is gone from this very machine, or
that nobody renewed for DEAD_S. A former owner that wakes up finds the record of another, and writes no more.

A conditional write writes a file only if the file is still what the writer has read. pyarrow's file systems have no
such write. On S3 it is a conditional put (If-None-Match, If-Match) by boto3. In a folder it is a comparison and a
rename under a lock of the folder.
"""

import fcntl
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import boto3.session
import psutil
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.manifest import json_bytes
from giornata.pretrain.data.storage import Storage

OWNER = "owner.json"
BEAT_S, DEAD_S, POLL_S = 10.0, 60.0, 1.0
CLOCK_UNCERTAINTY_S = 1.0
"""By so much two readings of when a process began may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceClock:
    """The clock of the fence. Tests give their own."""

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    wait: Callable[[float], object] = time.sleep


@dataclass(slots=True, kw_only=True)
class OwnedStorage:
    """A storage that this command owns until another command takes the storage over."""

    storage: Storage
    record: dict[str, Any]
    tag: str
    clock: FenceClock = field(default_factory=FenceClock)

    @property
    def token(self) -> str:
        """The owner's token, by which other processes of the same command check."""
        return str(self.record["token"])

    def renew(self, *, ended: bool = False) -> None:
        """Tell that the owner lives, or has ended. Raises InvalidInput when another command is the owner by now."""
        self.record |= {"renewed_ms": self.clock.now_ms(), "ended": ended}
        tag = write_if(self.storage, OWNER, json_bytes(self.record), self.tag)
        if tag is None:  # also where a write was answered by an error, and done
            check(self.storage, self.token)
            found = read_tagged(self.storage, OWNER)
            tag = self.tag if found is None else found[1]
        self.tag = tag


def check(storage: Storage, token: str) -> None:
    """Raise InvalidInput when the storage has another owner than the one of this token."""
    found = read_tagged(storage, OWNER)
    record = {} if found is None else json.loads(found[0])
    if record.get("token") != token:
        raise InvalidInput([_fault(storage, record, "was taken over by", "this command ends and writes no more")])


def claim(storage: Storage, command: str, clock: FenceClock | None = None) -> OwnedStorage:
    """Become the owner. Waits for at most DEAD_S where it has to see whether the owner of before is alive. Raises
    InvalidInput, which says who holds the storage, when it is."""
    clock = clock or FenceClock()
    process = psutil.Process()
    record = {
        "token": uuid.uuid4().hex,
        "command": command,
        "machine": _machine(),
        "process": process.pid,
        "began_s": process.create_time(),
        "since_ms": clock.now_ms(),
        "renewed_ms": clock.now_ms(),
        "ended": False,
    }
    seen, watched_since_ms = "", clock.now_ms()
    while True:
        content, tag = read_tagged(storage, OWNER) or (None, None)
        other = None if content is None else json.loads(content)
        watched = clock.now_ms() - watched_since_ms > DEAD_S * 1000  # whatever the other machine's clock says
        if other is None or watched or _dead(other, clock.now_ms()):
            record["renewed_ms"] = clock.now_ms()
            written = write_if(storage, OWNER, json_bytes(record), tag)
            if written is not None:
                return OwnedStorage(storage=storage, record=record, tag=written, clock=clock)
        elif other["machine"] == record["machine"] or tag != (seen or tag):
            hint = f"wait until it has ended, or end it; one that was killed is taken over after {DEAD_S:.0f} s"
            raise InvalidInput([_fault(storage, other, "is held by", hint)])
        else:
            seen = tag or ""
            clock.wait(POLL_S)


@contextmanager
def holding(
    storage: Storage, command: str, *, lost: Callable[[], None] = lambda: None, clock: FenceClock | None = None
) -> Iterator[OwnedStorage]:
    """Own the storage within. `lost` is called once, in another thread, when another command takes over."""
    held, done = claim(storage, command, clock), threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_S):
            try:
                held.renew()
            except InvalidInput:
                lost()
                return
            except OSError:
                continue  # the next one may be written

    beating = threading.Thread(target=beat, name="pretrain-fence", daemon=True)
    beating.start()
    try:
        yield held
    finally:
        done.set()
        beating.join()
        with suppress(InvalidInput, OSError):  # another command has it already, or may have it after DEAD_S
            held.renew(ended=True)


def _dead(record: dict[str, Any], now_ms: int) -> bool:
    if record["ended"] or now_ms - record["renewed_ms"] > DEAD_S * 1000:
        return True
    if record["machine"] != _machine():
        return False
    try:
        process = psutil.Process(record["process"])
        gone = process.status() == psutil.STATUS_ZOMBIE  # was killed, and nobody has asked how it ended
        return (
            gone or abs(process.create_time() - record["began_s"]) > CLOCK_UNCERTAINTY_S
        )  # or another has the number
    except psutil.NoSuchProcess:
        return True


def _machine() -> str:
    """Name the scope of a process number: this start of this machine, and its container."""
    boot, numbers = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    known = [boot.read_text().strip(), str(numbers.readlink())] if boot.exists() and numbers.exists() else []
    return " ".join([socket.gethostname(), *known])


def _fault(storage: Storage, record: dict[str, Any], what: str, hint: str) -> Fault:
    if not record:
        return Fault(where=str(storage), message=f"{OWNER} is gone", hint=hint)
    since = datetime.fromtimestamp(record["since_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    machine = record["machine"].split(" ")[0]
    who = f"giornata pretrain {record['command']} (process {record['process']} on {machine}) since {since}"
    return Fault(where=str(storage), message=f"{what} {who}", hint=hint)


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
