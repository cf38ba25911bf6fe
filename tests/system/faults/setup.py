"""What the control plane under attack stands on: where its rows and its bytes are, and how long its URLs last."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.fixtures.files_below import files_below
from tests.fixtures.seaweed import Seaweed
from tests.system.conftest import SECRETS_KEY
from tests.system.faults.processes import LEASE_S, LONG_LEASE_S

from giornata.blobs.s3 import s3_client


class StoredBytes(Protocol):
    """Bytes where they lie, past every API of the platform."""

    signed: str
    """A regular expression for the path of a signed URL, and its query."""

    def contents(self) -> list[str]:
        """Everything that is there, what is half there included."""

    def read(self, name: str) -> bytes:
        """One object."""

    def write(self, name: str, data: bytes) -> None:
        """Put, or replace, an object."""

    def delete(self, name: str) -> None:
        """Remove an object."""

    @contextmanager
    def gone(self) -> Iterator[None]:
        """All of it is away for as long as the block lasts."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of the server's own."""

    root: Path
    signed: str = "^/v1/blobs/"

    def contents(self) -> list[str]:
        return [str(path) for path in files_below(self.root)]

    def read(self, name: str) -> bytes:
        return Path(name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        Path(name).write_bytes(data)

    def delete(self, name: str) -> None:
        Path(name).unlink()

    @contextmanager
    def gone(self) -> Iterator[None]:
        elsewhere = self.root.with_name("elsewhere")
        self.root.rename(elsewhere)
        yield
        # The server may have made the folder anew; what it could write there meanwhile counts as well.
        shutil.copytree(elsewhere, self.root, dirs_exist_ok=True)
        shutil.rmtree(elsewhere)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket of a server that speaks S3. The platform's own requests have no signature in the URL."""

    seaweed: Seaweed
    name: str

    @property
    def signed(self) -> str:
        return f"^/{self.name}/(?=.*X-Amz-Signature)"

    @property
    def port(self) -> int:
        """Where the server listens."""
        return urlsplit(self.seaweed.endpoint_url).port or 80

    @cached_property
    def client(self) -> Any:
        """boto3's, without any proxy."""
        return s3_client(self.seaweed.place(), self.seaweed.credentials)

    def settings(self, endpoint: str) -> dict[str, str]:
        """Of a control plane that reaches it by `endpoint`."""
        return {
            "blobs": f"s3://{self.name}?endpoint={endpoint}",
            "s3_access_key_id": self.seaweed.credentials.access_key_id,
            "s3_secret_access_key": self.seaweed.credentials.secret_access_key,
        }

    def contents(self) -> list[str]:
        """Few enough for one page."""
        uploads = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return self._objects() + [f"{each['Key']} (an upload)" for each in uploads]

    def _objects(self) -> list[str]:
        return [each["Key"] for each in self.client.list_objects_v2(Bucket=self.name).get("Contents", [])]

    def read(self, name: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.name, Key=name)["Body"].read()
        return content

    def write(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=name, Body=data)

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=name)

    @contextmanager
    def gone(self) -> Iterator[None]:
        kept = {key: self.read(key) for key in self._objects()}
        for key in kept:
            self.delete(key)
        self.client.delete_bucket(Bucket=self.name)
        yield
        self.client.create_bucket(Bucket=self.name)
        for key, data in kept.items():
            self.write(key, data)


@dataclass(frozen=True, kw_only=True)
class InstallationSetup:
    """None: what an installation has of itself, SQLite, a folder, URLs for a quarter of an hour. `model_hosts` are
    hosts of this machine from which the server may fetch models."""

    database: str | None = None
    bucket: Bucket | None = None
    upload_url_s: float | None = None
    lease_s: float = LEASE_S
    model_hosts: tuple[str, ...] = ()

    def storage(self, data: Path) -> StoredBytes:
        """Where the bytes of the server on `data` are."""
        return Folder(root=data / "blobs") if self.bucket is None else self.bucket

    def settings(self, storage_url: str | None = None) -> dict[str, Any]:
        """Of the server. `storage_url` is a proxy before the bucket."""
        told: dict[str, Any] = {"secrets_key": SECRETS_KEY}
        told |= {} if self.database is None else {"database": self.database}
        told |= {} if self.upload_url_s is None else {"upload_url_s": self.upload_url_s}
        if self.bucket is None:
            return told
        return told | self.bucket.settings(storage_url or self.bucket.seaweed.endpoint_url)

    def environment(self, storage_url: str) -> dict[str, str]:
        """The same, as the server's process is told it."""
        told = self.settings(storage_url) | {"model_hosts": json.dumps(self.model_hosts)}
        return {f"GIORNATA_{name.upper()}": str(value) for name, value in told.items()}


EMBEDDED = InstallationSetup()
PATIENT = InstallationSetup(lease_s=LONG_LEASE_S)
