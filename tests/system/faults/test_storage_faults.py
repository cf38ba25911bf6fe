"""Storage that fails, lies, forgets, or is slow: by signed URLs, with real processes."""

import shutil
import time

import pytest
from PIL import Image
from tests.fixtures.chaos_proxy import Trap
from tests.system.faults.processes import LEASE_S
from tests.system.faults.rig import Rig
from tests.system.faults.scenario import CADENCE, Scenario

from giornata.protocol.events import EventType

ATTEMPT = "^/v1/node/attempts/[^/]+"
PUT = ("PUT", "^/v1/blobs/")
PART_2 = ("PUT", "^/v1/blobs/.*part=2")
GET = ("GET", "^/v1/blobs/")
# Of 8 MiB each, two and a bit.
THREE_PARTS_BYTES = 17 * 2**20


def flipped(body: bytes) -> bytes:
    """One bit is another."""
    return bytes([body[0] ^ 1]) + body[1:]


def objects(rig: Rig) -> set:
    """Files that storage holds."""
    return {path for path in (rig.server.data / "blobs").rglob("*") if path.is_file()}


def interrupted_at_15(rig: Rig) -> Scenario:
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
def test_on_the_way_up(rig, fault):
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    trap = rig.storage.set(Trap(*PUT, **UP[fault]))
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
    trap = rig.storage.set(Trap(*GET, **DOWN[fault]))
    rig.start_node()
    done = scenario.finish()
    assert trap.caught.is_set()
    assert [each.start_step for each in done.attempts] == [0, 10]


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
    trap = rig.storage.set(Trap(*GET, **DOWN[fault]))
    scenario.submit(dataset=dataset.id)
    done = scenario.finish()
    assert trap.caught.is_set()
    assert len(done.attempts) == 1, rig.story(done.id)


@pytest.mark.parametrize("fault", ["spoilt", "missing"])
def test_the_newest_checkpoint_is_spoilt_or_missing_at_the_resume(rig, fault):
    before = objects(rig)
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
    (newest,) = [path for path in objects(rig) - before if path.read_bytes().startswith(b"20 ")]
    whole = newest.read_bytes()
    if fault == "missing":
        newest.unlink()
    else:
        newest.write_bytes(flipped(whole))
    scenario.open()
    rig.start_node()
    done = scenario.finish(cadences=2)
    assert done.attempts[-1].start_step == CADENCE
    types = [event.type for event in rig.client.events(done.id)]
    assert types.count(EventType.CHECKPOINT_REJECTED) == 1
    assert all(machine.strikes == 0 for machine in rig.client.nodes() if machine.machine_id == rig.node.machine_id)
    newest.write_bytes(whole)  # so that all that is amiss in the end is the platform's doing


@pytest.mark.parametrize("fault", ["expired", "cut", "spoilt"])
def test_a_multipart_upload_goes_wrong_in_the_middle(rig, fault):
    """The URL of the second of three parts runs out, its connection is cut, or its bytes are spoilt."""
    harm = {"expired": {"status": 403}, "cut": {"drop_reply": True}, "spoilt": {"spoil_request": flipped}}[fault]
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    trap = rig.storage.set(Trap(*PART_2, **harm))
    scenario.submit(checkpoint_bytes=THREE_PARTS_BYTES)
    scenario.await_committed(10)
    assert trap.caught.is_set()
    scenario.open()
    done = scenario.finish()
    assert len(done.attempts) == 1, rig.story(done.id)


def test_a_node_dies_in_the_middle_of_a_multipart_upload(rig):
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    trap = rig.storage.set(Trap(*PART_2, hold=True))
    scenario.submit(checkpoint_bytes=THREE_PARTS_BYTES)
    assert trap.caught.wait(30)
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
    home, elsewhere = rig.server.data / "blobs", rig.server.data / "elsewhere"
    home.rename(elsewhere)
    scenario.open()
    time.sleep(1.5)
    assert rig.client.get_job(scenario.job_id).committed_step == 10
    # The server may have made the folder anew; what it could write there meanwhile counts as well.
    shutil.copytree(elsewhere, home, dirs_exist_ok=True)
    shutil.rmtree(elsewhere)
    scenario.finish()
