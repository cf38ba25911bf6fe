"""Storage that fails, lies, forgets, or is slow: by signed URLs, with real processes."""

import time
from collections.abc import Iterator

import pytest
from PIL import Image
from tests.fixtures.chaos_proxy import Trap
from tests.fixtures.seaweed import seaweed  # noqa: F401
from tests.system.conftest import PATIENCE_S
from tests.system.faults.processes import LEASE_S
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.scenario import CADENCE, GatedJob
from tests.system.faults.setup import Bucket, InstallationSetup

from giornata.protocol.events import EventType

# Of 8 MiB each, two and a bit.
THREE_PARTS_BYTES = 17 * 2**20


def flipped(body: bytes) -> bytes:
    """One bit is another."""
    return bytes([body[0] ^ 1]) + body[1:]


@pytest.fixture(scope="module", params=["folder", "bucket"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Bytes in a folder of the server's, and on S3."""
    bucket = None
    if request.param == "bucket":
        seaweed = request.getfixturevalue("seaweed")
        bucket = Bucket(seaweed=seaweed, name=seaweed.bucket)
    with running_rig(tmp_path_factory.mktemp("rig"), InstallationSetup(bucket=bucket)) as running:
        yield running


def put(rig: Rig) -> tuple[str, str]:
    """An object on its way up."""
    return "PUT", rig.bytes.signed


def part_2(rig: Rig) -> tuple[str, str]:
    """The second part of one."""
    return "PUT", f"{rig.bytes.signed}.*part(Number)?=2"


def get(rig: Rig) -> tuple[str, str]:
    """An object on its way down."""
    return "GET", rig.bytes.signed


def interrupted_at_15(rig: Rig) -> GatedJob:
    """Steps 10 are safe, and another node is about to take the job."""
    scenario = rig.scenario()
    scenario.run_to("step-15")
    rig.node.kill_all()
    scenario.open()
    return scenario


UP = {
    "an error three times": {"status": 500, "times": 3},
    "out of order for a while": {"status": 503, "times": 2},
    "slower than a lease": {"delay_s": LEASE_S + 1},
    "wrong bytes arrive": {"spoil_request": flipped},
    "the URL has run out": {"status": 403, "times": 2},
    "the connection is cut after the write": {"drop_reply": True},
    "storage has forgotten the upload": {"status": 404},
}


@pytest.mark.parametrize("fault", UP)
def test_checkpoint_upload_with_storage_fault_succeeds_in_same_attempt(rig, fault):
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    trap = rig.storage.set(Trap(*put(rig), **UP[fault]))
    scenario.submit()
    scenario.await_committed(10)
    scenario.open()
    done = scenario.finish()
    assert trap.caught.is_set()
    assert len(done.attempts) == 1, rig.story(done.id)


DOWN = {
    "an error three times": {"status": 500, "times": 3},
    "slower than a lease": {"delay_s": LEASE_S + 1},
    "the body is cut": {"cut_at": 3},
    "wrong bytes once": {"spoil": flipped},
    "the connection is cut": {"drop": True},
}


@pytest.mark.parametrize("fault", DOWN)
def test_a_checkpoint_on_the_way_down(rig, fault):
    scenario = interrupted_at_15(rig)
    trap = rig.storage.set(Trap(*get(rig), **DOWN[fault]))
    rig.start_node()
    done = scenario.finish()
    assert trap.caught.is_set()
    assert [each.start_step for each in done.attempts] == [0, 10]


# From a folder a node fetches pictures as it does checkpoints.
@pytest.mark.parametrize("rig", ["bucket"], indirect=True)
@pytest.mark.parametrize("fault", DOWN)
def test_a_picture_on_the_way_down(rig, fault):
    scenario = rig.scenario()
    folder = scenario.gates.parent / scenario.salt
    folder.mkdir()
    for number in range(3):
        Image.frombytes("RGB", (64, 64), f"{scenario.salt}{number}".encode().ljust(64 * 64 * 3, b"~")).save(
            folder / f"{number}.png"
        )
        (folder / f"{number}.txt").write_text("noise")
    dataset = rig.client.dataset_from_folder(folder)
    trap = rig.storage.set(Trap(*get(rig), **DOWN[fault]))
    scenario.submit(dataset=dataset.id)
    done = scenario.finish()
    assert trap.caught.is_set()
    assert len(done.attempts) == 1, rig.story(done.id)


@pytest.mark.parametrize("fault", ["spoiled", "cut short", "missing"])
def test_the_newest_checkpoint_is_spoiled_or_missing_at_the_resume(rig, fault):
    before = set(rig.bytes.contents())
    scenario = rig.scenario()
    for gate in ("written-10", "written-20", "step-25"):
        scenario.stop_at(gate)
    scenario.submit()
    for step in (10, 20):
        scenario.await_gate(f"written-{step}")
        scenario.await_committed(step)
        scenario.open(f"written-{step}")
    scenario.await_gate("step-25")
    rig.node.kill_all()
    (newest,) = [name for name in set(rig.bytes.contents()) - before if rig.bytes.read(name).startswith(b"20 ")]
    whole = rig.bytes.read(newest)
    if fault == "missing":
        rig.bytes.delete(newest)
    else:
        rig.bytes.write(newest, {"spoiled": flipped(whole), "cut short": whole[:-1]}[fault])
    scenario.open()
    rig.start_node()
    done = scenario.finish(cadences=2)
    assert done.attempts[-1].start_step == CADENCE
    types = [event.type for event in rig.client.events(done.id)]
    assert types.count(EventType.CHECKPOINT_REJECTED) == 1
    assert all(machine.strikes == 0 for machine in rig.client.nodes() if machine.machine_id == rig.node.machine_id)
    rig.bytes.write(newest, whole)  # so that all that is amiss in the end is the platform's doing


@pytest.mark.parametrize("fault", ["expired", "cut", "spoiled"])
def test_a_multipart_upload_goes_wrong_in_the_middle(rig, fault):
    """The URL of the second of three parts runs out, its connection is cut, or its bytes are spoiled."""
    harm = {"expired": {"status": 403}, "cut": {"drop_reply": True}, "spoiled": {"spoil_request": flipped}}[fault]
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    trap = rig.storage.set(Trap(*part_2(rig), **harm))
    scenario.submit(checkpoint_bytes=THREE_PARTS_BYTES)
    scenario.await_committed(10)
    assert trap.caught.is_set()
    scenario.open()
    done = scenario.finish()
    assert len(done.attempts) == 1, rig.story(done.id)


def test_a_node_dies_in_the_middle_of_a_multipart_upload(rig):
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    trap = rig.storage.set(Trap(*part_2(rig), hold=True))
    scenario.submit(checkpoint_bytes=THREE_PARTS_BYTES)
    assert trap.caught.wait(PATIENCE_S)
    rig.node.kill_all()
    trap.release(cut=True)
    scenario.open()
    rig.start_node()
    # What it had sent so far is collected in the end: the rig looks.
    assert len(scenario.finish().attempts) == 2


def test_the_bucket_is_gone_for_a_while(rig):
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    scenario.submit()
    scenario.await_gate("written-10")
    scenario.await_committed(10)
    with rig.bytes.gone():
        scenario.open()
        time.sleep(1.5)
        assert rig.client.get_job(scenario.job_id).committed_step == 10
    scenario.finish()
