"""Every test that asks for `place` runs on a folder behind a real HTTP server, and on a real SeaweedFS."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.contract.blobs.storage_under_test import ShiftedClock, StorageUnderTest
from tests.fixtures.blob_server import blob_app, listening, serving, url_of
from tests.fixtures.seaweed import Seaweed, seaweed  # noqa: F401

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.blobs.s3 import S3Blobs, s3_client

PAGE_SIZE = 7
SIGNING_KEY = b"k" * 32


@pytest.fixture(params=["filesystem", "s3"])
def place(request: pytest.FixtureRequest) -> StorageUnderTest:
    return request.getfixturevalue(f"{request.param}_place")


@pytest.fixture
def filesystem_place(tmp_path: Path) -> Iterator[StorageUnderTest]:
    clock = ShiftedClock()

    def let_expire() -> None:
        clock.ahead_ms += 2_000

    with listening() as bound:
        base_url = url_of(bound)
        blobs = FilesystemBlobs(tmp_path / "store", signing_key=SIGNING_KEY, base_url=base_url, clock=clock)
        with serving(blob_app(blobs), bound):
            unsigned = f"{base_url}/v1/blobs/".__add__
            yield StorageUnderTest(blobs=blobs, unsigned_url=unsigned, let_expire=let_expire)


@pytest.fixture(scope="session")
def seaweed_client(seaweed: Seaweed):  # noqa: F811
    return s3_client(seaweed.place(), seaweed.credentials)


@pytest.fixture
def s3_place(seaweed: Seaweed, seaweed_client) -> StorageUnderTest:  # noqa: F811
    prefix = f"test-{secrets.token_hex(8)}"
    blobs = S3Blobs(seaweed.place(prefix, page_size=PAGE_SIZE), seaweed_client, clock=ShiftedClock())
    unsigned = f"{seaweed.endpoint_url}/{seaweed.bucket}/{prefix}/".__add__
    # The server checks against its own clock: this is the one wait.
    return StorageUnderTest(blobs=blobs, unsigned_url=unsigned, let_expire=lambda: time.sleep(2.1))


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client
