"""Budgets: warned about, enforced at the heartbeat, and nothing is lost when they are raised."""

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from tests.fixtures.work import PRICE, Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.lapse import lapse_leases
from giornata.control.attempts.reported_ends import fail, release
from giornata.control.caller import Caller
from giornata.control.jobs.read_jobs import get_job
from giornata.control.jobs.retry import continue_training, retry
from giornata.control.jobs.stop_job import cancel, expire_deadlines
from giornata.control.projects.set_budget import AT_ONCE, change_job, set_project_budget, settle_budgets
from giornata.domain.errors import IllegalTransition, LeaseLost
from giornata.domain.reasons import Reason
from giornata.protocol.admin import ROOT_PROJECT, Scope, SetBudget
from giornata.protocol.jobs import ChangeJob, ContinueJob
from giornata.protocol.work import CompleteAttempt, FailAttempt, Heartbeat, Lease, Order, ReleaseAttempt
from giornata.store import schema

OWNER = Caller(project_id=ROOT_PROJECT, scope=Scope.MEMBER, key_id="key_owner")
ROOT = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_root")
PER_S = PRICE // 3600


def beat(shop: Workshop, lease: Lease, *, after_s: float = 0, step: int = 1) -> Order:
    shop.clock.advance_s(after_s)
    return heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=step)).order


def project_budget(shop: Workshop, micro_usd: int | None) -> None:
    set_project_budget(shop.ctx, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=micro_usd))


def job_budget(shop: Workshop, job_id: str, micro_usd: int | None) -> str:
    return change_job(shop.ctx, OWNER, job_id, ChangeJob(budget_micro_usd=micro_usd)).state


def paused(shop: Workshop, *, seconds: int = 50, **columns: object) -> Lease:
    """A job that has spent its `seconds` of money, with a checkpoint at step 10."""
    shop.add_job(budget_micro_usd=seconds * PER_S, **columns)
    lease = shop.lease(1)
    assert beat(shop, lease, after_s=seconds) is Order.RELEASE
    shop.checkpoint(lease, 10)
    assert release(shop.ctx, lease.attempt_id, ReleaseAttempt(step=10)).job_state == "paused"
    return lease


@contextmanager
def statements(shop: Workshop) -> Iterator[list[str]]:
    """What is sent to the database meanwhile."""
    seen: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            seen.append(statement)

    with shop.store.begin() as tx:
        engine = tx.connection.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def test_a_job_is_warned_once_told_to_release_and_paused(shop: Workshop) -> None:
    job_id = shop.add_job(budget_micro_usd=100 * PER_S)
    lease = shop.lease(1)
    assert beat(shop, lease, after_s=79) is Order.CONTINUE
    assert "budget.warning" not in shop.events(job_id)
    assert beat(shop, lease, after_s=1) is Order.CONTINUE
    assert beat(shop, lease, after_s=19) is Order.CONTINUE
    assert shop.events(job_id).count("budget.warning") == 1
    told = {"budget": "job", "limit_micro_usd": 100 * PER_S, "spent_micro_usd": 80 * PER_S}
    assert shop.last_event(job_id, "budget.warning") == told
    assert beat(shop, lease, after_s=1) is Order.RELEASE
    assert beat(shop, lease, after_s=10) is Order.RELEASE  # its checkpoint is on the way
    shop.checkpoint(lease, 30)
    ended = release(shop.ctx, lease.attempt_id, ReleaseAttempt(step=30))
    assert ended.job_state == "paused"
    assert release(shop.ctx, lease.attempt_id, ReleaseAttempt(step=30)) == ended, "its reply was lost"
    assert shop.attempt(lease.attempt_id)["reason"] == "over_budget"
    assert shop.last_event(job_id, "job.paused")["spent_micro_usd"] == 110 * PER_S
    assert shop.claim(2).reason == "empty-queue"
    reply = get_job(shop.ctx, OWNER, job_id)
    assert (reply.state, reply.cost_micro_usd, reply.useful_s) == ("paused", 110 * PER_S, 110)
    assert reply.waiting_because is not None
    assert "is used up" in reply.waiting_because
    assert shop.job(job_id)["fruitless"] == 0
    assert shop.rows(schema.bans) == shop.rows(schema.strikes) == []


