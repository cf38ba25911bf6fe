"""Nodes of this machine that come for the queue and go when it is empty, with real processes."""

import json
import os
import signal
import sys
from pathlib import Path

from tests.system.conftest import PATIENCE_S, until

from giornata.domain.jobs.job import JobState

GATE_ENGINE = Path(__file__).parent / "scripts" / "gate_engine.py"
SLOT_ENGINE = Path(__file__).parent / "scripts" / "slot_engine.py"
TABLE = {
    "driver": "local",
    "kinds": ["x-count"],
    "scaling": {"max_nodes": 2, "idle_timeout_s": 3, "drain_timeout_s": 20},
    "options": {"price_usd_per_hour": 0.36, "grace_s": 10},
}


def nodes(up):
    """Command lines of the nodes that run, by process id."""
    return {pid: line for pid, line in up.others().items() if "giornata" in line and " node " in line}


def fleet(up):
    (found,) = up.client.fleets()
    return found


def test_a_job_brings_a_node_which_goes_when_it_is_done(start_up):
    up = start_up("--nodes", "0", GIORNATA_FLEETS=json.dumps({"here": TABLE}))
    until(lambda: list(up.client.fleets()), "the fleet to be looked at")
    assert (fleet(up).driver, fleet(up).desired, nodes(up)) == ("local", 0, {})

    job = up.client.submit({"steps": 50, "every": 10, "step_s": 0.02}, kind="x-count")
    done = up.client.wait(job.id, timeout_s=PATIENCE_S, poll_s=0.1)
    assert done.state is JobState.SUCCEEDED, done.error
    (attempt,) = done.attempts
    assert attempt.node_name == "here-0"
    until(lambda: not nodes(up) and fleet(up).desired == 0, "the node to go")
    until(lambda: not fleet(up).instances, "its instance to be gone")


def test_a_killed_node_is_replaced_and_the_job_goes_on(start_up, tmp_path):
    """The job waits at step 30 until the test has seen what it looks for."""
    gates = tmp_path / "gates"
    gates.mkdir()
    (gates / "step-30.stop").write_text("wait")
    gated = ("--workload", f"x-gate={sys.executable} {GATE_ENGINE}")
    table = {**TABLE, "kinds": ["x-gate"]}
    up = start_up("--nodes", "0", "--lease", "2", *gated, GIORNATA_FLEETS=json.dumps({"here": table}))
    spec = {"steps": 50, "every": 20, "salt": "a", "gates": str(gates), "trace": str(tmp_path / "trace")}
    job = up.client.submit(spec, kind="x-gate")
    until(lambda: up.client.get_job(job.id).committed_step >= 20, "a checkpoint")
    until(lambda: fleet(up).instances, "the instance to be listed")
    (first,) = {each.id for each in fleet(up).instances}
    (pid,) = nodes(up)
    os.kill(pid, signal.SIGKILL)
    until(lambda: {each.id for each in fleet(up).instances} - {first}, "another instance")
    (gates / "step-30.stop").unlink()
    done = up.client.wait(job.id, timeout_s=PATIENCE_S, poll_s=0.1)
    assert done.state is JobState.SUCCEEDED, done.error
    _, *later = done.attempts
    assert [each.start_step for each in later] == [20] * len(later) != []
    assert first not in {each.id for each in fleet(up).instances}, "another process is another instance"


def test_a_job_goes_to_another_slot_when_the_engine_of_one_does_not_start(start_up):
    workload = ("--workload", f"x-slot={sys.executable} {SLOT_ENGINE}")
    table = {**TABLE, "kinds": ["x-slot"], "scaling": {"max_nodes": 4}}
    up = start_up("--nodes", "0", *workload, GIORNATA_FLEETS=json.dumps({"here": table}))
    job = up.client.submit({"steps": 5, "every": 5}, kind="x-slot")
    until(
        lambda: (
            "ended again and again" in (up.client.get_job(job.id).waiting_because or "")
            or up.client.get_job(job.id).attempts
        ),
        "the job to say why it waits",
    )
    done = up.client.wait(job.id, timeout_s=PATIENCE_S, poll_s=0.1)
    assert done.state is JobState.SUCCEEDED, done.error
    (attempt,) = done.attempts
    assert attempt.node_name == "here-1"
    # The node says that its start fails before its process ends: here-1 may be done with the job by then.
    until(
        lambda: (
            {each.machine_id: each.state for each in up.client.machines()}.get("here-0")
            in {"probation", "quarantined"}
        ),
        "the failed starts to count against their machine",
    )


def test_up_with_a_most_of_nodes_scales_from_zero(start_up):
    up = start_up("--max-nodes", "2", "--kind", "x-count")
    assert nodes(up) == {}
    jobs = [up.client.submit({"steps": 200, "every": 50, "step_s": 0.02}, kind="x-count") for _ in range(3)]
    until(lambda: len(nodes(up)) == 2, "two nodes for three jobs")
    for job in jobs:
        assert up.client.wait(job.id, timeout_s=PATIENCE_S, poll_s=0.1).state is JobState.SUCCEEDED
    assert len(nodes(up)) == 2, "they are kept a while"
