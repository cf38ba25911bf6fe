"""Sweeps: jobs that are made together, one budget for all of them, and a parent that follows them."""

from typing import Any

import pytest
from tests.contract.store.test_budgets import OWNER, PER_S, ROOT, beat, statements
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ANN, new_dataset, new_job

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.report import put_metrics
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.control.jobs.reading.read_sweep import compare_jobs, get_sweep
from giornata.control.jobs.retry import retry
from giornata.control.jobs.settle_sweep import settle_sweeps
from giornata.control.jobs.stop_job import cancel, expire_deadlines
from giornata.control.jobs.submission.submit_sweep import submit_sweep
from giornata.control.projects.projects import create_project
from giornata.control.projects.set_budget import change_job, set_project_budget
from giornata.domain.errors import IdempotencyMismatch, IllegalTransition, InvalidInput, NotFound, OverBudget
from giornata.domain.jobs.reasons import Reason
from giornata.domain.jobs.sweep import MOST_SWEPT
from giornata.protocol.jobs import ChangeJob
from giornata.protocol.node.work import (
    CompleteAttempt,
    FailAttempt,
    Lease,
    MetricBatch,
    Order,
    ReleaseAttempt,
    StepMetrics,
)
from giornata.protocol.project.admin import ROOT_PROJECT, CreateProject, SetBudget
from giornata.protocol.sweeps import SubmitSweep, Sweep
from giornata.store import schema

COMMON: dict[str, Any] = {"model": "some/model", "instance_prompt": "sks", "max_train_steps": 10, "rank": 4}
MOST_STATEMENTS = 8
"""That a page may ask; a comparison is all that its page reads."""
RANKS: dict[str, Any] = {"rank": [8, 16, 32]}


def request(rig: StoreRig, **changes: Any) -> SubmitSweep:
    spec = {**COMMON, "dataset": new_dataset(rig.ctx, OWNER).id, **changes.pop("spec", {})}
    grid = {} if "changes" in changes else RANKS
    return SubmitSweep.model_validate({"spec": spec, "grid": grid, **changes})


def submitted(rig: StoreRig, **changes: Any) -> Sweep:
    job_id, made = submit_sweep(rig.ctx, OWNER, request(rig, **changes), None)
    assert made
    return get_sweep(rig.ctx, OWNER, job_id)


def again(rig: StoreRig, sweep: Sweep) -> Sweep:
    settle_sweeps(rig.ctx)
    return get_sweep(rig.ctx, OWNER, sweep.job.id)


def states(sweep: Sweep) -> list[str]:
    return [str(each.state) for each in sweep.jobs]


def finish(rig: StoreRig, lease: Lease, *, after_s: float = 0) -> None:
    rig.clock.advance_s(after_s)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=10))


