"""A storage in a folder."""

from datetime import UTC, datetime

import pytest

from giornata.blobs import open_blobs
from giornata.standalone.storage import PictureRecord, RunRecord, RunStorage

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class StoppedClock:
    """Always the same instant."""

    def now_ms(self) -> int:
        return 1_767_323_045_000


@pytest.fixture
def storage(tmp_path):
    url = (tmp_path / "storage").as_uri()
    blobs = open_blobs(url, signing_key=bytes(32), base_url="http://localhost", clock=StoppedClock())
    return RunStorage(blobs=blobs, name="the storage")


@pytest.fixture
def record():
    picture = PictureRecord(sha256="a" * 64, name="one.png", caption=None)
    return RunRecord(
        job_id="job_1", spec={"seed": 1}, spec_sha256="b" * 64, data_sha256="c" * 64, pictures=(picture,)
    )


@pytest.fixture
def file(tmp_path):
    def write(content: bytes):
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return write