def test_raising_the_budget_puts_the_job_into_the_queue_ahead_of_fresh_ones(shop: Workshop) -> None:
    lease = paused(shop)
    fresh = shop.add_job()
    assert job_budget(shop, lease.job_id, 51 * PER_S) == "queued"
    assert shop.events(lease.job_id)[-1] == "job.resumed"
    assert shop.last_event(lease.job_id, "job.resumed") == {"resume_step": 10}
    again = shop.lease(2)
    assert again.job_id == lease.job_id != fresh
    assert [each.step for each in again.checkpoints] == [10]
    assert beat(shop, again, after_s=1, step=11) is Order.RELEASE, "it may spend one second more in all"


def test_a_budget_that_is_raised_too_little_leaves_the_job_paused(shop: Workshop) -> None:
    lease = paused(shop)
    assert job_budget(shop, lease.job_id, 50 * PER_S) == "paused"
    assert "job.resumed" not in shop.events(lease.job_id)
    assert job_budget(shop, lease.job_id, None) == "queued"


def test_an_order_is_taken_back_when_the_budget_is_raised_in_time(shop: Workshop) -> None:
    job_id = shop.add_job(budget_micro_usd=50 * PER_S)
    lease = shop.lease(1)
    assert beat(shop, lease, after_s=60) is Order.RELEASE
    assert job_budget(shop, job_id, 100 * PER_S) == "running"
    assert beat(shop, lease, after_s=10) is Order.CONTINUE
    assert beat(shop, lease, after_s=10) is Order.CONTINUE
    assert beat(shop, lease, after_s=20) is Order.RELEASE
    assert shop.events(job_id).count("budget.warning") == 2, "of the raised one it is warned anew"
    job_budget(shop, job_id, None)
    assert beat(shop, lease, after_s=10) is Order.CONTINUE
    assert release(shop.ctx, lease.attempt_id, ReleaseAttempt()).job_state == "queued"
    assert shop.attempt(lease.attempt_id)["reason"] == "released"


def test_a_node_that_does_not_stop_is_fenced_after_a_grace(shop: Workshop) -> None:
    job_id = shop.add_job(budget_micro_usd=50 * PER_S)
    lease = shop.lease(1)
    assert beat(shop, lease, after_s=50) is Order.RELEASE
    grace_s = shop.ctx.policy.stop_grace_s
    for _ in range(9):
        assert beat(shop, lease, after_s=grace_s / 10) is Order.RELEASE
    with pytest.raises(LeaseLost, match="the job is paused"):
        beat(shop, lease, after_s=grace_s / 10)
    with pytest.raises(LeaseLost):
        beat(shop, lease, after_s=30)
    assert (shop.job(job_id)["state"], shop.attempt(lease.attempt_id)["reason"]) == ("paused", "over_budget")
    assert get_job(shop.ctx, OWNER, job_id).cost_micro_usd == (50 + grace_s) * PER_S, "and not a moment more"


@pytest.mark.parametrize("seed", range(12))
def test_however_stubborn_the_node_a_budget_is_exceeded_by_two_beats_and_the_grace_at_most(
    shop: Workshop, seed: int
) -> None:
    dice, lease_s = random.Random(seed), shop.ctx.policy.lease_s
    limit_s = dice.randrange(1, 600)
    job_id, since_s, longest_s = shop.add_job(budget_micro_usd=limit_s * PER_S), 0.0, 0.0
    lease = shop.lease(1)
    for _ in range(200):
        pause_s = dice.choice([1.0, 30.0, lease_s / 2, lease_s])
        longest_s, since_s = max(longest_s, pause_s), since_s + pause_s
        shop.clock.advance_s(pause_s)
        lapse_leases(shop.ctx)
        try:
            beat(shop, lease)
        except LeaseLost:
            break
    else:
        pytest.fail("nobody ever stopped it")
    spent_s = get_job(shop.ctx, OWNER, job_id).cost_micro_usd / PER_S
    assert limit_s <= spent_s <= limit_s + 2 * longest_s + shop.ctx.policy.stop_grace_s
    assert shop.job(job_id)["state"] == "paused"


def test_a_node_that_came_back_from_a_lapse_and_does_not_stop_is_fenced_too(shop: Workshop) -> None:
    job_id = shop.add_job(budget_micro_usd=50 * PER_S)
    lease = shop.lease(1)
    assert beat(shop, lease, after_s=50) is Order.RELEASE
    job_budget(shop, job_id, 60 * PER_S)
    shop.clock.advance_s(shop.ctx.policy.stop_grace_s)
    lapse_leases(shop.ctx)
    assert shop.job(job_id)["state"] == "queued"
    assert beat(shop, lease) is Order.CONTINUE
    assert beat(shop, lease, after_s=10) is Order.RELEASE, "its grace begins with this order"


