"""From a URL to storage."""

from pathlib import Path
from urllib.parse import quote

import pytest
from tests.contract.blobs.storage_under_test import ShiftedClock
from tests.fixtures.seaweed import Seaweed

from giornata.blobs import open_blobs
from giornata.blobs.s3 import S3Credentials
from giornata.control.ports.blobs import Blobs
from giornata.domain.errors import InvalidInput

ANYBODY = S3Credentials(access_key_id="a", secret_access_key="b")


def opened(url: str, credentials: S3Credentials | None = ANYBODY) -> Blobs:
    return open_blobs(
        url, signing_key=b"k" * 32, base_url="http://h", clock=ShiftedClock(), s3_credentials=credentials
    )


def test_file_url_opens_folder_with_quoted_path(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    blobs = opened(f"file://{quote(str(folder))}")
    blobs.write("a", [b"x"])
    assert (folder / "objects" / "a").read_bytes() == b"x"


def test_s3_url_opens_bucket_with_prefix_and_endpoint(seaweed: Seaweed) -> None:
    url = f"s3://{seaweed.bucket}/opened/here?endpoint={quote(seaweed.endpoint_url)}&region=eu-west-1"
    opened(url, seaweed.credentials).write("a", [b"x"])
    whole = opened(f"s3://{seaweed.bucket}?endpoint={seaweed.endpoint_url}", seaweed.credentials)
    assert [row.key for row in whole.list("opened/")] == ["opened/here/a"]


@pytest.mark.parametrize(
    ("url", "begins"),
    [
        ("s3://bucket/pre", "https://bucket.s3.amazonaws.com/pre/a?"),
        ("s3://bucket/pre?path_style=true", "https://s3.amazonaws.com/bucket/pre/a?"),
        ("s3://bucket/?endpoint=https://s3.example", "https://s3.example/bucket/a?"),
        ("s3://bucket?endpoint=https://s3.example&path_style=no", "https://bucket.s3.example/a?"),
    ],
)
def test_signed_s3_url_has_bucket_in_host_or_in_path_by_path_style(url: str, begins: str) -> None:
    assert opened(url).sign_get("a", expires_in_s=60).url.startswith(begins)


def test_a_region_is_signed() -> None:
    url = opened("s3://bucket?region=eu-west-1").sign_get("a", expires_in_s=60).url
    assert "eu-west-1%2Fs3%2Faws4_request" in url


@pytest.mark.parametrize(
    "url", ["", "/dir", "gs://bucket", "file://dir", "file://", "file://host/dir", "file:///dir?x=1"]
)
def test_a_url_that_names_no_storage(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        opened(url)
    assert [(fault.where, bool(fault.hint)) for fault in refused.value.faults] == [("blobs", True)]


def test_all_faults_are_told_at_once_and_no_secret() -> None:
    with pytest.raises(InvalidInput) as refused:
        opened("s3://key:hunter2@bucket?endpoint=s3.example&path_style=maybe&color=red")
    assert len(refused.value.faults) == 4
    assert "hunter2" not in str(refused.value)
