"""Every call of a node, lost, repeated, torn, delayed and refused on its way: the job does not notice.

One trap for one call of one job: what the node or the network does again must change nothing. The job has one
attempt, no step is repeated, and the result is the same bytes.
"""

import signal
from itertools import product

import pytest
from tests.fixtures.chaos_proxy import Trap
from tests.system.conftest import PATIENCE_S, until
from tests.system.faults.scenario import STEPS
from tests.system.faults.setup import PATIENT

from giornata.domain.jobs.reasons import Reason

GROUND = PATIENT
ATTEMPT = "^/v1/node/attempts/[^/]+"
BLOBS = "^/v1/blobs/"

CALLS = {
    "claim": ("POST", "^/v1/node/claim$"),
    "heartbeat": ("POST", f"{ATTEMPT}/heartbeat$"),
    "ask for an upload": ("POST", f"{ATTEMPT}/uploads$"),
    "put": ("PUT", BLOBS),
    "commit a checkpoint": ("POST", f"{ATTEMPT}/checkpoints$"),
    "commit a result": ("POST", f"{ATTEMPT}/artifacts$"),
    "metrics": ("POST", f"{ATTEMPT}/metrics$"),
    "complete": ("POST", f"{ATTEMPT}/complete$"),
}
HARMS = {
    "request lost": {"drop": True},
    "reply lost": {"drop_reply": True},
    "sent twice": {"copies": 2},
    "late": {"delay_s": 1.5},
    "a proxy's error": {"status": 502},
    "reply torn": {"cut_at": 1, "spoil": lambda body: body or b"{}"},
    "reply spoiled": {"spoil": lambda _: b"<html>please log in</html>"},
}


# To the server a call is lost, repeated, doubled or late: each call in each of these ways. The rest differs for the
# client alone, which reads replies in one way, and those of storage in another: the calls whose replies it needs.
FOR_THE_SERVER = ("request lost", "reply lost", "sent twice", "late")
FOR_THE_CLIENT = ("a proxy's error", "reply torn", "reply spoiled")
NEEDS_THE_REPLY = ("claim", "put", "commit a checkpoint", "complete")
assert {*FOR_THE_SERVER, *FOR_THE_CLIENT} == HARMS.keys()
HARMED = [*product(CALLS, FOR_THE_SERVER), *product(NEEDS_THE_REPLY, FOR_THE_CLIENT)]


def everything(rig, scenario):
    """All that the platform says of the job."""
    return rig.client.get_job(scenario.job_id), list(rig.client.events(scenario.job_id)), scenario.safe()


def a_trap_for(call, rig, scenario, **harm):
    """Set a trap for the first such call of a job, and submit the job."""
    proxy = rig.storage if call == "put" else rig.control
    trap = Trap(*CALLS[call], **harm)
    if call != "claim":
        proxy.set(trap)
        scenario.submit()
        return trap
    # The claim that waits already gets the job otherwise.
    hold = proxy.set(Trap(*CALLS[call], hold=True, drop=True))
    assert hold.caught.wait(PATIENCE_S)
    proxy.set(trap)
    scenario.submit()
    hold.release()
    return trap


@pytest.mark.parametrize(("call", "harm"), HARMED)
def test_node_call_lost_repeated_torn_delayed_or_refused_causes_no_retry_or_repeated_step(rig, call, harm):
    scenario = rig.scenario()
    trap = a_trap_for(call, rig, scenario, **HARMS[harm])
    done = scenario.finish()
    assert trap.caught.is_set()
    assert len(done.attempts) == 1, rig.story(done.id)
    assert len(set(trap.statuses)) <= 1, "what is done twice is answered alike"
    assert all(200 <= status < 300 for status in trap.statuses)
    assert scenario.repeated() == 0
    types = [event.type for event in rig.client.events(done.id)]
    assert len(types) == len(set(types)) + types.count("checkpoint.committed") - 1, types


@pytest.mark.parametrize("harm", HARMS)
def test_the_report_of_a_failure_goes_wrong(rig, harm):
    scenario = rig.scenario()
    scenario.stop_at("step-15", "quit")
    trap = rig.control.set(Trap("POST", f"{ATTEMPT}/fail$", **HARMS[harm]))
    scenario.submit()
    node = rig.node
    assert trap.caught.wait(PATIENCE_S)
    rig.start_node()
    done = scenario.finish()
    assert [each.reason for each in done.attempts] == [Reason.CRASHED, Reason.SUCCEEDED]
    assert {machine.strikes for machine in rig.client.nodes() if machine.machine_id == node.machine_id} == {1}
    node.end()


