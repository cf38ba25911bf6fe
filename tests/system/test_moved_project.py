"""`giornata project export` in one installation and `import` in another one: training goes on with the same bytes."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.system.conftest import PATIENCE_S
from tests.system.test_up import QUICK, counted, in_the_middle, node_of

from giornata.domain.jobs.job import JobState

STEPS = 120


def giornata(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "giornata", *arguments],
        check=False,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_training_goes_on_from_an_imported_checkpoint_with_the_same_bytes(start_up, tmp_path):
    home = start_up("--nodes", "1", "--lease", "2", *QUICK)
    whole = home.client.submit({"steps": 40, "every": 20}, kind="x-count")
    assert home.client.wait(whole.id, timeout_s=PATIENCE_S, poll_s=0.1).state is JobState.SUCCEEDED
    job = home.client.submit({"steps": STEPS, "every": 20, "step_s": 0.06}, kind="x-count")
    engine_pid = node_of(home, in_the_middle(home, job.id, 40)).engine_pid
    os.kill(engine_pid, signal.SIGSTOP)  # however long the export takes, the job does not end before
    archive = tmp_path / "project.tar"
    giornata("--data", str(home.data), "project", "export", str(archive), cwd=tmp_path)
    assert home.client.get_job(job.id).state is JobState.RUNNING, "the project was exported while the job ran"
    os.kill(engine_pid, signal.SIGCONT)
    home.end()

    there = start_up("--nodes", "1", "--lease", "2", *QUICK, data=tmp_path / "elsewhere")
    said = giornata("--data", str(there.data), "project", "import", str(archive), "--json", cwd=tmp_path)
    new = json.loads(said)["jobs"]
    (finished,) = there.client.download(new[whole.id], tmp_path / "finished")
    assert finished.read_text() == counted(40)
    again = there.client.retry(new[job.id])
    done = there.client.wait(again.id, timeout_s=PATIENCE_S, poll_s=0.1)
    assert done.state is JobState.SUCCEEDED, done.error
    assert 40 <= done.attempts[0].start_step < STEPS, "it went on from the imported checkpoint"
    (file,) = there.client.download(again.id, tmp_path / "results")
    assert file.read_text() == counted(STEPS)
