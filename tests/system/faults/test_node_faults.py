"""Nodes with a full or read-only disk, a wrong clock, another locale, a work directory that vanishes."""

import os
import shutil
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image
from tests.fixtures.chaos_proxy import Trap
from tests.system.conftest import PATIENCE_S, until
from tests.system.faults.own_mounts import own_mounts, turn_read_only
from tests.system.faults.preloaded import library
from tests.system.faults.processes import RunningNode
from tests.system.faults.rig import UNUSABLE, Rig
from tests.system.faults.setup import PATIENT

from giornata.domain.jobs.reasons import Reason

GROUND = PATIENT
DAY_S = 86_400
LARGE_BYTES = 3 * 2**20
SMALL_DISK = "size=1m"
# What an engine writes by itself: the agent learns of it by the engine's last words.
OWN_FILES = {
    "something for the cache": {"cache_bytes": LARGE_BYTES},
    "a checkpoint": {"checkpoint_bytes": LARGE_BYTES},
    "the result": {"result_bytes": LARGE_BYTES},
}


@pytest.fixture
def mounted(tmp_path):
    """Mounts a file system in memory, with these options, and returns where."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "none", place]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"may not mount a small disk here: {done.stderr.strip()}")
        return place

    yield mount
    subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def pictures(rig: Rig, folder: Path, side_px: int) -> str:
    """Three pictures of noise, which no format makes smaller; the dataset's id."""
    folder.mkdir()
    for number in range(3):
        picture = Image.frombytes("RGB", (side_px, side_px), os.urandom(side_px * side_px * 3))
        picture.save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("noise")
    return rig.client.dataset_from_folder(folder).id


@pytest.mark.parametrize("what", [*OWN_FILES, "pictures", "a checkpoint to resume from"])
def test_the_disk_is_full(rig, mounted, tmp_path, what):
    small = mounted(SMALL_DISK)
    scenario = rig.scenario()
    if what == "a checkpoint to resume from":
        scenario.run_to("step-15", checkpoint_bytes=LARGE_BYTES)
        rig.node.kill_all()
        scenario.open()
    else:
        rig.node.end()
        more = {"dataset": pictures(rig, tmp_path / "pictures", 700)} if what == "pictures" else OWN_FILES[what]
        scenario.submit(**more)
    node = rig.start_node(work_dir=small)
    failed = rig.await_end_on(scenario.job_id, node)
    assert failed.reason is Reason.NODE_DISK
    # The end is told before the log's last lines are written.
    until(lambda: "No space left" in said_of(rig, node, scenario.job_id), "the words of the disk")
    node.end()
    rig.start_node()
    done = scenario.finish(cadences=2)
    assert done.attempts[-1].reason is Reason.SUCCEEDED
    (machine,) = [each for each in rig.client.nodes() if each.machine_id == node.machine_id]
    # The node may have tried once more before it was ended.
    there = [each for each in done.attempts if each.machine_id == node.machine_id]
    assert machine.strikes == sum(each.reason is Reason.NODE_DISK for each in there) >= 1


def said_of(rig: Rig, node: RunningNode, job_id: str) -> str:
    return node.log.read_text() + "".join(line.line for line in rig.client.logs(job_id))


def test_the_disk_cannot_be_written(rig, mounted):
    read_only = mounted("ro")
    scenario = rig.scenario()
    rig.node.end()
    node = rig.start_node(work_dir=read_only)
    assert node.process.wait(PATIENCE_S) == UNUSABLE
    assert f"work_dir {read_only}" in node.log.read_text()
    assert "Read-only file system" in node.log.read_text()
    rig.start_node()
    scenario.submit()
    assert len(scenario.finish().attempts) == 1


