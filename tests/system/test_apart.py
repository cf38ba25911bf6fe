"""The parts apart, on the real things: two servers on one PostgreSQL and one S3, and a node that knows their URL."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.fixtures.postgres import *  # noqa: F403
from tests.fixtures.seaweed import seaweed  # noqa: F401
from tests.system.conftest import COUNT_ENGINE, SECRETS_KEY, until

from giornata.client import Client
from giornata.domain.jobs.job import JobState
from giornata.protocol.project.admin import Scope


@pytest.fixture
def start(tmp_path):
    """Starts `giornata …` with these arguments; everything is ended at the end."""
    started = []

    def call(*arguments, **environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
        log = tmp_path / f"{arguments[0]}-{len(started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "giornata", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=clean | environment,
                cwd=tmp_path,
            )
        started.append((process, log))
        return process

    yield call
    for process, _ in reversed(started):
        process.send_signal(signal.SIGTERM)
    for process, log in reversed(started):
        assert process.wait(60) in {0, -signal.SIGTERM}, log.read_text()


@pytest.fixture
def servers(empty_postgres, start, seaweed, tmp_path):  # noqa: F811
    """Two servers that share a database and a bucket: the URLs of both, and the first admin key."""
    storage = f"s3://{seaweed.bucket}/apart?endpoint={seaweed.endpoint_url}"
    credentials = {
        "GIORNATA_S3_ACCESS_KEY_ID": seaweed.credentials.access_key_id,
        "GIORNATA_S3_SECRET_ACCESS_KEY": seaweed.credentials.secret_access_key,
    }
    database, urls = empty_postgres(), []
    for name in ("first", "second"):
        data = tmp_path / name
        arguments = ("--data", str(data), "--database", database, "--blobs", storage, "--lease", "3")
        start("server", "--port", "0", *arguments, GIORNATA_SECRETS_KEY=SECRETS_KEY, **credentials)
        until((data / "server.json").exists, f"{name} to listen")
        urls.append(json.loads((data / "server.json").read_text())["url"])
    assert not (tmp_path / "second" / "admin.key").exists()
    return urls, (tmp_path / "first" / "admin.key").read_text().strip()


def test_a_job_goes_through_two_servers_and_a_node_that_has_neither_database_nor_storage_keys(
    servers, start, tmp_path
):
    (first, second), key = servers
    with Client(first, key) as one, Client(second, key) as other:
        node_key = one.create_key(scope=Scope.NODE).secret
        job = one.submit({"steps": 60, "every": 20, "step_s": 0.01}, kind="x-count")
        environment = {"GIORNATA_URL": second, "GIORNATA_NODE_KEY": node_key, "GIORNATA_DATA": str(tmp_path / "node")}
        workload = f"x-count={sys.executable} {COUNT_ENGINE}"
        start("node", "--kind", "x-count", "--workload", workload, "--machine-id", "shed-1", **environment)
        done = one.wait(job.id, timeout_s=60, poll_s=0.1)
        assert done.state is JobState.SUCCEEDED, done.error
        assert done.attempts[0].machine_id == "shed-1"
        assert other.get_job(job.id).committed_step == 60
        (file,) = other.download(job.id, tmp_path / "results")
        assert file.read_text().startswith("60 ")
        # The bytes came from the bucket, by a URL that names one object.
        assert "apart/" in one.artifacts(job.id)[0].request.url
