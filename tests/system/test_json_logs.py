"""`--log-format json`: every line that an installation logs is one JSON object."""

import json

from tests.system.conftest import until

from giornata.domain.jobs.job import JobState


def test_every_line_of_the_server_and_of_its_nodes_is_an_object(start_up):
    up = start_up("--nodes", "1", "--kind", "x-count", "--log-format", "json")
    job = up.client.submit({"steps": 20, "every": 5, "step_s": 0.001}, kind="x-count")
    until(lambda: up.client.get_job(job.id).state is JobState.SUCCEEDED, "the job to be done")
    (attempt,) = up.client.get_job(job.id).attempts
    assert up.end() == 0
    logs = {path.name: path.read_text().splitlines() for path in (up.data / "logs").iterdir()}
    server, node = ([json.loads(line) for line in logs[name]] for name in ("server.log", "local-0.log"))
    for line in server + node:
        assert line.keys() >= {"ts", "level", "logger", "message"}
    commits = [line for line in server if line.get("route", "").endswith("/checkpoints") and line["status"] == 200]
    assert commits
    assert {line["attempt"] for line in commits} <= {line.get("attempt") for line in node}
    assert {line["job"] for line in server if line.get("route") == "/v1/jobs/{job_id}"} == {job.id}
    assert all(line["request_id"] for line in commits)
    about = [line for line in node if line.get("job") == job.id]
    assert {line["node"] for line in about} == {attempt.node_id}
