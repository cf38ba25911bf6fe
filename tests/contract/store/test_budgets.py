"""Budgets: warned about, enforced at the heartbeat, and nothing is lost when they are raised."""

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.store_rig import PRICE, StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.retry import continue_training, retry
from giornata.control.jobs.stop_job import cancel, expire_deadlines
from giornata.control.projects.set_budget import AT_ONCE, change_job, set_project_budget, settle_budgets
from giornata.domain.errors import IllegalTransition, LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import ChangeJob, ContinueJob
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Heartbeat, Lease, Order, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope, SetBudget
from giornata.store import schema

OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")
ROOT = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")
PER_S = PRICE // 3600


def beat(rig: StoreRig, lease: Lease, *, after_s: float = 0, step: int = 1) -> Order:
    rig.clock.advance_s(after_s)
    return heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=step)).order


def project_budget(rig: StoreRig, micro_usd: int | None) -> None:
    set_project_budget(rig.ctx, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=micro_usd))


def job_budget(rig: StoreRig, job_id: str, micro_usd: int | None) -> str:
    return change_job(rig.ctx, OWNER, job_id, ChangeJob(budget_micro_usd=micro_usd)).state


def paused(rig: StoreRig, *, seconds: int = 50, **columns: object) -> Lease:
    """A job that has spent its `seconds` of money, with a checkpoint at step 10."""
    rig.add_job(budget_micro_usd=seconds * PER_S, **columns)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=seconds) is Order.RELEASE
    rig.checkpoint(lease, 10)
    assert release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=10)).job_state == "paused"
    return lease


@contextmanager
def statements(rig: StoreRig) -> Iterator[list[str]]:
    """What is sent to the database meanwhile."""
    seen: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            seen.append(statement)

    with rig.store.begin() as tx:
        engine = tx.connection.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def test_a_job_is_warned_once_told_to_release_and_paused(rig: StoreRig) -> None:
    job_id = rig.add_job(budget_micro_usd=100 * PER_S)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=79) is Order.CONTINUE
    assert "budget.warning" not in rig.events(job_id)
    assert beat(rig, lease, after_s=1) is Order.CONTINUE
    assert beat(rig, lease, after_s=19) is Order.CONTINUE
    assert rig.events(job_id).count("budget.warning") == 1
    told = {"budget": "job", "limit_micro_usd": 100 * PER_S, "spent_micro_usd": 80 * PER_S}
    assert rig.last_event(job_id, "budget.warning") == told
    assert beat(rig, lease, after_s=1) is Order.RELEASE
    assert beat(rig, lease, after_s=10) is Order.RELEASE  # its checkpoint is on the way
    rig.checkpoint(lease, 30)
    ended = release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=30))
    assert ended.job_state == "paused"
    assert release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=30)) == ended, "its reply was lost"
    assert rig.attempt(lease.attempt_id)["reason"] == "over_budget"
    assert rig.last_event(job_id, "job.paused")["spent_micro_usd"] == 110 * PER_S
    assert rig.claim(2).reason == "empty-queue"
    reply = get_job(rig.ctx, OWNER, job_id)
    assert (reply.state, reply.cost_micro_usd, reply.useful_s) == ("paused", 110 * PER_S, 110)
    assert reply.waiting_because is not None
    assert "is used up" in reply.waiting_because
    assert rig.job(job_id)["fruitless"] == 0
    assert rig.rows(schema.bans) == rig.rows(schema.strikes) == []


def test_raising_the_budget_puts_the_job_into_the_queue_ahead_of_fresh_ones(rig: StoreRig) -> None:
    lease = paused(rig)
    fresh = rig.add_job()
    assert job_budget(rig, lease.job_id, 51 * PER_S) == "queued"
    assert rig.events(lease.job_id)[-1] == "job.resumed"
    assert rig.last_event(lease.job_id, "job.resumed") == {"resume_step": 10}
    again = rig.lease(2)
    assert again.job_id == lease.job_id != fresh
    assert [each.step for each in again.checkpoints] == [10]
    assert beat(rig, again, after_s=1, step=11) is Order.RELEASE, "it may spend one second more in all"


def test_a_budget_that_is_raised_too_little_leaves_the_job_paused(rig: StoreRig) -> None:
    lease = paused(rig)
    assert job_budget(rig, lease.job_id, 50 * PER_S) == "paused"
    assert "job.resumed" not in rig.events(lease.job_id)
    assert job_budget(rig, lease.job_id, None) == "queued"


