"""Jobs that share a batch, stopped and taken up again: what their history says is what happened."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.joint_train_rig import JOBS, JointReporter, JointTrainRig
from tests.fixtures.train_rig import RecordingReporter

from giornata.protocol.node.pipe import ResumePoint, Start
from giornata.workloads.interface import AgentRequest, Outcome, Stopped

STOP = AgentRequest.CHECKPOINT_AND_STOP
STEPS: dict[str, dict[str, Any]] = {name: {"max_train_steps": 4} for name in JOBS}
STEPS["a"] |= {"network_dropout": 0.2, "rank_dropout": 0.3, "module_dropout": 0.2, "optimizer": "lion"}
STEPS["d"] |= {"scale_weight_norms": 0.05, "block_learning_rates": {"mid_block": 1e-4}}


def resuming(
    joint_rig: JointTrainRig, points: dict[str, tuple[RecordingReporter, int]]
) -> Callable[[str, Start], Start]:
    """Each of these jobs goes on from that step of what it reported."""

    def spoil(name: str, start: Start) -> Start:
        if name not in points:
            return start
        reporter, step = points[name]
        path = joint_rig.root / f"{name}-{start.attempt}-{step}-{start.directory.parent.name}.safetensors"
        path.write_bytes(reporter.checkpoint_bytes[step])
        return start.model_copy(update={"resume": ResumePoint(step=step, path=path)})

    return spoil


def history_of(table: JointReporter, name: str) -> list[tuple[int, int]]:
    """From which step on the batch had which width."""
    outcome = table.ends[name]
    assert isinstance(outcome, Outcome), outcome
    return [(each["from_step"], each["fingerprint"]["joint"]["width"]) for each in outcome.summary["fingerprints"]]


@pytest.fixture(scope="module")
def stopped(joint_rig: JointTrainRig) -> dict[str, RecordingReporter]:
    """a and d after two steps together."""
    reporters = {name: RecordingReporter(agent_requests={2: STOP}) for name in ("a", "d")}
    table, _ = joint_rig.together(["a", "d"], reporters=reporters, changes=STEPS)
    assert all(isinstance(end, Stopped) for end in table.ends.values())
    return reporters


def test_the_same_composition_resumed_leaves_no_trace(
    joint_rig: JointTrainRig, stopped: dict[str, RecordingReporter]
) -> None:
    """The result is the same although one job joins first, and trains alone until the other joins."""
    _, whole = joint_rig.together(["a", "d"], changes=STEPS)
    points = {name: (stopped[name], 2) for name in ("a", "d")}
    table, after = joint_rig.together(["a", "d"], changes=STEPS, spoil=resuming(joint_rig, points))
    for name in ("a", "d"):
        assert not after[name].notices
        assert history_of(table, name) == [(0, 2)]
        assert after[name].artifacts == whole[name].artifacts
        assert after[name].checkpoint_bytes[4] == whole[name].checkpoint_bytes[4]


def test_resume_in_another_batch_composition_gives_one_notice_with_both(
    joint_rig: JointTrainRig, stopped: dict[str, RecordingReporter]
) -> None:
    points = {name: (stopped[name], 2) for name in ("a", "d")}
    table, after = joint_rig.together(["a", "d", "b"], changes=STEPS, spoil=resuming(joint_rig, points))
    for place, name in enumerate(("a", "d")):
        ((notice, data),) = after[name].notices
        assert notice == "resumed-under-another-fingerprint"
        before, now = ({"place": place, "width": width, "rank": 16} for width in (2, 4))
        assert data == {"step": 2, "differences": {"joint": [before, now]}}
        assert history_of(table, name) == [(0, 2), (2, 4)]
    assert history_of(table, "b") == [(0, 4), (2, 1)]


def test_a_width_that_held_for_a_part_of_a_step_is_told(joint_rig: JointTrainRig) -> None:
    """c makes a step of two micro-batches, and a leaves after the first of its second step."""
    table, _ = joint_rig.together(
        ["a", "c"], changes=STEPS | {"a": {"max_train_steps": 3}, "c": {"max_train_steps": 3}}
    )
    assert history_of(table, "c") == [(0, 2), (1, 1)]


def test_a_job_that_is_done_takes_nothing_of_where_its_files_are_written(joint_rig: JointTrainRig) -> None:
    done = {"a": RecordingReporter(agent_requests={4: STOP})}
    _, whole = joint_rig.together(["a", "d"], changes=STEPS)
    joint_rig.together(["a", "d"], reporters=done, changes=STEPS)
    table, after = joint_rig.together(["b", "a"], changes=STEPS, spoil=resuming(joint_rig, {"a": (done["a"], 4)}))
    assert not after["a"].notices
    assert history_of(table, "a") == [(0, 2)]
    assert after["a"].artifacts == whole["a"].artifacts