def faults_of(rig: StoreRig, **changes: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        submit_sweep(rig.ctx, OWNER, request(rig, **changes), None)
    assert rig.rows(schema.jobs) == []
    return {fault.where: fault.message for fault in caught.value.faults}


def test_a_grid_makes_a_job_for_each_combination_in_order(rig: StoreRig) -> None:
    made = submitted(
        rig, grid={"network_dim": [8, 16], "learning_rate": [1e-4, 5e-5]}, name="my dog", labels={"team": "art"}
    )
    assert made.differs == ("rank", "learning_rate")
    told = [(each.number, each.changes["rank"], each.changes["learning_rate"], each.name) for each in made.jobs]
    assert told == [
        (1, 8, 1e-4, "my dog 1"),
        (2, 8, 5e-5, "my dog 2"),
        (3, 16, 1e-4, "my dog 3"),
        (4, 16, 5e-5, "my dog 4"),
    ]
    assert (made.job.kind, made.job.state, made.job.total_steps, made.job.step) == ("sweep", "running", 4, 0)
    third = get_job(rig.ctx, OWNER, made.jobs[2].job_id)
    assert (third.spec["rank"], third.spec["learning_rate"], third.parent_id) == (16, 1e-4, made.job.id)
    assert (third.labels, third.spec["output_name"]) == ({"team": "art"}, "my dog-3")
    assert rig.events(made.job.id) == ["job.submitted"]
    assert len(list_jobs(rig.ctx, OWNER, states=(), labels={}, kind="sweep", cursor=None, limit=50).items) == 1


def test_a_list_of_changes_makes_a_job_for_each(rig: StoreRig) -> None:
    made = submitted(rig, changes=[{"rank": 8}, {"max_train_steps": 20, "rank": 8}])
    assert [each.changes for each in made.jobs] == [{"rank": 8}, {"max_train_steps": 20, "rank": 8}]
    assert [each.total_steps for each in made.jobs] == [10, 20]
    assert made.differs == ("max_train_steps",)


def test_nodes_get_the_jobs_of_a_sweep_and_never_the_sweep(rig: StoreRig) -> None:
    made = submitted(rig)
    assert rig.claim(1, kinds=("sweep",)).lease is None
    taken = {rig.lease(number).job_id for number in range(1, 4)}
    assert taken == {each.job_id for each in made.jobs}
    assert rig.claim(4, kinds=("train", "sweep")).lease is None


def test_the_faults_of_all_jobs_come_at_once_and_nothing_is_made(rig: StoreRig) -> None:
    wrong = [{"rank": -1}, {"learning_rate": "fast"}, {"rank": 8, "no_such": 1}]
    found = faults_of(rig, changes=wrong, spec={"instance_prompt": " "})
    assert set(found) == {
        "changes.0.rank",
        "changes.1.learning_rate",
        "changes.2.no_such",
        "spec.instance_prompt",
    }


def test_a_fault_of_a_grid_is_said_once_for_each_value(rig: StoreRig) -> None:
    found = faults_of(rig, grid={"rank": [-1, 8], "max_train_steps": [10, 20]})
    assert list(found) == ["grid.rank"]


def test_a_sweep_without_changes_or_with_too_many_is_refused(rig: StoreRig) -> None:
    assert set(faults_of(rig, grid={})) == {"changes"}
    assert set(faults_of(rig, grid=RANKS, changes=[{"rank": 8}])) == {"changes"}
    found = faults_of(rig, grid={"rank": list(range(1, 10)), "max_train_steps": list(range(10, 20))})
    assert found["grid"].startswith("has 90 combinations")
    assert set(faults_of(rig, grid={"rank": []})) == {"grid.rank"}
    assert faults_of(rig, changes=[{"rank": 8}, {"network_dim": 8}]) == {"changes.1": "is the same as changes.0"}


def test_an_equal_request_with_the_same_key_makes_one_sweep(rig: StoreRig) -> None:
    asked = request(rig)
    first = submit_sweep(rig.ctx, OWNER, asked, "key-1")
    assert submit_sweep(rig.ctx, OWNER, asked, "key-1") == (first[0], False)
    with pytest.raises(IdempotencyMismatch):
        submit_sweep(rig.ctx, OWNER, asked.model_copy(update={"priority": 1}), "key-1")
    assert len(rig.rows(schema.jobs)) == 4


def test_a_sweep_ends_when_its_last_job_has_ended_and_succeeds_if_one_did(rig: StoreRig) -> None:
    made = submitted(rig)
    first, second, third = (rig.lease(number) for number in range(1, 4))
    finish(rig, first, after_s=10)
    fail(rig.ctx, second.attempt_id, FailAttempt(reason=Reason.BAD_DATA, message="no picture is one"))
    now = again(rig, made)
    assert (now.job.state, now.job.step, now.job.cost_micro_usd) == ("running", 2, 20 * PER_S)
    assert ["no picture is one" in (each.error or "") for each in now.jobs] == [False, True, False]
    finish(rig, third)
    ended = again(rig, made).job
    assert (ended.state, ended.step, ended.result) == ("succeeded", 3, {"succeeded": 2, "failed": 1})
    assert rig.events(made.job.id)[-1] == "job.succeeded"
    assert settle_sweeps(rig.ctx) == 0


def test_a_sweep_whose_jobs_all_failed_fails(rig: StoreRig) -> None:
    made = submitted(rig, grid={"rank": [8]})
    fail(rig.ctx, rig.lease(1).attempt_id, FailAttempt(reason=Reason.BAD_DATA, message="no picture is one"))
    ended = again(rig, made).job
    assert (ended.state, ended.error) == ("failed", "no job of the sweep succeeded")


def test_canceling_a_sweep_cancels_its_jobs_and_fences_their_nodes(rig: StoreRig) -> None:
    made = submitted(rig)
    lease = rig.lease(1)
    finish(rig, rig.lease(2))
    assert cancel(rig.ctx, OWNER, made.job.id).state == "canceled"
    assert sorted(states(get_sweep(rig.ctx, OWNER, made.job.id))) == ["canceled", "canceled", "succeeded"]
    assert rig.attempt(lease.attempt_id)["reason"] == "canceled"
    assert cancel(rig.ctx, OWNER, made.job.id).state == "canceled"
    assert settle_sweeps(rig.ctx) == 0


def test_a_deadline_of_a_sweep_ends_its_jobs(rig: StoreRig) -> None:
    made = submitted(rig, deadline_s=60)
    rig.clock.advance_s(61)
    assert expire_deadlines(rig.ctx) == 1
    assert states(get_sweep(rig.ctx, OWNER, made.job.id)) == ["expired"] * 3


def test_a_sweep_cannot_be_retried_and_a_retried_job_leaves_it(rig: StoreRig) -> None:
    made = submitted(rig)
    cancel(rig.ctx, OWNER, made.job.id)
    with pytest.raises(IllegalTransition, match="retry its jobs"):
        retry(rig.ctx, OWNER, made.job.id)
    assert retry(rig.ctx, OWNER, made.jobs[0].job_id).parent_id is None


def test_while_nobody_knows_what_a_job_costs_one_begins_at_a_time(rig: StoreRig) -> None:
    made = submitted(rig, budget_micro_usd=100 * PER_S)
    assert states(made) == ["queued", "paused", "paused"]
    assert "the sweep's budget has no room for it" in (made.jobs[1].waiting_because or "")
    assert rig.events(made.jobs[1].job_id) == ["job.submitted", "job.paused"]
    lease = rig.lease(1)
    assert states(again(rig, made)) == ["running", "paused", "paused"]
    assert rig.claim(2).lease is None
    finish(rig, lease, after_s=30)
    # Each of the others may cost 30 s and a quarter more: of the 70 s that are left, one has room.
    assert states(again(rig, made)) == ["succeeded", "queued", "paused"]


def test_a_budget_with_room_for_all_lets_all_begin(rig: StoreRig) -> None:
    made = submitted(rig, budget_micro_usd=1000 * PER_S)
    finish(rig, rig.lease(1), after_s=30)
    assert states(again(rig, made)) == ["succeeded", "queued", "queued"]


def test_a_sweep_that_used_up_its_budget_stops_and_goes_on_when_it_is_raised(rig: StoreRig) -> None:
    made = submitted(rig, budget_micro_usd=50 * PER_S)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=40) is Order.CONTINUE
    again(rig, made)
    assert rig.events(made.job.id) == ["job.submitted", "budget.warning"]
    assert beat(rig, lease, after_s=10) is Order.RELEASE
    assert release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=5)).job_state == "paused"
    now = again(rig, made)
    assert (now.job.state, states(now)) == ("paused", ["paused"] * 3)
    assert rig.claim(2).lease is None
    raised = change_job(rig.ctx, OWNER, made.job.id, ChangeJob(budget_micro_usd=500 * PER_S))
    assert (raised.state, raised.budget_micro_usd) == ("running", 500 * PER_S)
    assert states(again(rig, made)) == ["queued", "paused", "paused"]
    change_job(rig.ctx, OWNER, made.job.id, ChangeJob(budget_micro_usd=None))
    assert states(again(rig, made)) == ["queued"] * 3
    assert rig.events(made.job.id)[-2:] == ["job.paused", "job.resumed"]


