"""Another user of the machine reads nothing of an installation that works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.second_user import modes_below, needs_root, open_place, open_to_others, seen_by_nobody
from tests.system.conftest import until

from giornata.domain.jobs.job import JobState

# The engine of kind train loads torch, which none of these tests needs.
QUICK = ("--kind", "x-count")


@pytest.mark.parametrize("umask", [0o000, 0o022], ids=lambda mask: f"umask-{mask:03o}")
def test_data_folder_is_closed_to_other_users_during_and_after_job(start_up, tmp_path, umask):
    up = start_up("--nodes", "1", *QUICK, umask=umask)
    job = up.client.submit({"steps": 20, "step_s": 0.001, "every": 5}, kind="x-count")
    until(lambda: up.client.get_job(job.id).state is JobState.SUCCEEDED, "the job to be done")
    assert open_to_others(up.data) == {}
    made = {Path(path).name for path in modes_below(up.data)}
    assert {"giornata.db", "giornata.db-wal", "giornata.db-shm", "giornata.db.lock", "admin.key"} <= made
    assert {"secrets.key", "node.key", "server.json", "server.log", "local-0.log", "cache", "objects"} <= made
    before = os.umask(umask)
    os.umask(before)
    (file,) = up.client.download(job.id, tmp_path / "results")
    assert file.stat().st_mode & 0o777 == 0o666 & ~before, "what people download is theirs to share"
    assert up.end() == 0
    assert open_to_others(up.data) == {}


@needs_root
def test_the_user_nobody_reads_nothing_while_a_job_runs(start_up):
    with open_place() as place:
        up = start_up("--nodes", "1", *QUICK, data=place / "data", umask=0o000)
        job = up.client.submit({"steps": 100_000, "step_s": 0.01}, kind="x-count")
        until(lambda: up.client.get_job(job.id).step > 0, "the job to be under way")
        assert seen_by_nobody(place / "data") == []
        assert [path for path in seen_by_nobody(place) if path != str(place / "data")] == []
        assert up.end() == 0


def test_a_data_folder_that_holds_other_things_and_is_open_is_refused(start_up, tmp_path):
    data = tmp_path / "home"
    (data / "photographs").mkdir(parents=True)
    data.chmod(0o755)
    up = start_up("--nodes", "0", data=data, connect=False)
    assert up.process.wait(60) == 2
    assert "has mode 0755 and holds photographs" in up.said()
    assert f"chmod 700 {data}" in " ".join(up.said().split())
    assert "Traceback" not in up.said()


def test_a_node_refuses_a_work_folder_that_is_open_and_holds_other_things(tmp_path):
    work = tmp_path / "scratch"
    (work / "photographs").mkdir(parents=True)
    work.chmod(0o777)
    program = [sys.executable, "-m", "giornata", "--url", "http://127.0.0.1:1", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        [*program, "node", "--key", "gk_00000001_key", "--work-dir", str(work)],
        capture_output=True,
        text=True,
        check=False,
        umask=0o000,
    )
    assert done.returncode == 2
    assert "work_directory" in done.stderr
    assert "has mode 0777 and holds photographs" in " ".join(done.stderr.split())
    assert open_to_others(tmp_path / "data") == {}
    assert work.stat().st_mode & 0o777 == 0o777
