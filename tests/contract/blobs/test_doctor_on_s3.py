"""The checks of `giornata doctor` that look at storage: a real S3 server, and one that checks no hash."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fixtures.diagnosis import Examine, ShiftedWallClock, careless_server, examined_at, findings_of
from tests.fixtures.seaweed import CREDENTIALS, Seaweed

from giornata.blobs.s3 import S3Credentials
from giornata.cli.maintenance.doctor.findings import Harm
from giornata.client.trust import trusted


@pytest.fixture
def look(seaweed: Seaweed, tmp_path: Path) -> Iterator[Examine]:
    blobs = f"s3://{seaweed.bucket}/doctor?endpoint={seaweed.endpoint_url}"
    with httpx.Client(verify=trusted()) as http:
        yield lambda **fields: examined_at(
            tmp_path, http, **{"blobs": blobs, "s3_credentials": CREDENTIALS, **fields}
        )


def test_storage_that_checks_hashes_is_no_finding_and_keeps_no_probe(look: Examine, s3_place) -> None:
    assert findings_of(look(), "storage") == []
    assert [each.key for each in s3_place.blobs.list("readiness/")] == []


@pytest.mark.parametrize(
    ("option", "harm"), [("", Harm.DEGRADED), ("&verifies_checksums=true", Harm.LOSS)], ids=["read-back", "believed"]
)
def test_storage_that_takes_other_bytes_is_found(option: str, harm: Harm, look: Examine) -> None:
    with careless_server() as url:
        (found,) = findings_of(look(blobs=f"s3://bucket?endpoint={url}{option}"), "storage")
    assert found.harm is harm
    assert found.message.startswith("storage takes bytes that do not hash to what the signed URL names")


def test_credentials_that_storage_refuses_are_found(look: Examine) -> None:
    wrong = S3Credentials(access_key_id=CREDENTIALS.access_key_id, secret_access_key="another secret")
    (found,) = findings_of(look(s3_credentials=wrong), "storage")
    assert found.harm is Harm.STOPPED
    assert found.message.startswith("storage cannot be written: ")


def test_another_clock_than_that_of_the_storage_is_found(look: Examine, seaweed: Seaweed) -> None:
    (found,) = findings_of(look(clock=ShiftedWallClock(-60.0)), "clock")
    assert f"the clock of the storage {seaweed.endpoint_url}" in found.message
