"""`giornata up` with real processes: nodes that die, nodes that are told to go, and what remains."""

import json
import os
import signal
import socket
import stat

import pytest
from tests.system.conftest import until

from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.project.admin import NodeState

FOREVER = {"steps": 1_000_000, "every": 1_000_000, "step_s": 0.01}
# The engine of kind train loads torch, which none of these tests needs.
QUICK = ("--kind", "x-count")


def counted(steps):
    """What count_engine.py writes when it neither missed a number nor counted one twice."""
    total = 0
    for step in range(1, steps + 1):
        total = (total * 31 + step) % 2**61
    return f"{steps} {total}\n"


def node_of(up, attempt):
    return next((node for node in up.client.nodes() if node.id == attempt.node_id), None)


def in_the_middle(up, job_id, committed_step):
    """The running attempt once it has committed that step."""

    def ask():
        job = up.client.get_job(job_id)
        assert job.state in {JobState.QUEUED, JobState.RUNNING}, job.error
        attempt = job.attempts[-1] if job.attempts else None
        return attempt if attempt is not None and attempt.committed_step >= committed_step else None

    return until(ask, f"step {committed_step} of {job_id} to be safe")


def test_a_job_survives_a_kill_of_its_node(start_up, tmp_path):
    up = start_up("--nodes", "2", "--lease", "2", "--price", "0.36", *QUICK)
    job = up.client.submit({"steps": 300, "every": 20, "step_s": 0.01}, kind="x-count")
    attempt = in_the_middle(up, job.id, 40)
    node = node_of(up, attempt)
    assert set(up.others()) >= {node.pid, node.engine_pid}
    for pid in (node.pid, node.engine_pid):
        os.kill(pid, signal.SIGKILL)
    done = up.client.wait(job.id, timeout_s=60, poll_s=0.1)

    assert done.state is JobState.SUCCEEDED, done.error
    first, second = done.attempts
    assert first.reason in {Reason.LEASE_EXPIRED, Reason.SUPERSEDED}
    assert second.start_step >= 40
    assert second.node_id != first.node_id
    assert (done.interruptions, done.step) == (1, 300)
    assert done.lost_s + done.useful_s > 2
    assert done.cost_micro_usd == pytest.approx(100 * sum(each.billed_s for each in done.attempts), abs=5)
    (file,) = up.client.download(job.id, tmp_path / "results")
    assert file.name == "count.txt"
    assert file.read_text() == counted(300)
    types = [event.type for event in up.client.events(job.id)]
    assert types.count(EventType.ATTEMPT_STARTED) == 2
    assert EventType.ATTEMPT_LAPSED in types
    # The fleet has put another process into the place of the one that was killed.
    until(lambda: len({each.pid for each in up.client.nodes()} & set(up.others())) == 2, "two living nodes")


def kill_engine(up, job_id, *, attempt):
    """SIGKILL, as the kernel does it that has no more memory to give, once the attempt of that number has begun."""

    def working():
        job = up.client.get_job(job_id)
        last = job.attempts[-1] if job.attempts else None
        return last if last is not None and last.number == attempt and last.last_step > last.start_step else None

    found = until(working, f"attempt {attempt} of {job_id} to do a step")
    node = node_of(up, found)
    os.kill(node.engine_pid, signal.SIGKILL)
    return node.pid