@pytest.mark.parametrize("end", ["lapse", "preempted", "crashed"])
def test_whatever_ends_the_attempt_a_job_without_money_does_not_queue(shop: Workshop, end: str) -> None:
    job_id = shop.add_job(budget_micro_usd=50 * PER_S)
    lease = shop.lease(1)
    beat(shop, lease, after_s=50)
    if end == "lapse":
        shop.clock.advance_s(100)
        assert lapse_leases(shop.ctx) == 1
        with pytest.raises(LeaseLost):
            beat(shop, lease)
    elif end == "preempted":
        release(shop.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED))
        assert shop.attempt(lease.attempt_id)["reason"] == "preempted", (
            "the node said why, and it is no order's doing"
        )
    else:
        fail(shop.ctx, lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message="oops"))
        assert len(shop.rows(schema.bans)) == 1
    assert (shop.job(job_id)["state"], shop.job(job_id)["paused_by"]) == ("paused", "job")
    assert shop.claim(2).reason == "empty-queue"


@pytest.mark.parametrize("budget", [None, 10_000 * PER_S])
def test_who_has_money_is_left_alone(shop: Workshop, budget: int | None) -> None:
    job_id = shop.add_job(budget_micro_usd=budget)
    lease = shop.lease(1)
    for _ in range(5):
        assert beat(shop, lease, after_s=60) is Order.CONTINUE
    shop.clock.advance_s(100)
    lapse_leases(shop.ctx)
    assert shop.job(job_id)["state"] == "queued"
    assert settle_budgets(shop.ctx) == 0
    assert not {"budget.warning", "job.paused"} & set(shop.events(job_id))


def test_a_job_that_is_done_in_time_is_done_whatever_it_cost(shop: Workshop) -> None:
    job_id = shop.add_job(budget_micro_usd=50 * PER_S)
    lease = shop.lease(1)
    assert beat(shop, lease, after_s=60) is Order.RELEASE
    complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=10))
    assert shop.job(job_id)["state"] == "succeeded"


def test_shares_of_a_node_are_what_counts(shop: Workshop) -> None:
    for budget in (100, 30):
        shop.add_job(joint_key="key", budget_micro_usd=budget * PER_S)
    first, second = shop.lease(1, joint_key="key"), shop.lease(1, joint_key="key")
    shop.clock.advance_s(58)
    assert (beat(shop, first), beat(shop, second)) == (Order.CONTINUE, Order.CONTINUE), "29 seconds each"
    shop.clock.advance_s(2)
    assert (beat(shop, first), beat(shop, second)) == (Order.CONTINUE, Order.RELEASE)


def test_a_paused_job_can_be_canceled_and_expires(shop: Workshop) -> None:
    lease = paused(shop)
    assert cancel(shop.ctx, OWNER, lease.job_id).state == "canceled"
    with pytest.raises(IllegalTransition, match="canceled"):
        job_budget(shop, lease.job_id, 10**9)
    late = paused(shop, deadline_at_ms=shop.clock.now_ms() + 60_000)
    shop.clock.advance_s(20)
    assert expire_deadlines(shop.ctx) == 1
    assert shop.job(late.job_id)["state"] == "expired"


def test_retrying_and_continuing_a_paused_job_say_what_to_do(shop: Workshop) -> None:
    lease = paused(shop)
    with pytest.raises(IllegalTransition, match="giornata budget"):
        retry(shop.ctx, OWNER, lease.job_id)
    with pytest.raises(IllegalTransition, match="giornata budget"):
        continue_training(shop.ctx, OWNER, lease.job_id, ContinueJob(), None)


def test_a_projects_budget_stops_all_its_jobs_and_nobody_elses(shop: Workshop) -> None:
    shop.add_project("ann")
    project_budget(shop, 100 * PER_S)
    mine = [shop.add_job() for _ in range(3)]
    theirs = shop.add_job(project_id="ann")
    leases = [shop.lease(number) for number in (1, 2)]
    shop.clock.advance_s(40)
    assert [beat(shop, lease) for lease in leases] == [Order.CONTINUE] * 2, "the second one warned of the project"
    shop.clock.advance_s(10)
    assert [beat(shop, lease) for lease in leases] == [Order.CONTINUE, Order.RELEASE]
    assert [shop.events(job).count("budget.warning") for job in mine] == [0, 1, 0], "and only once"
    assert beat(shop, leases[0]) is Order.RELEASE
    assert settle_budgets(shop.ctx) == 1
    for lease in leases:
        assert release(shop.ctx, lease.attempt_id, ReleaseAttempt()).job_state == "paused"
    assert shop.last_event(mine[2], "job.paused")["budget"] == "project"
    assert shop.lease(3).job_id == theirs
    assert settle_budgets(shop.ctx) == 0
    project_budget(shop, 200 * PER_S)
    assert {shop.job(job)["state"] for job in mine} == {"queued"}
    assert [shop.events(job)[-1] for job in mine] == ["job.resumed"] * 3
    assert [shop.job(job)["interrupted"] for job in mine] == [True, True, False]


