"""What jobs set aside of their project's budget: reserved at submission, released at the end, never twice."""

import dataclasses
import threading

import pytest
from tests.fixtures.users import ANN, ROOT, claim, move_in, new_dataset, progress, train

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.context import Context
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.control.projects.projects import list_projects
from giornata.control.projects.set_budget import change_job, set_project_budget
from giornata.domain.errors import Forbidden, NotFound, OverBudget
from giornata.protocol.jobs import ChangeJob, Job, SubmitJob
from giornata.protocol.node.work import CompleteAttempt, Heartbeat
from giornata.protocol.project.admin import Project, SetBudget

USD = 1_000_000


@pytest.fixture
def rig(ctx: Context) -> Context:
    move_in(ctx)
    return ctx


def limit(ctx: Context, micro_usd: int | None) -> Project:
    return set_project_budget(ctx, ROOT, "ann", SetBudget(budget_micro_usd=micro_usd))


def asked(ctx: Context, budget: int | None = None, **spec: object) -> SubmitJob:
    return train(new_dataset(ctx), **spec).model_copy(update={"budget_micro_usd": budget})


def send(ctx: Context, budget: int | None = None, key: str | None = None) -> Job:
    return submit(ctx, ANN, asked(ctx, budget), key)[0]


def test_jobs_are_taken_until_the_budget_is_set_aside(rig: Context) -> None:
    limit(rig, USD)
    first = send(rig, USD * 6 // 10)
    with pytest.raises(OverBudget, match=r"\$0.60 set aside"):
        send(rig, USD * 6 // 10)
    send(rig, USD * 4 // 10)
    with pytest.raises(OverBudget):
        send(rig)  # nothing is known of it, and nothing is left
    cancel(rig, ANN, first.id)
    assert send(rig, USD * 6 // 10).budget_micro_usd == USD * 6 // 10


def test_reservation_of_budget_does_not_count_spent_money_twice(rig: Context) -> None:
    limit(rig, USD)
    send(rig, USD * 8 // 10)
    lease = claim(rig)
    rig.clock.advance_s(3000)  # $0.30 at $0.36 an hour
    progress(rig, lease, step=1)
    before = limit(rig, USD)
    assert (before.spent_micro_usd, before.reserved_micro_usd) == (0, USD * 8 // 10)
    complete(rig, lease.attempt_id, CompleteAttempt(step=10))
    shown = limit(rig, USD)
    assert (shown.spent_micro_usd, shown.reserved_micro_usd) == (USD * 3 // 10, 0)
    send(rig, USD * 7 // 10)
    with pytest.raises(OverBudget):
        send(rig, 1)


def test_a_running_job_has_aside_what_it_may_still_spend(rig: Context) -> None:
    limit(rig, USD)
    send(rig, USD * 8 // 10)
    lease = claim(rig)
    rig.clock.advance_s(3000)
    heartbeat(rig, lease.attempt_id, Heartbeat(step=1))
    shown = limit(rig, USD)
    assert (shown.spent_micro_usd, shown.reserved_micro_usd) == (USD * 3 // 10, USD // 2)


def test_reservation_of_job_without_budget_is_its_estimate_and_a_quarter(rig: Context) -> None:
    send(rig)
    lease = claim(rig)
    rig.clock.advance_s(100)
    progress(rig, lease, step=1)
    rig.clock.advance_s(900)
    complete(rig, lease.attempt_id, CompleteAttempt(step=10))
    limit(rig, USD)
    send(rig)
    # 9 steps in 900 s: ten take 1000 s, at 100 micro-dollars a second.
    assert limit(rig, USD).reserved_micro_usd == 125_000


def test_two_at_once_do_not_both_squeeze_in(rig: Context) -> None:
    limit(rig, USD)
    requests = [asked(rig, USD * 6 // 10) for _ in range(6)]
    outcomes: list[object] = []
    start = threading.Barrier(len(requests))

    def one(request: SubmitJob) -> None:
        start.wait()
        try:
            outcomes.append(submit(rig, ANN, request, None)[0].id)
        except OverBudget as error:
            outcomes.append(error)

    threads = [threading.Thread(target=one, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == len(requests)
    assert len([each for each in outcomes if isinstance(each, str)]) == 1, outcomes


def test_equal_requests_at_once_reserve_once(rig: Context) -> None:
    limit(rig, USD)
    request, start = asked(rig, USD * 6 // 10), threading.Barrier(4)
    outcomes: list[object] = []

    def one() -> None:
        start.wait()
        try:
            outcomes.append(submit(rig, ANN, request, "key")[0].id)
        except OverBudget as error:
            outcomes.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    assert len(set(outcomes)) == 1, outcomes


def test_a_refused_submission_leaves_nothing_and_its_key_free(rig: Context) -> None:
    limit(rig, USD)
    request = asked(rig, 2 * USD)
    with pytest.raises(OverBudget):
        submit(rig, ANN, request, "key")
    limit(rig, 3 * USD)
    job, created = submit(rig, ANN, request, "key")
    assert created
    assert submit(rig, ANN, request, "key")[0].id == job.id, "and a repeat reserves nothing more"
    assert limit(rig, 3 * USD).reserved_micro_usd == 2 * USD


def test_a_retry_sets_aside_as_much_again(rig: Context) -> None:
    limit(rig, USD)
    old = send(rig, USD * 6 // 10)
    cancel(rig, ANN, old.id)
    assert retry(rig, ANN, old.id).budget_micro_usd == USD * 6 // 10
    other = send(rig, USD * 4 // 10)
    cancel(rig, ANN, other.id)
    limit(rig, USD * 9 // 10)
    with pytest.raises(OverBudget):
        retry(rig, ANN, other.id)


def test_raising_a_jobs_budget_needs_room_in_the_projects(rig: Context) -> None:
    limit(rig, USD)
    job = send(rig, USD // 2)
    with pytest.raises(OverBudget):
        change_job(rig, ANN, job.id, ChangeJob(budget_micro_usd=USD + 1))
    assert change_job(rig, ANN, job.id, ChangeJob(budget_micro_usd=USD)).budget_micro_usd == USD
    assert change_job(rig, ANN, job.id, ChangeJob(budget_micro_usd=USD // 4)).budget_micro_usd == USD // 4
    assert limit(rig, USD).reserved_micro_usd == USD // 4


def test_budget_changes_without_the_right_or_of_unknown_projects_are_refused(rig: Context) -> None:
    job = send(rig)
    bob = dataclasses.replace(ANN, project_id="bob")
    with pytest.raises(NotFound):
        change_job(rig, bob, job.id, ChangeJob(budget_micro_usd=1))
    with pytest.raises(Forbidden):
        set_project_budget(rig, ANN, "ann", SetBudget(budget_micro_usd=1))
    with pytest.raises(NotFound):
        set_project_budget(rig, ROOT, "nobody", SetBudget(budget_micro_usd=1))
    limit(rig, 7)
    (own,) = list_projects(rig, ANN, None, 10).items
    assert own.budget_micro_usd == 7
    assert {each.id: each.budget_micro_usd for each in list_projects(rig, ROOT, None, 10).items}["bob"] is None


def test_project_without_budget_has_no_submission_refused_and_no_spending_shown(rig: Context) -> None:
    for _ in range(3):
        send(rig, 10**15)
    (own,) = list_projects(rig, ANN, None, 10).items
    assert (own.budget_micro_usd, own.spent_micro_usd, own.reserved_micro_usd) == (None, None, None)
