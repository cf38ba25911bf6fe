"""When a job would start and end: the forecast, and then what really happens on a fleet that keeps its pace."""

import pytest
from tests.fixtures.users import ANN, BOB, NODE, claim, move_in, new_dataset, new_job, progress, train

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.context import Context
from giornata.control.jobs.submission.estimate import estimate
from giornata.control.jobs.submission.submit import submit
from giornata.control.timestamps import instant
from giornata.domain.jobs.job import JobState
from giornata.protocol.jobs import Estimate, SubmitJob
from giornata.protocol.node.work import Claim, CompleteAttempt, Lease, NodeInfo

START_S, STEP_S = 20, 3
NODES = ("node_00000001", "node_00000002")


@pytest.fixture
def rig(ctx: Context) -> Context:
    move_in(ctx)
    return ctx


def one_done(ctx: Context, steps: int = 10, **spec: object) -> None:
    """Somebody's job of this shape, from beginning to end."""
    new_job(ctx, BOB, max_train_steps=steps, **spec)
    lease = claim(ctx)
    ctx.clock.advance_s(START_S + STEP_S)  # type: ignore[attr-defined]
    progress(ctx, lease, step=1)
    ctx.clock.advance_s((steps - 1) * STEP_S)  # type: ignore[attr-defined]
    complete(ctx, lease.attempt_id, CompleteAttempt(step=steps))


def asked(ctx: Context, steps: int = 10, **spec: object) -> SubmitJob:
    return train(new_dataset(ctx), max_train_steps=steps, **spec)


def look(ctx: Context, steps: int = 10, **spec: object) -> Estimate:
    return estimate(ctx, ANN, asked(ctx, steps, **spec))


def ask(ctx: Context, node: str) -> Lease | None:
    info = NodeInfo(node_id=node, machine_id=f"m-{node}", name=node, price_micro_usd_per_hour=360_000)
    request = Claim(request_id=ctx.names.new("request"), node=info, kinds=("train",))
    return claim_once(ctx, NODE, request).lease


def run_fleet(ctx: Context, wanted: str) -> int:
    """Both nodes work at their pace, second by second, until this job starts; when that is."""
    free_at_ms = dict.fromkeys(NODES, 0)
    held: dict[str, Lease] = {}
    while True:
        now_ms = ctx.clock.now_ms()
        for node in NODES:
            if node in held and now_ms >= free_at_ms[node]:
                lease = held.pop(node)
                complete(ctx, lease.attempt_id, CompleteAttempt(step=lease.spec["max_train_steps"]))
            if node not in held and (lease := ask(ctx, node)):
                if lease.job_id == wanted:
                    return now_ms
                held[node] = lease
                free_at_ms[node] = now_ms + 1000 * (START_S + STEP_S * int(lease.spec["max_train_steps"]))
        ctx.clock.advance_s(1)  # type: ignore[attr-defined]


def test_the_forecast_comes_true_on_a_fleet_that_keeps_its_pace(rig: Context) -> None:
    one_done(rig)
    for node in NODES:
        assert ask(rig, node) is None
    for caller in (ANN, BOB, ANN, BOB, ANN):
        submit(rig, caller, train(new_dataset(rig, caller), max_train_steps=10), None)
    known = look(rig)
    assert known.queue_position in {5, 6}
    job, _ = submit(rig, ANN, asked(rig), None)
    assert known.expected_start_at is not None
    assert known.expected_start_at == instant(run_fleet(rig, job.id))
    assert "places: 2, nodes: 2" in known.expectation


def test_running_jobs_are_waited_for_at_their_own_pace(rig: Context) -> None:
    one_done(rig)
    new_job(rig, ANN, max_train_steps=11)
    lease = claim(rig)
    rig.clock.advance_s(10)  # type: ignore[attr-defined]
    now = instant(rig.clock.now_ms())
    before = look(rig).expected_start_at
    assert before is not None
    assert (before - now).total_seconds() == START_S + STEP_S * 11, "it has made no step: nobody knows more"
    progress(rig, lease, step=1)
    rig.clock.advance_s(20)  # type: ignore[attr-defined]
    progress(rig, lease, step=5)
    found = look(rig)
    assert found.expected_start_at is not None
    left_s = (found.expected_start_at - instant(rig.clock.now_ms())).total_seconds()
    assert left_s == pytest.approx(6 * 5), "five seconds a step, not three"
    assert found.expected_end_at is None, "Ann has no history of her own, and others' is not told"


def test_forecast_on_idle_fleet_starts_now_and_ends_after_the_estimated_run(rig: Context) -> None:
    one_done(rig)
    new_job(rig, ANN)
    lease = claim(rig)
    rig.clock.advance_s(START_S + STEP_S)  # type: ignore[attr-defined]
    progress(rig, lease, step=1)
    rig.clock.advance_s(9 * STEP_S)  # type: ignore[attr-defined]
    complete(rig, lease.attempt_id, CompleteAttempt(step=10))
    found, now = look(rig, 100), instant(rig.clock.now_ms())
    assert found.expected_start_at == now
    assert found.expected_end_at is not None
    assert (found.expected_end_at - now).total_seconds() == START_S + 100 * STEP_S == found.run_s


@pytest.mark.parametrize("why", ["no node", "gone", "a new shape ahead", "a new shape runs"])
def test_forecast_without_data_is_empty_and_says_why(rig: Context, why: str) -> None:
    words = {
        "no node": "no node",
        "gone": "no node",
        "a new shape ahead": "1 of the jobs ahead",
        "a new shape runs": "that run now",
    }
    if why != "no node":
        one_done(rig)
    if why == "gone":
        rig.clock.advance_s(rig.policy.node_gone_after_s + 1)  # type: ignore[attr-defined]
    if why.startswith("a new shape"):
        assert new_job(rig, ANN, resolution=512).state is JobState.QUEUED
    if why == "a new shape runs":
        claim(rig)
    found = look(rig)
    assert (found.expected_start_at, found.expected_end_at) == (None, None)
    assert words[why] in found.expectation
