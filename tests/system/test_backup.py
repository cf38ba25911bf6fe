"""`giornata backup` and `giornata migrate-store` with a job in flight, with real processes before and after."""

import subprocess
import sys

import pytest
from tests.fixtures.postgres import new_postgres, postgres_server, postgres_template  # noqa: F401 - fixtures
from tests.system.conftest import PATIENCE_S, until
from tests.system.test_up import QUICK, counted, in_the_middle

from giornata.domain.jobs.job import JobState

STEPS = 300


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


@pytest.mark.long
def test_a_job_in_flight_goes_on_from_a_backup_that_is_restored_elsewhere_with_the_same_bytes(start_up, tmp_path):
    up = start_up("--nodes", "1", "--lease", "2", *QUICK)
    job = up.client.submit({"steps": STEPS, "every": 20, "step_s": 0.06}, kind="x-count")
    in_the_middle(up, job.id, 40)
    backup = tmp_path / "in-flight.tar"
    giornata("--data", str(up.data), "backup", str(backup), "--with-keys", cwd=tmp_path)
    running = up.client.get_job(job.id)
    assert running.state is JobState.RUNNING, "the backup was made while the job ran"
    up.process.kill()
    until(lambda: not up.others(), "the nodes of the first installation to end")

    elsewhere = tmp_path / "elsewhere"
    giornata("--data", str(elsewhere), "restore", str(backup), cwd=tmp_path)
    restored = start_up("--nodes", "1", "--lease", "2", *QUICK, data=elsewhere)
    done = restored.client.wait(job.id, timeout_s=PATIENCE_S, poll_s=0.1)
    assert done.state is JobState.SUCCEEDED, done.error
    assert [each.number for each in done.attempts] == [1, 2]
    assert 40 <= done.attempts[1].start_step < STEPS, "it went on from a committed checkpoint"
    (file,) = restored.client.download(job.id, tmp_path / "results")
    assert file.read_text() == counted(STEPS)


@pytest.mark.long
def test_a_job_in_flight_goes_on_in_postgresql_with_the_same_bytes(start_up, tmp_path, new_postgres):  # noqa: F811
    target_url = new_postgres()
    up = start_up("--nodes", "1", "--lease", "2", *QUICK)
    job = up.client.submit({"steps": STEPS, "every": 20, "step_s": 0.06}, kind="x-count")
    in_the_middle(up, job.id, 40)
    up.process.kill()
    until(lambda: not up.others(), "the nodes of the installation on SQLite to end")
    giornata("migrate-store", f"sqlite:///{up.data / 'giornata.db'}", target_url, cwd=tmp_path)

    (up.data / "server.json").unlink()  # of the server that was killed
    moved = {
        "GIORNATA_DATABASE": target_url,
        "GIORNATA_SECRETS_KEY": (up.data / "secrets.key").read_text().strip(),
    }
    on_postgres = start_up("--nodes", "1", "--lease", "2", *QUICK, **moved)
    done = on_postgres.client.wait(job.id, timeout_s=PATIENCE_S, poll_s=0.1)
    assert done.state is JobState.SUCCEEDED, done.error
    assert [each.number for each in done.attempts] == [1, 2]
    assert 40 <= done.attempts[1].start_step < STEPS, "it went on from a committed checkpoint"
    (file,) = on_postgres.client.download(job.id, tmp_path / "results")
    assert file.read_text() == counted(STEPS)
