"""Nodes with a full or read-only disk, a wrong clock, another locale, a work directory that vanishes."""

import os
import shutil
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image
from tests.system.faults.rig import SCRIPTS, UNUSABLE, Rig

from giornata.domain.reasons import Reason

DAY_S = 86_400
LARGE_BYTES = 3 * 2**20
SMALL_DISK = "size=1m"


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


@pytest.mark.parametrize("what", ["pictures", "a checkpoint to resume from", "a checkpoint of its own"])
def test_the_disk_is_full(rig, mounted, tmp_path, what):
    small = mounted(SMALL_DISK)
    scenario = rig.scenario()
    if what == "a checkpoint to resume from":
        scenario.run_to("step-15", checkpoint_bytes=LARGE_BYTES)
        rig.node.kill_all()
        scenario.open()
    else:
        rig.node.end()
        more = {"dataset": pictures(rig, tmp_path / "pictures", 700)} if what == "pictures" else {}
        scenario.submit(checkpoint_bytes=LARGE_BYTES, **more)
    node = rig.start_node(work_dir=small)
    failed = rig.await_end_on(scenario.job_id, node)
    assert failed.reason is (Reason.CRASHED if what == "a checkpoint of its own" else Reason.NODE_DISK)
    said = node.log.read_text() + "".join(line.line for line in rig.client.logs(scenario.job_id))
    assert "No space left" in said
    node.end()
    rig.start_node()
    done = scenario.finish(cadences=2)
    assert done.attempts[-1].reason is Reason.SUCCEEDED
    (machine,) = [each for each in rig.client.nodes() if each.machine_id == node.machine_id]
    assert machine.strikes == 1


def test_the_disk_cannot_be_written(rig, mounted):
    read_only = mounted("ro")
    scenario = rig.scenario()
    rig.node.end()
    node = rig.start_node(work_dir=read_only)
    assert node.process.wait(60) == UNUSABLE
    assert f"work_dir {read_only}" in node.log.read_text()
    assert "Read-only file system" in node.log.read_text()
    rig.start_node()
    scenario.submit()
    assert len(scenario.finish().attempts) == 1


@pytest.fixture(scope="module")
def other_time(tmp_path_factory):
    """A library to preload."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the wrong clock with")
    library = tmp_path_factory.mktemp("time") / "other_time.so"
    source = SCRIPTS / "other_time.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


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
