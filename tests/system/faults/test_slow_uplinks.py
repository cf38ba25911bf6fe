"""Uplinks that are slower than a URL lives, to a folder and to S3: real URLs that run out by real clocks."""

import time
from collections.abc import Iterator

import pytest
from tests.fixtures.chaos_proxy import Trap
from tests.fixtures.seaweed import seaweed  # noqa: F401
from tests.system.conftest import PATIENCE_S
from tests.system.faults.processes import LONG_LEASE_S
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.setup import Bucket, InstallationSetup

URL_S = 2.0
# Of 8 MiB each, two and a bit; and as much as goes in one piece.
THREE_PARTS_BYTES = 17 * 2**20
ONE_PIECE_BYTES = 6 * 2**20
# A part, and the one piece, take longer than a URL lives.
BYTES_PER_S = 2.5 * 2**20
REFUSED = 403


@pytest.fixture(scope="module", params=["folder", "bucket"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    bucket = None
    if request.param == "bucket":
        server = request.getfixturevalue("seaweed")
        bucket = Bucket(seaweed=server, name=server.bucket)
    with running_rig(
        tmp_path_factory.mktemp("rig"), InstallationSetup(bucket=bucket, upload_url_s=URL_S, lease_s=LONG_LEASE_S)
    ) as running:
        yield running


def renewals(rig: Rig) -> int:
    """How often a node has asked for fresh URLs."""
    return sum(each.endswith("/urls") for each in rig.control.seen)


@pytest.mark.parametrize("size_bytes", [ONE_PIECE_BYTES, THREE_PARTS_BYTES], ids=["one piece", "three parts"])
def test_an_uplink_is_slower_than_the_life_of_its_urls(rig, size_bytes):
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    before = renewals(rig)
    trap = rig.storage.set(Trap("PUT", rig.bytes.signed, times=100, bytes_per_s=int(BYTES_PER_S)))
    began_s = time.monotonic()
    scenario.submit(checkpoint_bytes=size_bytes)
    scenario.await_committed(10)
    assert time.monotonic() - began_s > URL_S, "it is slow"
    rig.storage.clear()
    scenario.open()
    done = scenario.finish()
    assert len(done.attempts) == 1, rig.story(done.id)
    assert scenario.repeated() == 0
    if size_bytes == THREE_PARTS_BYTES:
        assert renewals(rig) > before
        assert trap.statuses.count(200) == 3, "no part that has arrived is sent again"


def test_a_url_runs_out_in_the_middle_of_a_multipart_upload(rig):
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    before = renewals(rig)
    trap = rig.storage.set(Trap("PUT", f"{rig.bytes.signed}.*part(Number)?=2", hold=True))
    scenario.submit(checkpoint_bytes=THREE_PARTS_BYTES)
    assert trap.caught.wait(PATIENCE_S)
    time.sleep(URL_S + 1)
    trap.release()
    scenario.await_committed(10)
    assert trap.statuses == [REFUSED], "storage itself says so"
    assert renewals(rig) > before
    scenario.open()
    done = scenario.finish()
    assert len(done.attempts) == 1, rig.story(done.id)
    assert scenario.repeated() == 0
