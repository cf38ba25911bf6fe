"""Which node the demo kills, what counts as an interruption, and what is said to have happened."""

import pytest
from examples.demo.snapshot import DemoSnapshot, changes, find_target, interruptions, present_nodes
from tests.unit.examples.demo_rig import attempt, ended, event, job, node

from giornata.domain.jobs.job import JobState
from giornata.protocol.events import EventType
from giornata.protocol.project.admin import NodeState


def halfway(name="heart", where="local-0", **fields):
    return job(name, attempt(node=where, committed_step=150, last_step=170), **({"step": 170} | fields))


def test_a_node_in_the_middle_of_a_job_is_the_target():
    target = find_target(DemoSnapshot(jobs=(halfway(),), nodes=(node(),)), ())
    assert target is not None
    assert (target.node.name, target.job.name, target.attempt.committed_step) == ("local-0", "heart", 150)


@pytest.mark.parametrize(
    "spared",
    [
        job("heart", attempt(committed_step=0, last_step=170), step=170),
        job("heart", ended(), attempt(2, start_step=150, committed_step=150, last_step=170), step=170),
        job("heart", attempt(committed_step=50, last_step=90), step=90),
        job("heart", attempt(committed_step=150, last_step=150), step=140, committed_step=150),
        job("heart", attempt(committed_step=350, last_step=360), step=360),
        job("heart", attempt(committed_step=150, last_step=170), step=170, state=JobState.QUEUED),
        job("heart", state=JobState.QUEUED),
        job("heart", attempt(committed_step=150), step=170, total_steps=None),
    ],
    ids=[
        "nothing committed",
        "nothing committed anew",
        "too early",
        "nothing to lose",
        "nearly done",
        "lapsed",
        "waiting",
        "no total",
    ],
)
def test_a_job_that_is_not_in_the_middle_is_spared(spared):
    assert find_target(DemoSnapshot(jobs=(spared,), nodes=(node(),)), ()) is None


def test_from_the_middle_on_nothing_more_is_waited_for():
    late = job("heart", attempt(committed_step=200, last_step=190), step=190, committed_step=200)
    assert find_target(DemoSnapshot(jobs=(late,), nodes=(node(),)), ()) is not None


@pytest.mark.parametrize("unknown", [node(pid=None), node(engine_pid=None), node("local-1")])
def test_a_node_that_cannot_be_killed_whole_is_spared(unknown):
    assert find_target(DemoSnapshot(jobs=(halfway(),), nodes=(unknown,)), ()) is None


def test_the_second_target_has_another_job_and_waits_for_the_first_job_to_go_on():
    nodes = (node("local-0"), node("local-1"))
    first, second, third = halfway("heart"), halfway("fish", "local-1"), job("cactus", state=JobState.QUEUED)
    assert find_target(DemoSnapshot(jobs=(first, second, third), nodes=nodes), {first.id}) is None
    resumed = job("heart", ended(), attempt(2, start_step=150, committed_step=180, last_step=190), step=190)
    target = find_target(DemoSnapshot(jobs=(resumed, second, third), nodes=nodes), {resumed.id})
    assert target is not None
    assert target.job.name == "fish"


def test_the_second_target_does_not_wait_when_it_is_the_last_chance():
    nodes = (node("local-0"), node("local-1"))
    first, second = halfway("heart"), halfway("fish", "local-1")
    target = find_target(DemoSnapshot(jobs=(first, second), nodes=nodes), {first.id})
    assert target is not None
    assert target.job.name == "fish"


def test_a_killed_node_is_shown_no_more_and_a_new_process_takes_its_place():
    old, new = node(id="old"), node(id="new")
    gone = node("local-2", state=NodeState.GONE)
    assert present_nodes([node("local-1"), new, gone]) == (new, node("local-1"))
    assert present_nodes([old, gone], {"old"}) == ()


def test_an_interruption_is_an_attempt_that_ended_without_blame_on_the_job():
    history = [
        event(EventType.ATTEMPT_STARTED, 1, resume_step=0),
        event(EventType.ATTEMPT_ENDED, 1, reason="lease_expired"),
        event(EventType.ATTEMPT_STARTED, 2, resume_step=150),
        event(EventType.ATTEMPT_ENDED, 2, reason="superseded"),
        event(EventType.ATTEMPT_STARTED, 3, resume_step=0),
        event(EventType.ATTEMPT_ENDED, 3, reason="preempted"),
    ]
    assert [(each.attempt, each.resumed_step) for each in interruptions(history)] == [(1, 150), (2, 0), (3, None)]


@pytest.mark.parametrize("reason", ["succeeded", "canceled", "bad_spec", "never heard of", None])
def test_attempt_ended_by_job_user_or_unknown_reason_is_no_interruption(reason):
    assert interruptions([event(EventType.ATTEMPT_ENDED, 1, reason=reason)]) == ()


def test_a_lapse_alone_is_no_interruption_for_the_attempt_may_come_back():
    assert interruptions([event(EventType.ATTEMPT_LAPSED, 1)]) == ()


def test_demo_changes_report_each_event_once():
    silent = job("heart", attempt(lapsed=True, committed_step=150), state=JobState.QUEUED)
    moved = job("heart", ended(), attempt(2, "local-1", start_step=150))
    replaced = job("heart", ended(), attempt(2, "local-0", start_step=150))
    afresh = job("heart", ended(), attempt(2, "local-1"))
    done = job("heart", ended(), attempt(2, "local-1", start_step=150), state=JobState.SUCCEEDED, step=400)
    failed = job("heart", attempt(), state=JobState.FAILED, error="out of luck")

    def told(before, after):
        return list(changes(DemoSnapshot(jobs=(before,) if before else ()), DemoSnapshot(jobs=(after,))))

    assert told(None, job("heart", state=JobState.QUEUED)) == []
    assert told(None, job("heart", attempt())) == ["heart: taken by local-0"]
    assert told(job("heart", attempt()), silent) == [
        "heart: local-0 has been silent for a whole lease; back in the queue"
    ]
    assert told(silent, silent) == []
    assert told(silent, moved) == ["heart: resumes on local-1 from step 150 of 400"]
    assert told(silent, replaced) == ["heart: resumes on a new local-0 from step 150 of 400"]
    assert told(silent, afresh) == ["heart: begins again on local-1"]
    assert told(moved, done) == ["heart: succeeded at step 400"]
    assert told(job("heart", attempt()), failed) == ["heart: failed, out of luck"]