def test_a_job_whose_own_money_is_used_up_stays_when_the_projects_is_raised(shop: Workshop) -> None:
    lease = paused(shop)
    project_budget(shop, 0)
    waiting = shop.add_job()
    assert settle_budgets(shop.ctx) == 1
    project_budget(shop, None)
    assert (shop.job(lease.job_id)["state"], shop.job(waiting)["state"]) == ("paused", "queued")
    project_budget(shop, 0)
    assert job_budget(shop, lease.job_id, None) == "paused", "now it waits for the project's"
    project_budget(shop, None)
    assert shop.job(lease.job_id)["state"] == "queued"


def test_more_jobs_than_one_transaction_moves_are_all_moved(shop: Workshop) -> None:
    count = AT_ONCE + 7
    for _ in range(count):
        shop.add_job()
    project_budget(shop, 0)
    states = {row["state"] for row in shop.rows(schema.jobs)}
    assert states == {"paused"}
    assert shop.claim(1).reason == "empty-queue"
    assert len(shop.rows(schema.events, type="job.paused")) == count


def test_what_settled_long_ago_is_added_up_once_and_still_counts(shop: Workshop) -> None:
    project_budget(shop, 10_000 * PER_S)
    for round_ in range(1, 6):
        shop.add_job()
        lease = shop.lease(round_)
        shop.clock.advance_s(80)
        complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=1))
        shop.clock.advance_s(400)
        shown = set_project_budget(shop.ctx, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=10_000 * PER_S))
        assert shown.spent_micro_usd == round_ * 80 * PER_S
    fresh = dataclasses.replace(shop.ctx, memory=type(shop.ctx.memory)())
    again = set_project_budget(fresh, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=1))
    assert again.spent_micro_usd == 5 * 80 * PER_S, "a server that remembers nothing finds the same"


def test_a_beat_of_a_job_without_a_budget_asks_no_more_than_before(shop: Workshop) -> None:
    shop.add_project("ann")
    shop.add_job()
    shop.add_job(budget_micro_usd=10**9)
    free, limited = shop.lease(1), shop.lease(2)
    for lease in (free, limited):
        beat(shop, lease)
    counts = []
    for lease in (free, limited):
        with statements(shop) as seen:
            beat(shop, lease, after_s=1, step=2)
        counts.append(len(seen))
        if lease is free:
            assert not [text for text in seen if "AS other" in text or "sum(" in text], seen
    most = {"sqlite": 7, "postgresql": 6}[shop.store.dialect_name]
    assert counts[0] == most < counts[1], counts


def test_a_canary_is_on_nobodys_budget(shop: Workshop) -> None:
    """It hangs on the operator's project, and tries a machine out whatever money there is."""
    project_budget(shop, 10 * PER_S)
    shop.add_job()
    first = shop.lease(1)
    fail(shop.ctx, first.attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it is broken"))
    shop.add_job()
    canary = shop.lease(1, kinds=("train", "canary"))  # the machine is on probation
    assert shop.job(canary.job_id)["kind"] == "canary"
    assert beat(shop, canary, after_s=30) is Order.CONTINUE
    # None of the money is used up by it.
    work = shop.lease(2)
    assert beat(shop, work, after_s=5) is Order.CONTINUE
    settle_budgets(shop.ctx)
    assert {row["state"] for row in shop.rows(schema.jobs, kind="train")} == {"queued", "running"}
    # ... and it goes on when there is no more.
    assert beat(shop, work, after_s=10) is Order.RELEASE
    release(shop.ctx, canary.attempt_id, ReleaseAttempt(step=1))
    settle_budgets(shop.ctx)
    assert {row["state"] for row in shop.rows(schema.jobs, kind="train")} == {"paused", "running"}
    assert shop.job(canary.job_id)["state"] == "queued"


def test_a_paused_job_that_is_canceled_waits_for_no_money(shop: Workshop) -> None:
    job_id = paused(shop).job_id
    assert shop.job(job_id)["paused_by"] == "job"
    cancel(shop.ctx, OWNER, job_id)
    assert (shop.job(job_id)["state"], shop.job(job_id)["paused_by"]) == ("canceled", None)