def test_a_budget_of_its_own_lets_no_job_go_for_which_its_sweep_has_no_room(rig: StoreRig) -> None:
    made = submitted(rig, budget_micro_usd=100 * PER_S)
    for budget in (500 * PER_S, None):
        change_job(rig.ctx, OWNER, made.jobs[1].job_id, ChangeJob(budget_micro_usd=budget))
        assert states(get_sweep(rig.ctx, OWNER, made.job.id)) == ["queued", "paused", "paused"]
    assert "the sweep's budget has no room for it" in (again(rig, made).jobs[1].waiting_because or "")


def test_a_project_without_room_for_the_sweep_refuses_it_whole(rig: StoreRig) -> None:
    set_project_budget(rig.ctx, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=0))
    with pytest.raises(OverBudget):
        submit_sweep(rig.ctx, OWNER, request(rig), None)
    assert rig.rows(schema.jobs) == []


def test_a_table_has_loss_and_sheet_of_each_job(rig: StoreRig) -> None:
    made = submitted(rig)
    lease = rig.lease(1)
    points = tuple(StepMetrics(step=step, values={"loss": float(step)}) for step in range(1, 11))
    put_metrics(rig.ctx, lease.attempt_id, MetricBatch(points=points))
    for name in ("x-samples-00000004.png", "x-samples-00000008.png", "x-samples-by-step.png", "x.safetensors"):
        rig.artifact(lease, name)
    swept = {each.job_id: each for each in again(rig, made).jobs}
    ours = swept[lease.job_id]
    assert ours.loss == 10
    assert ours.sheet is not None
    assert ours.sheet.name == "x-samples-00000008.png"
    rig.artifact(lease, "x-samples.png")
    finish(rig, lease)
    last = {each.job_id: each for each in again(rig, made).jobs}[lease.job_id].sheet
    assert last is not None
    assert last.name == "x-samples.png"