def test_an_order_is_taken_back_when_the_budget_is_raised_in_time(rig: StoreRig) -> None:
    job_id = rig.add_job(budget_micro_usd=50 * PER_S)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=60) is Order.RELEASE
    assert job_budget(rig, job_id, 100 * PER_S) == "running"
    assert beat(rig, lease, after_s=10) is Order.CONTINUE
    assert beat(rig, lease, after_s=10) is Order.CONTINUE
    assert beat(rig, lease, after_s=20) is Order.RELEASE
    assert rig.events(job_id).count("budget.warning") == 2, "of the raised one it is warned anew"
    job_budget(rig, job_id, None)
    assert beat(rig, lease, after_s=10) is Order.CONTINUE
    assert release(rig.ctx, lease.attempt_id, ReleaseAttempt()).job_state == "queued"
    assert rig.attempt(lease.attempt_id)["reason"] == "released"


def test_a_node_that_does_not_stop_is_fenced_after_a_grace(rig: StoreRig) -> None:
    job_id = rig.add_job(budget_micro_usd=50 * PER_S)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=50) is Order.RELEASE
    grace_s = rig.ctx.policy.stop_grace_s
    for _ in range(9):
        assert beat(rig, lease, after_s=grace_s / 10) is Order.RELEASE
    with pytest.raises(LeaseLost, match="the job is paused"):
        beat(rig, lease, after_s=grace_s / 10)
    with pytest.raises(LeaseLost):
        beat(rig, lease, after_s=30)
    assert (rig.job(job_id)["state"], rig.attempt(lease.attempt_id)["reason"]) == ("paused", "over_budget")
    assert get_job(rig.ctx, OWNER, job_id).cost_micro_usd == (50 + grace_s) * PER_S, "and not a moment more"


@pytest.mark.parametrize("seed", range(12))
def test_however_stubborn_the_node_a_budget_is_exceeded_by_two_beats_and_the_grace_at_most(
    rig: StoreRig, seed: int
) -> None:
    dice, lease_s = random.Random(seed), rig.ctx.policy.lease_s
    limit_s = dice.randrange(1, 600)
    job_id, since_s, longest_s = rig.add_job(budget_micro_usd=limit_s * PER_S), 0.0, 0.0
    lease = rig.lease(1)
    for _ in range(200):
        pause_s = dice.choice([1.0, 30.0, lease_s / 2, lease_s])
        longest_s, since_s = max(longest_s, pause_s), since_s + pause_s
        rig.clock.advance_s(pause_s)
        lapse_leases(rig.ctx)
        try:
            beat(rig, lease)
        except LeaseLost:
            break
    else:
        pytest.fail("nobody ever stopped it")
    spent_s = get_job(rig.ctx, OWNER, job_id).cost_micro_usd / PER_S
    assert limit_s <= spent_s <= limit_s + 2 * longest_s + rig.ctx.policy.stop_grace_s
    assert rig.job(job_id)["state"] == "paused"


def test_a_node_that_came_back_from_a_lapse_and_does_not_stop_is_fenced_too(rig: StoreRig) -> None:
    job_id = rig.add_job(budget_micro_usd=50 * PER_S)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=50) is Order.RELEASE
    job_budget(rig, job_id, 60 * PER_S)
    rig.clock.advance_s(rig.ctx.policy.stop_grace_s)
    lapse_leases(rig.ctx)
    assert rig.job(job_id)["state"] == "queued"
    assert beat(rig, lease) is Order.CONTINUE
    assert beat(rig, lease, after_s=10) is Order.RELEASE, "its grace begins with this order"


@pytest.mark.parametrize("end", ["lapse", "preempted", "crashed"])
def test_job_with_budget_spent_is_paused_however_its_attempt_ends(rig: StoreRig, end: str) -> None:
    job_id = rig.add_job(budget_micro_usd=50 * PER_S)
    lease = rig.lease(1)
    beat(rig, lease, after_s=50)
    if end == "lapse":
        rig.clock.advance_s(100)
        assert lapse_leases(rig.ctx) == 1
        with pytest.raises(LeaseLost):
            beat(rig, lease)
    elif end == "preempted":
        release(rig.ctx, lease.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED))
        assert rig.attempt(lease.attempt_id)["reason"] == "preempted", "the node said why, and it is no order's doing"
    else:
        fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message="oops"))
        assert len(rig.rows(schema.bans)) == 1
    assert (rig.job(job_id)["state"], rig.job(job_id)["paused_by"]) == ("paused", "job")
    assert rig.claim(2).reason == "empty-queue"


@pytest.mark.parametrize("budget", [None, 10_000 * PER_S])
def test_job_within_budget_is_neither_warned_nor_paused(rig: StoreRig, budget: int | None) -> None:
    job_id = rig.add_job(budget_micro_usd=budget)
    lease = rig.lease(1)
    for _ in range(5):
        assert beat(rig, lease, after_s=60) is Order.CONTINUE
    rig.clock.advance_s(100)
    lapse_leases(rig.ctx)
    assert rig.job(job_id)["state"] == "queued"
    assert settle_budgets(rig.ctx) == 0
    assert not {"budget.warning", "job.paused"} & set(rig.events(job_id))