def test_a_job_goes_back_to_the_only_machine_when_its_engine_was_killed(start_up, tmp_path):
    """The same node goes on from the checkpoint, and the bytes are those of a job that nobody disturbed."""
    up = start_up("--nodes", "1", *QUICK)
    job = up.client.submit({"steps": 300, "every": 20, "step_s": 0.01}, kind="x-count")
    in_the_middle(up, job.id, 40)
    node_pid = kill_engine(up, job.id, attempt=1)

    def waiting():
        found = up.client.get_job(job.id)
        return found if found.next_try_at is not None else None

    waits = until(waiting, "the job to say when it is tried next")
    assert waits.state is JobState.QUEUED
    assert "every connected node (1) has failed this job before; it goes back to one of them at " in (
        waits.waiting_because or ""
    )
    done = up.client.wait(job.id, timeout_s=120, poll_s=0.1)
    assert done.state is JobState.SUCCEEDED, done.error
    first, second = done.attempts
    assert (first.reason, second.reason) == (Reason.CRASHED, Reason.SUCCEEDED)
    assert second.node_id == first.node_id
    assert second.start_step == first.committed_step >= 40
    assert node_of(up, second).pid == node_pid, "the agent lived on"
    (file,) = up.client.download(job.id, tmp_path / "results")
    assert file.read_text() == counted(300)
    said = [event.data for event in up.client.events(job.id) if event.type == EventType.NOTICE]
    assert [each["machine_ids"] for each in said if each["name"] == "ban-lifted"] == [[first.machine_id]]


def test_a_job_whose_engine_dies_again_and_again_on_the_only_machine_fails(start_up):
    up = start_up("--nodes", "1", *QUICK, GIORNATA_RETRY_PAUSE_S="0.5")
    job = up.client.submit(FOREVER, kind="x-count")
    for attempt in (1, 2, 3):
        kill_engine(up, job.id, attempt=attempt)
    done = up.client.wait(job.id, timeout_s=120, poll_s=0.1)
    assert (done.state, len(done.attempts)) == (JobState.FAILED, 3)
    assert done.error.startswith(done.attempts[-1].message)
    assert "(crashed: it crashed 3 times on one machine, and committed no new checkpoint in between)" in done.error


def test_sigterm_drains_and_the_next_up_goes_on(start_up):
    up = start_up("--nodes", "1", *QUICK)
    key = up.data / "admin.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    job = up.client.submit(FOREVER, kind="x-count")
    until(lambda: up.client.get_job(job.id).step >= 20, "the job to be under way")
    assert up.client.get_job(job.id).committed_step == 0
    up.client.close()

    assert up.end() == 0, up.said()
    assert up.others() == {}
    assert "Giornata is down." in up.said()
    assert not (up.data / "server.json").exists()

    secret = key.read_text()
    again = start_up("--nodes", "1", *QUICK)
    assert key.read_text() == secret, "the first key stays the key"
    resumed = until(
        lambda: next(iter(again.client.get_job(job.id).attempts[1:]), None), "another attempt after the restart"
    )
    first = again.client.get_job(job.id).attempts[0]
    assert first.reason is Reason.PREEMPTED
    assert first.committed_step >= 20, "the last checkpoint was written on the way out"
    assert resumed.start_step == first.committed_step
    assert again.client.cancel(job.id).state is JobState.CANCELED
    until(lambda: NodeState.BUSY not in {node.state for node in again.client.nodes()}, "the engine to be stopped")


def test_a_second_up_on_the_same_data_is_refused(start_up):
    up = start_up("--nodes", "0")
    second = start_up("--nodes", "0", data=up.data, connect=False)
    assert second.process.wait(60) == 1
    assert f"in use by another server (process {up.process.pid})" in second.said()
    assert "Traceback" not in second.said()
    assert json.loads((up.data / "server.json").read_text())["pid"] == up.process.pid
    assert list(up.client.jobs()) == []


def test_a_port_in_use_is_named(start_up):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = start_up("--nodes", "0", "--port", str(port), connect=False)
        assert up.process.wait(60) == 1
    assert f"port {port} of 127.0.0.1 is in use" in up.said()
    assert "Traceback" not in up.said()


def test_nodes_do_not_outlive_an_up_that_was_killed(start_up):
    up = start_up("--nodes", "2", *QUICK, GIORNATA_GRACE_S="2")
    job = up.client.submit(FOREVER, kind="x-count")
    until(lambda: up.client.get_job(job.id).step > 0, "the job to be under way")
    assert len(up.others()) >= 3
    up.client.close()
    up.process.kill()
    up.process.wait()
    until(lambda: not up.others(), "nodes and engines to end by themselves", 20)
