"""What jobs set aside of their project's budget: reserved at submission, released at the end, never twice."""

import dataclasses
import threading

import pytest
from tests.fixtures.users import ANN, ROOT, claim, move_in, new_dataset, progress, train

from giornata.control.attempts.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.context import Context
from giornata.control.jobs.retry import retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submit import submit
from giornata.control.projects.projects import list_projects
from giornata.control.projects.set_budget import change_job, set_project_budget
from giornata.domain.errors import Forbidden, NotFound, OverBudget
from giornata.protocol.admin import Project, SetBudget
from giornata.protocol.jobs import ChangeJob, Job, SubmitJob
from giornata.protocol.work import CompleteAttempt, Heartbeat

USD = 1_000_000


@pytest.fixture
def house(ctx: Context) -> Context:
    move_in(ctx)
    return ctx


def limit(ctx: Context, micro_usd: int | None) -> Project:
    return set_project_budget(ctx, ROOT, "ann", SetBudget(budget_micro_usd=micro_usd))


def asked(ctx: Context, budget: int | None = None, **spec: object) -> SubmitJob:
    return train(new_dataset(ctx), **spec).model_copy(update={"budget_micro_usd": budget})


def send(ctx: Context, budget: int | None = None, key: str | None = None) -> Job:
    return submit(ctx, ANN, asked(ctx, budget), key)[0]


def test_jobs_are_taken_until_the_budget_is_set_aside(house: Context) -> None:
    limit(house, USD)
    first = send(house, USD * 6 // 10)
    with pytest.raises(OverBudget, match=r"\$0.60 set aside"):
        send(house, USD * 6 // 10)
    send(house, USD * 4 // 10)
    with pytest.raises(OverBudget):
        send(house)  # nothing is known of it, and nothing is left
    cancel(house, ANN, first.id)
    assert send(house, USD * 6 // 10).budget_micro_usd == USD * 6 // 10


def test_what_a_job_has_spent_is_not_counted_twice(house: Context) -> None:
    limit(house, USD)
    send(house, USD * 8 // 10)
    lease = claim(house)
    house.clock.advance_s(3000)  # $0.30 at $0.36 an hour
    progress(house, lease, step=1)
    before = limit(house, USD)
    assert (before.spent_micro_usd, before.reserved_micro_usd) == (0, USD * 8 // 10)
    complete(house, lease.attempt_id, CompleteAttempt(step=10))
    shown = limit(house, USD)
    assert (shown.spent_micro_usd, shown.reserved_micro_usd) == (USD * 3 // 10, 0)
    send(house, USD * 7 // 10)
    with pytest.raises(OverBudget):
        send(house, 1)


def test_a_running_job_has_aside_what_it_may_still_spend(house: Context) -> None:
    limit(house, USD)
    send(house, USD * 8 // 10)
    lease = claim(house)
    house.clock.advance_s(3000)
    heartbeat(house, lease.attempt_id, Heartbeat(step=1))
    shown = limit(house, USD)
    assert (shown.spent_micro_usd, shown.reserved_micro_usd) == (USD * 3 // 10, USD // 2)


def test_without_a_budget_of_its_own_a_job_sets_aside_its_estimate_and_a_quarter(house: Context) -> None:
    send(house)
    lease = claim(house)
    house.clock.advance_s(100)
    progress(house, lease, step=1)
    house.clock.advance_s(900)
    complete(house, lease.attempt_id, CompleteAttempt(step=10))
    limit(house, USD)
    send(house)
    # 9 steps in 900 s: ten take 1000 s, at 100 micro-dollars a second.
    assert limit(house, USD).reserved_micro_usd == 125_000


def test_two_at_once_do_not_both_squeeze_in(house: Context) -> None:
    limit(house, USD)
    requests = [asked(house, USD * 6 // 10) for _ in range(6)]
    outcomes: list[object] = []
    start = threading.Barrier(len(requests))

    def one(request: SubmitJob) -> None:
        start.wait()
        try:
            outcomes.append(submit(house, ANN, request, None)[0].id)
        except OverBudget as error:
            outcomes.append(error)

    threads = [threading.Thread(target=one, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == len(requests)
    assert len([each for each in outcomes if isinstance(each, str)]) == 1, outcomes


def test_equal_requests_at_once_reserve_once(house: Context) -> None:
    limit(house, USD)
    request, start = asked(house, USD * 6 // 10), threading.Barrier(4)
    outcomes: list[object] = []

    def one() -> None:
        start.wait()
        try:
            outcomes.append(submit(house, ANN, request, "key")[0].id)
        except OverBudget as error:
            outcomes.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    assert len(set(outcomes)) == 1, outcomes


def test_a_refused_submission_leaves_nothing_and_its_key_free(house: Context) -> None:
    limit(house, USD)
    request = asked(house, 2 * USD)
    with pytest.raises(OverBudget):
        submit(house, ANN, request, "key")
    limit(house, 3 * USD)
    job, created = submit(house, ANN, request, "key")
    assert created
    assert submit(house, ANN, request, "key")[0].id == job.id, "and a repeat reserves nothing more"
    assert limit(house, 3 * USD).reserved_micro_usd == 2 * USD


def test_a_retry_sets_aside_as_much_again(house: Context) -> None:
    limit(house, USD)
    old = send(house, USD * 6 // 10)
    cancel(house, ANN, old.id)
    assert retry(house, ANN, old.id).budget_micro_usd == USD * 6 // 10
    other = send(house, USD * 4 // 10)
    cancel(house, ANN, other.id)
    limit(house, USD * 9 // 10)
    with pytest.raises(OverBudget):
        retry(house, ANN, other.id)


def test_raising_a_jobs_budget_needs_room_in_the_projects(house: Context) -> None:
    limit(house, USD)
    job = send(house, USD // 2)
    with pytest.raises(OverBudget):
        change_job(house, ANN, job.id, ChangeJob(budget_micro_usd=USD + 1))
    assert change_job(house, ANN, job.id, ChangeJob(budget_micro_usd=USD)).budget_micro_usd == USD
    assert change_job(house, ANN, job.id, ChangeJob(budget_micro_usd=USD // 4)).budget_micro_usd == USD // 4
    assert limit(house, USD).reserved_micro_usd == USD // 4


def test_who_may_do_what(house: Context) -> None:
    job = send(house)
    bob = dataclasses.replace(ANN, project_id="bob")
    with pytest.raises(NotFound):
        change_job(house, bob, job.id, ChangeJob(budget_micro_usd=1))
    with pytest.raises(Forbidden):
        set_project_budget(house, ANN, "ann", SetBudget(budget_micro_usd=1))
    with pytest.raises(NotFound):
        set_project_budget(house, ROOT, "nobody", SetBudget(budget_micro_usd=1))
    limit(house, 7)
    (own,) = list_projects(house, ANN, None, 10).items
    assert own.budget_micro_usd == 7
    assert {each.id: each.budget_micro_usd for each in list_projects(house, ROOT, None, 10).items}["bob"] is None


def test_without_a_budget_nothing_is_refused_and_nothing_shown(house: Context) -> None:
    for _ in range(3):
        send(house, 10**15)
    (own,) = list_projects(house, ANN, None, 10).items
    assert (own.budget_micro_usd, own.spent_micro_usd, own.reserved_micro_usd) == (None, None, None)