def test_a_job_that_is_done_in_time_is_done_whatever_it_cost(rig: StoreRig) -> None:
    job_id = rig.add_job(budget_micro_usd=50 * PER_S)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=60) is Order.RELEASE
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=10))
    assert rig.job(job_id)["state"] == "succeeded"


def test_shares_of_a_node_are_what_counts(rig: StoreRig) -> None:
    for budget in (100, 30):
        rig.add_job(joint_key="key", budget_micro_usd=budget * PER_S)
    first, second = rig.lease(1, joint_key="key"), rig.lease(1, joint_key="key")
    rig.clock.advance_s(58)
    assert (beat(rig, first), beat(rig, second)) == (Order.CONTINUE, Order.CONTINUE), "29 seconds each"
    rig.clock.advance_s(2)
    assert (beat(rig, first), beat(rig, second)) == (Order.CONTINUE, Order.RELEASE)


def test_a_paused_job_can_be_canceled_and_expires(rig: StoreRig) -> None:
    lease = paused(rig)
    assert cancel(rig.ctx, OWNER, lease.job_id).state == "canceled"
    with pytest.raises(IllegalTransition, match="canceled"):
        job_budget(rig, lease.job_id, 10**9)
    late = paused(rig, deadline_at_ms=rig.clock.now_ms() + 60_000)
    rig.clock.advance_s(20)
    assert expire_deadlines(rig.ctx) == 1
    assert rig.job(late.job_id)["state"] == "expired"


def test_retrying_and_continuing_a_paused_job_say_what_to_do(rig: StoreRig) -> None:
    lease = paused(rig)
    with pytest.raises(IllegalTransition, match="giornata budget"):
        retry(rig.ctx, OWNER, lease.job_id)
    with pytest.raises(IllegalTransition, match="giornata budget"):
        continue_training(rig.ctx, OWNER, lease.job_id, ContinueJob(), None)


def test_a_projects_budget_stops_all_its_jobs_and_nobody_elses(rig: StoreRig) -> None:
    rig.add_project("ann")
    project_budget(rig, 100 * PER_S)
    mine = [rig.add_job() for _ in range(3)]
    theirs = rig.add_job(project_id="ann")
    leases = [rig.lease(number) for number in (1, 2)]
    rig.clock.advance_s(40)
    assert [beat(rig, lease) for lease in leases] == [Order.CONTINUE] * 2, "the second one warned of the project"
    rig.clock.advance_s(10)
    assert [beat(rig, lease) for lease in leases] == [Order.CONTINUE, Order.RELEASE]
    assert [rig.events(job).count("budget.warning") for job in mine] == [0, 1, 0], "and only once"
    assert beat(rig, leases[0]) is Order.RELEASE
    assert settle_budgets(rig.ctx) == 1
    for lease in leases:
        assert release(rig.ctx, lease.attempt_id, ReleaseAttempt()).job_state == "paused"
    assert rig.last_event(mine[2], "job.paused")["budget"] == "project"
    assert rig.lease(3).job_id == theirs
    assert settle_budgets(rig.ctx) == 0
    project_budget(rig, 200 * PER_S)
    assert {rig.job(job)["state"] for job in mine} == {"queued"}
    assert [rig.events(job)[-1] for job in mine] == ["job.resumed"] * 3
    assert [rig.job(job)["interrupted"] for job in mine] == [True, True, False]


def test_a_job_whose_own_money_is_used_up_stays_when_the_projects_is_raised(rig: StoreRig) -> None:
    lease = paused(rig)
    project_budget(rig, 0)
    waiting = rig.add_job()
    assert settle_budgets(rig.ctx) == 1
    project_budget(rig, None)
    assert (rig.job(lease.job_id)["state"], rig.job(waiting)["state"]) == ("paused", "queued")
    project_budget(rig, 0)
    assert job_budget(rig, lease.job_id, None) == "paused", "now it waits for the project's"
    project_budget(rig, None)
    assert rig.job(lease.job_id)["state"] == "queued"


def test_more_jobs_than_one_transaction_moves_are_all_moved(rig: StoreRig) -> None:
    count = AT_ONCE + 7
    for _ in range(count):
        rig.add_job()
    project_budget(rig, 0)
    states = {row["state"] for row in rig.rows(schema.jobs)}
    assert states == {"paused"}
    assert rig.claim(1).reason == "empty-queue"
    assert len(rig.rows(schema.events, type="job.paused")) == count


def test_project_spending_adds_up_old_attempts_once(rig: StoreRig) -> None:
    project_budget(rig, 10_000 * PER_S)
    for round_ in range(1, 6):
        rig.add_job()
        lease = rig.lease(round_)
        rig.clock.advance_s(80)
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
        rig.clock.advance_s(400)
        shown = set_project_budget(rig.ctx, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=10_000 * PER_S))
        assert shown.spent_micro_usd == round_ * 80 * PER_S
    fresh = dataclasses.replace(rig.ctx, memory=type(rig.ctx.memory)())
    again = set_project_budget(fresh, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=1))
    assert again.spent_micro_usd == 5 * 80 * PER_S, "a server that remembers nothing finds the same"