def test_a_sweep_of_another_project_is_not_there(rig: StoreRig) -> None:
    made = submitted(rig)
    with pytest.raises(NotFound):
        get_sweep(rig.ctx, ANN, made.job.id)
    with pytest.raises(NotFound, match="kind train"):
        get_sweep(rig.ctx, OWNER, made.jobs[0].job_id)


def test_jobs_of_no_sweep_are_compared_in_the_order_in_which_they_are_named(rig: StoreRig) -> None:
    same = {"alpha": 4, "seed": 7}
    first, second = (new_job(rig.ctx, OWNER, rank=rank, **same).id for rank in (8, 16))
    lease = rig.lease(1)
    points = tuple(StepMetrics(step=step, values={"loss": float(step)}) for step in range(1, 11))
    put_metrics(rig.ctx, lease.attempt_id, MetricBatch(points=points))
    rig.artifact(lease, "x-samples-00000008.png")
    finish(rig, lease, after_s=60)
    found = compare_jobs(rig.ctx, OWNER, [second, first, second])
    assert [(each.number, each.job_id) for each in found.jobs] == [(1, second), (2, first)]
    assert found.differs == ("rank",)
    assert [each.changes for each in found.jobs] == [{"rank": 16}, {"rank": 8}]
    ours = {each.job_id: each for each in found.jobs}[lease.job_id]
    assert (ours.state, ours.loss, ours.sheet is not None) == ("succeeded", 10, True)
    assert ours.cost_micro_usd > 0


def test_a_comparison_names_the_first_job_that_is_not_there_or_not_the_callers(rig: StoreRig) -> None:
    create_project(rig.ctx, ROOT, CreateProject(id="ann"))
    own, foreign, other = new_job(rig.ctx, OWNER).id, new_job(rig.ctx, ANN).id, rig.add_job(kind="x-count")
    for job_id in (foreign, "job_none", "job_\0", other, submitted(rig).job.id):
        with pytest.raises(NotFound) as caught:
            compare_jobs(rig.ctx, OWNER, [own, job_id])
        assert str(caught.value) == f"there is no training job {job_id}"
    with pytest.raises(InvalidInput) as refused:
        compare_jobs(rig.ctx, OWNER, [f"job_{number}" for number in range(MOST_SWEPT + 1)])
    assert [fault.where for fault in refused.value.faults] == ["job"]


def test_a_comparison_of_many_jobs_takes_as_many_statements_as_one_of_one(rig: StoreRig) -> None:
    jobs = [new_job(rig.ctx, OWNER, rank=rank).id for rank in (4, 8, 16, 32)]
    counts = set()
    for some in (jobs[:1], jobs):
        with statements(rig) as seen:
            compare_jobs(rig.ctx, OWNER, some)
        counts.add(len(seen))
    assert len(counts) == 1
    assert max(counts) <= MOST_STATEMENTS


def test_a_beat_of_a_job_of_no_sweep_asks_nothing_more(rig: StoreRig) -> None:
    def of_a_beat(lease: Lease) -> list[str]:
        with statements(rig) as seen:
            beat(rig, lease)
        return seen

    submitted(rig)
    rig.add_job()
    leases = [rig.lease(number) for number in range(1, 5)]
    assert len({len(of_a_beat(lease)) for lease in leases}) == 1