@pytest.mark.parametrize("harm", HARMS)
def test_giving_the_job_back_goes_wrong(rig, harm):
    scenario = rig.scenario()
    scenario.stop_at("step-15", "obey")
    trap = rig.control.set(Trap("POST", f"{ATTEMPT}/release$", **HARMS[harm]))
    scenario.submit()
    scenario.await_gate("step-15")
    node = rig.node
    node.signal_agent(signal.SIGTERM)
    rig.start_node()
    done = scenario.finish()
    assert trap.caught.is_set()
    assert [each.reason for each in done.attempts] == [Reason.PREEMPTED, Reason.SUCCEEDED]
    assert done.attempts[1].start_step == 15, "no step is lost"
    assert scenario.repeated() == 0
    until(node.is_gone, "the node to leave")


@pytest.mark.parametrize("calls", [("heartbeat", "commit a checkpoint"), ("complete",)])
def test_late_heartbeat_commit_and_complete_of_dead_node_get_409_and_change_nothing(rig, calls):
    """Requests of a node that is dead arrive when another has long done the job: reordered as far as can be."""
    scenario = rig.scenario()
    late = [rig.control.set(Trap(*CALLS[name], hold=True)) for name in calls]
    scenario.submit()
    node = rig.node
    assert all(trap.caught.wait(PATIENCE_S) for trap in late)
    node.kill_all()
    rig.start_node()
    # Its checkpoint was not committed while it went on: the whole way may have to be gone again.
    scenario.finish(cadences=3)
    before = everything(rig, scenario)
    for trap in late:
        trap.release()
        assert trap.finished.wait(PATIENCE_S)
    assert all(trap.statuses == [409] for trap in late)
    assert everything(rig, scenario) == before


@pytest.mark.parametrize("call", CALLS)
def test_a_request_comes_again_when_the_job_is_over(rig, call):
    """The network kept a copy: of a request that was answered long ago."""
    scenario = rig.scenario()
    trap = a_trap_for(call, rig, scenario, again=True)
    done = scenario.finish()
    assert len(done.attempts) == 1
    before = everything(rig, scenario)
    trap.release()
    assert trap.finished.wait(PATIENCE_S)
    first, again = trap.statuses
    assert 200 <= first < 300
    assert again < 500
    assert everything(rig, scenario) == before


@pytest.mark.parametrize("call", ["claim", "heartbeat", "metrics", "ask for an upload", "put", "commit a checkpoint"])
def test_a_request_comes_again_while_the_job_runs(rig, call):
    scenario = rig.scenario()
    scenario.stop_at("step-25")
    trap = a_trap_for(call, rig, scenario, again=True)
    scenario.await_gate("step-25")
    scenario.await_committed(20)
    assert trap.answered.wait(PATIENCE_S)
    before = (rig.client.get_job(scenario.job_id).attempts[0].id, scenario.safe())
    trap.release()
    assert trap.finished.wait(PATIENCE_S)
    assert (rig.client.get_job(scenario.job_id).attempts[0].id, scenario.safe()) == before
    scenario.open()
    done = scenario.finish()
    assert len(done.attempts) == 1, rig.story(done.id)
    assert scenario.repeated() == 0


@pytest.mark.parametrize(
    ("late", "early"),
    [
        ("heartbeat", "commit a checkpoint"),
        ("heartbeat", "complete"),
        ("metrics", "commit a checkpoint"),
        ("commit a checkpoint", "heartbeat"),
        ("commit a checkpoint", "metrics"),
    ],
)
def test_a_request_is_overtaken_by_a_later_one(rig, late, early):
    scenario = rig.scenario()
    # Where what comes too late says less than is known by then.
    gate = "written-10" if late == "commit a checkpoint" else "step-5"
    scenario.stop_at(gate)
    held = rig.control.set(Trap(*CALLS[late], hold=True, skip=1 if late == "heartbeat" else 0))
    scenario.submit()
    scenario.await_gate(gate)
    assert held.caught.wait(PATIENCE_S)
    overtaking = rig.control.set(Trap(*CALLS[early]))
    scenario.open()
    assert overtaking.answered.wait(PATIENCE_S), rig.story(scenario.job_id)
    held.release()
    assert held.finished.wait(PATIENCE_S)
    done = scenario.finish()
    assert len(done.attempts) == 1, rig.story(done.id)
    assert scenario.repeated() == 0
    assert [step for step, _, _ in sorted(scenario.safe())][-1] == STEPS
    types = [event.type for event in rig.client.events(done.id)]
    assert len(types) == len(set(types)) + types.count("checkpoint.committed") - 1, types


def test_the_server_cannot_be_reached_for_longer_than_a_lease(rig):
    scenario = rig.scenario()
    scenario.run_to("step-15")
    node = rig.node
    for proxy in rig.proxies():
        proxy.down.set()
    until(lambda: "by the node's own clock" in node.log.read_text(), "the node to stop by its own clock")
    until(lambda: rig.client.get_job(scenario.job_id).state == "queued", "the lease to run out")
    for proxy in rig.proxies():
        proxy.down.clear()
    scenario.open()
    done = scenario.finish()
    assert len(done.attempts) == 2
    assert {each.node_id for each in done.attempts} == {done.attempts[0].node_id}
    assert node.process.poll() is None
    assert done.step == STEPS