@pytest.mark.parametrize("moment", ["downloading", "training", "exporting", "between jobs"])
def test_the_disk_becomes_read_only(rig, tmp_path, moment):
    """As a disk with errors is mounted anew by the kernel: the node's machine is of no use from now on."""
    apart = own_mounts()
    scenario = rig.scenario()
    rig.node.end()
    node = rig.start_node(prefix=apart)
    if moment == "between jobs":
        first = rig.scenario_on(node)
        first.submit()
        first.finish()
        turn_read_only(node.process.pid, node.work_dir)
        scenario.submit()
    elif moment == "downloading":
        trap = rig.storage.set(Trap("GET", rig.bytes.signed, hold=True))
        scenario.submit(dataset=pictures(rig, tmp_path / "pictures", 64))
        assert trap.caught.wait(PATIENCE_S)
        turn_read_only(node.process.pid, node.work_dir)
        trap.release()
    else:
        scenario.run_to({"training": "step-15", "exporting": "exporting"}[moment])
        turn_read_only(node.process.pid, node.work_dir)
        scenario.open()
    failed = rig.await_end_on(scenario.job_id, node)
    # Its own engine knows no better than to die of it; its last words tell.
    assert failed.reason is Reason.NODE_DISK
    until(lambda: "Read-only file system" in said_of(rig, node, scenario.job_id), "the words of the disk")
    rig.start_node()
    done = scenario.finish()
    assert done.attempts[-1].machine_id == rig.node.machine_id
    (machine,) = [each for each in rig.client.nodes() if each.machine_id == node.machine_id]
    assert machine.strikes == 1
    # It says what is wrong, and takes no more jobs.
    rig.node.end()
    again = rig.scenario_on(node)
    again.submit()
    assert node.process.wait(PATIENCE_S) == UNUSABLE
    assert f"work_dir {node.work_dir}" in node.log.read_text()
    rig.start_node()
    again.finish()


@pytest.fixture(scope="module")
def other_time(tmp_path_factory):
    return library(tmp_path_factory.mktemp("time"), "other_time")


@pytest.mark.parametrize(
    "wrong",
    [
        {"OTHER_TIME_OFFSET_S": str(DAY_S)},
        {"OTHER_TIME_OFFSET_S": str(-DAY_S)},
        {"OTHER_TIME_OFFSET_S": str(DAY_S), "OTHER_TIME_JUMPS": "1"},
    ],
    ids=["a day fast", "a day slow", "jumping by a day"],
)
def test_the_nodes_clock_is_wrong(rig, other_time, tmp_path, wrong):
    scenario = rig.scenario()
    rig.node.end()
    node = rig.start_node(environment={"LD_PRELOAD": str(other_time), **wrong})
    other_day = datetime.now().astimezone() + timedelta(seconds=int(wrong["OTHER_TIME_OFFSET_S"]))
    scenario.run_to("step-15", dataset=pictures(rig, tmp_path / "pictures", 64), step_s=0.05)
    scenario.open()
    done = scenario.finish()
    assert [each.machine_id for each in done.attempts] == [node.machine_id], rig.story(done.id)
    # One that jumps may have been right whenever the node had something to say.
    if "OTHER_TIME_JUMPS" not in wrong:
        assert f"{other_day:%Y-%m-%d}" in node.log.read_text(), "the clock is as wrong as it should be"
    assert scenario.repeated() == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    ],
    ids=["C in Kiritimati", "Turkish in Newfoundland"],
)
def test_the_node_lives_elsewhere(rig, tmp_path, environment):
    scenario = rig.scenario()
    rig.node.end()
    rig.start_node(environment=environment)
    scenario.submit(dataset=pictures(rig, tmp_path / "pictures", 64))
    assert len(scenario.finish().attempts) == 1


def test_the_directory_for_temporary_files_is_wiped_under_a_running_job(rig, tmp_path):
    """Nothing that a job needs lies there."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    scenario = rig.scenario()
    rig.node.end()
    node = rig.start_node(environment={"TMPDIR": str(temporary)})
    scenario.run_to("step-15", dataset=pictures(rig, tmp_path / "pictures", 64))
    shutil.rmtree(temporary)
    scenario.open()
    done = scenario.finish()
    assert [each.machine_id for each in done.attempts] == [node.machine_id], rig.story(done.id)
    assert scenario.repeated() == 0
    again = rig.scenario()
    again.submit(dataset=pictures(rig, tmp_path / "more pictures", 64))
    assert [each.machine_id for each in again.finish().attempts] == [node.machine_id]


def test_the_work_directory_is_wiped_under_a_running_job(rig):
    scenario = rig.scenario()
    scenario.run_to("step-15")
    node = rig.node
    for entry in node.work_dir.iterdir():
        shutil.rmtree(entry)
    scenario.open()
    assert rig.await_end_on(scenario.job_id, node).reason is Reason.CRASHED
    rig.start_node()
    done = scenario.finish()
    assert done.attempts[0].committed_step == 10
    # The machine may do any other job.
    rig.node.end()
    again = rig.scenario_on(node)
    again.submit()
    assert again.finish().attempts[0].machine_id == node.machine_id