def test_project_spending_is_one_row_however_many_attempts_live(rig: StoreRig) -> None:
    for _ in range(12):
        rig.add_job()
    leases = [rig.lease(node) for node in range(1, 13)]
    rig.clock.advance_s(10)
    for lease in leases:
        beat(rig, lease)
    rows: list[int] = []

    def note(_c: object, cursor: Any, *_rest: object) -> None:
        rows.append(cursor.rowcount)

    sa.event.listen(sa.Engine, "after_cursor_execute", note)
    try:
        with rig.ctx.store.read() as tx:
            spent = [tx.spending.unsettled(each, since_ms=10**15, month_ms=0) for each in (ROOT_PROJECT, None)]
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", note)
    assert [each.total_micro_usd for each in spent] == [12 * 10 * PER_S] * 2
    assert max(rows) == {"sqlite": -1, "postgresql": 1}[rig.store.dialect_name]  # SQLite does not count them


def test_recent_spending_of_the_only_project_is_that_of_all_together(rig: StoreRig) -> None:
    """Attempts of one project are looked up, those of all are read in the order of their starts."""
    for _ in range(6):
        rig.add_job(joint_key="key")
    long, *others = (rig.lease(1 + number // 4, joint_key="key") for number in range(6))
    for number, lease in enumerate(others):
        rig.clock.advance_s(7 + number)
        for each in (long, *others[number:]):
            beat(rig, each)
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
    rig.clock.advance_s(30)
    beat(rig, long)
    for ended in (False, True):
        if ended:
            complete(rig.ctx, long.attempt_id, CompleteAttempt(step=1))
        with rig.ctx.store.read() as tx:
            one, every = (tx.spending.unsettled(each, since_ms=0, month_ms=0) for each in (ROOT_PROJECT, None))
            again = tx.spending.settled(None, from_ms=0, before_ms=rig.clock.now_ms() + 1, month_ms=0)
        assert one == every
        assert (again == every) is ended
    alone_s = sum(7 + number for number in range(5)) + 30
    assert alone_s * PER_S <= every.total_micro_usd < 2 * alone_s * PER_S, "two nodes, each paid once"


def test_a_beat_of_a_job_without_a_budget_asks_no_more_than_before(rig: StoreRig) -> None:
    rig.add_project("ann")
    rig.add_job()
    rig.add_job(budget_micro_usd=10**9)
    free, limited = rig.lease(1), rig.lease(2)
    for lease in (free, limited):
        beat(rig, lease)
    counts = []
    for lease in (free, limited):
        with statements(rig) as seen:
            beat(rig, lease, after_s=1, step=2)
        counts.append(len(seen))
        if lease is free:
            assert not [text for text in seen if "AS other" in text or "sum(" in text], seen
    most = {"sqlite": 7, "postgresql": 6}[rig.store.dialect_name]
    assert counts[0] == most < counts[1], counts


def test_a_canary_is_on_nobodys_budget(rig: StoreRig) -> None:
    """It hangs on the operator's project, and tries a machine out whatever money there is."""
    project_budget(rig, 10 * PER_S)
    rig.add_job()
    first = rig.lease(1)
    fail(rig.ctx, first.attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it is broken"))
    rig.add_job()
    canary = rig.lease(1, kinds=("train", "canary"))  # the machine is on probation
    assert rig.job(canary.job_id)["kind"] == "canary"
    assert beat(rig, canary, after_s=30) is Order.CONTINUE
    # None of the money is used up by it.
    work = rig.lease(2)
    assert beat(rig, work, after_s=5) is Order.CONTINUE
    settle_budgets(rig.ctx)
    assert {row["state"] for row in rig.rows(schema.jobs, kind="train")} == {"queued", "running"}
    # ... and it goes on when there is no more.
    assert beat(rig, work, after_s=10) is Order.RELEASE
    release(rig.ctx, canary.attempt_id, ReleaseAttempt(step=1))
    settle_budgets(rig.ctx)
    assert {row["state"] for row in rig.rows(schema.jobs, kind="train")} == {"paused", "running"}
    assert rig.job(canary.job_id)["state"] == "queued"


def test_a_paused_job_that_is_canceled_waits_for_no_money(rig: StoreRig) -> None:
    job_id = paused(rig).job_id
    assert rig.job(job_id)["paused_by"] == "job"
    cancel(rig.ctx, OWNER, job_id)
    assert (rig.job(job_id)["state"], rig.job(job_id)["paused_by"]) == ("canceled", None)
