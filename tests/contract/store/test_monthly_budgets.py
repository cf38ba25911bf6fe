"""Budgets per calendar month: what a month costs, who stops and goes on by itself, and that no query is added."""

from dataclasses import replace
from itertools import pairwise

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.store.test_budgets import OWNER, PER_S, ROOT, beat, statements
from tests.fixtures.store_rig import PRICE, StoreRig
from tests.fixtures.users import ANN, move_in, new_dataset, train
from tests.fixtures.users import ROOT as USERS_ROOT

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.budgets.budgets import project_spent
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.submission.submit import submit
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.projects.set_budget import change_job, set_project_budget, settle_budgets
from giornata.domain.billing.budget import Spent, month_of, month_start_ms
from giornata.domain.billing.money import cost_micro_usd
from giornata.domain.errors import OverBudget
from giornata.protocol.jobs import ChangeJob
from giornata.protocol.node.work import CompleteAttempt, Lease, Order, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Project, SetBudget
from giornata.store import schema

DAY_MS = 86_400_000
MONTH_MS = 31 * DAY_MS


def turn_ms(now_ms: int) -> int:
    """When the next month begins."""
    return month_start_ms(month_start_ms(now_ms) + MONTH_MS + DAY_MS)


def go_to_the_end_of_the_month(ctx: Context, *, before_s: float) -> None:
    now_ms = ctx.clock.now_ms()
    ctx.clock.advance_s((turn_ms(now_ms) - now_ms) / 1000 - before_s)  # type: ignore[attr-defined]


def monthly(rig: StoreRig, seconds: int | None) -> Project:
    micro_usd = None if seconds is None else seconds * PER_S
    return set_project_budget(rig.ctx, ROOT, ROOT_PROJECT, SetBudget(monthly_budget_micro_usd=micro_usd))


def spent(rig: StoreRig) -> Spent:
    with rig.store.read() as tx:
        return project_spent(tx, rig.ctx, ROOT_PROJECT, at_ms=rig.clock.now_ms())


def paused(rig: StoreRig, *, seconds: int = 50, **columns: object) -> Lease:
    """A job that has spent the month's money."""
    monthly(rig, seconds)
    rig.add_job(**columns)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=seconds) is Order.RELEASE
    assert release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=1)).job_state == "paused"
    return lease


def test_jobs_wait_for_the_next_month_and_go_on_by_themselves(rig: StoreRig) -> None:
    go_to_the_end_of_the_month(rig.ctx, before_s=3600)
    lease = paused(rig)
    queued = rig.add_job()
    assert settle_budgets(rig.ctx) == 1
    month = month_of(rig.clock.now_ms())
    for job_id in (lease.job_id, queued):
        reply = get_job(rig.ctx, OWNER, job_id)
        assert (reply.state, "next month" in str(reply.waiting_because)) == ("paused", True)
        told = {"budget": "project", "limit_micro_usd": 50 * PER_S, "spent_micro_usd": 50 * PER_S, "month": month}
        assert rig.last_event(job_id, "job.paused").items() >= told.items()
    assert rig.claim(2).lease is None
    go_to_the_end_of_the_month(rig.ctx, before_s=0.001)
    assert settle_budgets(rig.ctx) == 0, "the month has not turned"
    rig.clock.advance_s(0.001)
    assert settle_budgets(rig.ctx) == 2
    assert rig.events(queued)[-1] == "job.resumed"
    assert rig.lease(2).job_id == lease.job_id, "the one that ran goes first"
    assert spent(rig) == Spent(total_micro_usd=50 * PER_S, month_micro_usd=0)


def test_raising_or_lifting_the_months_budget_lets_them_go_on_at_once(rig: StoreRig) -> None:
    lease = paused(rig)
    assert monthly(rig, 49).month_spent_micro_usd == 50 * PER_S
    assert rig.job(lease.job_id)["state"] == "paused"
    shown = monthly(rig, 51)
    assert (shown.monthly_budget_micro_usd, shown.month) == (51 * PER_S, month_of(rig.clock.now_ms()))
    assert (shown.budget_micro_usd, shown.spent_micro_usd) == (None, 50 * PER_S)
    assert rig.job(lease.job_id)["state"] == "queued"
    again = rig.lease(1)
    assert beat(rig, again, after_s=1) is Order.RELEASE, "it may spend one second more in this month"
    monthly(rig, None)
    assert beat(rig, again) is Order.CONTINUE, "an order is taken back when the budget is lifted"


def test_an_attempt_across_the_turn_is_counted_in_both_months(rig: StoreRig) -> None:
    monthly(rig, 60)
    rig.add_job()
    go_to_the_end_of_the_month(rig.ctx, before_s=58)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=40) is Order.CONTINUE
    assert beat(rig, lease, after_s=40) is Order.CONTINUE, "80 s are spent, 22 of them in this month"
    assert spent(rig) == Spent(total_micro_usd=80 * PER_S, month_micro_usd=22 * PER_S)
    assert beat(rig, lease, after_s=37) is Order.CONTINUE
    assert beat(rig, lease, after_s=1) is Order.RELEASE


def test_an_order_to_stop_is_taken_back_when_the_month_turns(rig: StoreRig) -> None:
    monthly(rig, 50)
    rig.add_job()
    go_to_the_end_of_the_month(rig.ctx, before_s=55)
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=50) is Order.RELEASE
    assert beat(rig, lease, after_s=4) is Order.RELEASE
    assert beat(rig, lease, after_s=1) is Order.CONTINUE, "nothing is spent in the new month"
    assert complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1)).job_state == "succeeded"


def test_a_warning_comes_once_a_month(rig: StoreRig) -> None:
    monthly(rig, 100)
    job_id = rig.add_job()
    for count in (1, 2):
        go_to_the_end_of_the_month(rig.ctx, before_s=3600)
        lease = rig.lease(1)
        assert beat(rig, lease, after_s=79) is Order.CONTINUE
        assert rig.events(job_id).count("budget.warning") == count - 1
        assert beat(rig, lease, after_s=1) is Order.CONTINUE
        assert beat(rig, lease, after_s=1) is Order.CONTINUE
        assert rig.events(job_id).count("budget.warning") == count
        assert rig.last_event(job_id, "budget.warning")["month"] == month_of(rig.clock.now_ms())
        release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=1))
        go_to_the_end_of_the_month(rig.ctx, before_s=0)


def test_total_budget_keeps_job_paused_after_monthly_budget_renews(rig: StoreRig) -> None:
    monthly(rig, 50)
    set_project_budget(rig.ctx, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=50 * PER_S))
    (row,) = rig.rows(schema.projects, id=ROOT_PROJECT)
    assert row["monthly_budget_micro_usd"] == 50 * PER_S, "the one that is not given stays"
    job_id = rig.add_job()
    lease = rig.lease(1)
    assert beat(rig, lease, after_s=50) is Order.RELEASE
    release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=1))
    assert "administrator raises it" in str(get_job(rig.ctx, OWNER, job_id).waiting_because)
    go_to_the_end_of_the_month(rig.ctx, before_s=0)
    assert settle_budgets(rig.ctx) == 0
    assert rig.job(job_id)["state"] == "paused"


def test_a_jobs_own_budget_is_not_renewed_by_the_month(rig: StoreRig) -> None:
    lease = paused(rig, budget_micro_usd=50 * PER_S)
    assert rig.job(lease.job_id)["paused_by"] == "job"
    go_to_the_end_of_the_month(rig.ctx, before_s=0)
    settle_budgets(rig.ctx)
    assert rig.job(lease.job_id)["state"] == "paused"
    assert change_job(rig.ctx, OWNER, lease.job_id, ChangeJob(budget_micro_usd=None)).state == "queued"


@pytest.mark.parametrize("both", [False, True])
def test_a_months_budget_asks_the_database_no_more_than_a_budget_in_all(rig: StoreRig, both: bool) -> None:
    def asked() -> int:
        rig.add_job()
        lease = rig.lease(1)
        with statements(rig) as seen:
            beat(rig, lease, after_s=1)
            beat(rig, lease, after_s=1)
            rig.checkpoint(lease, 10)
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=10))
        return len(seen)

    free = asked()
    set_project_budget(rig.ctx, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=10**9))
    limited = asked()
    changes = {"monthly_budget_micro_usd": 10**9, **({} if both else {"budget_micro_usd": None})}
    set_project_budget(rig.ctx, ROOT, ROOT_PROJECT, SetBudget.model_validate(changes))
    assert asked() == limited
    set_project_budget(rig.ctx, ROOT, ROOT_PROJECT, SetBudget(budget_micro_usd=None, monthly_budget_micro_usd=None))
    assert asked() == free


def test_a_submission_needs_room_in_this_month(ctx: Context) -> None:
    move_in(ctx)
    set_project_budget(ctx, USERS_ROOT, "ann", SetBudget(monthly_budget_micro_usd=1_000_000))
    job = train(new_dataset(ctx)).model_copy(update={"budget_micro_usd": 600_000})
    first, _ = submit(ctx, ANN, job, None)
    month = month_of(ctx.clock.now_ms())
    with pytest.raises(OverBudget, match=rf"for {month}.*\$0.60 set aside.*next month"):
        submit(ctx, ANN, job, None)
    with pytest.raises(OverBudget):
        change_job(ctx, ANN, first.id, ChangeJob(budget_micro_usd=1_000_001))
    assert change_job(ctx, ANN, first.id, ChangeJob(budget_micro_usd=1_000_000)).budget_micro_usd == 1_000_000


Life = tuple[int, int, int]  # place, days from the beginning, length in hours
LIVES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 900)), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives=LIVES, price=st.sampled_from([1, 777_777, PRICE]), offset_ms=st.integers(0, 999))
def test_the_months_of_any_schedule_add_up_to_what_it_cost(
    rig: StoreRig, lives: list[Life], price: int, offset_ms: int
) -> None:
    """Attempts alone and together on a node, across the turns of months, are counted to the micro-dollar."""
    start_ms = rig.clock.now_ms() + offset_ms
    _write(rig, lives, price, start_ms)
    ends = [start_ms + days * DAY_MS + hours * 3_600_000 for _, days, hours in lives]
    months = [month_start_ms(start_ms)]
    while months[-1] <= max(ends):
        months.append(turn_ms(months[-1]))
    with rig.store.read() as tx:
        since = [tx.spending.unsettled(ROOT_PROJECT, since_ms=0, month_ms=each) for each in months]
    assert since[0].month_micro_usd == since[0].total_micro_usd, "everything is of the first month or later"
    assert since[-1].month_micro_usd == 0, "nothing is of the month after all"
    of_month = [one.month_micro_usd - two.month_micro_usd for one, two in pairwise(since)]
    assert min(of_month, default=0) >= 0
    assert sum(of_month) == since[0].total_micro_usd
    alone = {place for place, _, _ in lives if sum(each[0] == place for each in lives) == 1}
    if len(alone) == len(lives):
        assert of_month == [_by_hand(lives, price, start_ms, *turns) for turns in pairwise(months)]


def _by_hand(lives: list[Life], price: int, start_ms: int, from_ms: int, to_ms: int) -> int:
    """What attempts without company cost by the end of a month, less what they cost by its beginning."""

    def until(begin_ms: int, end_ms: int, at_ms: int) -> int:
        billed_ms = max(0, min(end_ms, at_ms) - begin_ms)
        return cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=billed_ms)

    spans = [(start_ms + days * DAY_MS, hours * 3_600_000) for _, days, hours in lives]
    return sum(until(at, at + long, to_ms) - until(at, at + long, from_ms) for at, long in spans)


def _write(rig: StoreRig, lives: list[Life], price: int, start_ms: int) -> None:
    """Ended attempts with these lives. Those on one place share its node while they overlap."""
    with rig.store.begin() as tx:
        for table in reversed(schema.metadata.sorted_tables):
            if table.name in {"jobs", "attempts", "ledger", "events"}:
                tx.connection.execute(sa.delete(table))
    jobs = [rig.add_job() for _ in lives]
    leases = [rig.lease(number + 1) for number in range(len(lives))]
    assert len(jobs) == len(leases)
    with rig.store.begin() as tx:
        for lease, (place, days, hours) in zip(leases, lives, strict=True):
            from_ms = start_ms + days * DAY_MS
            to_ms = from_ms + hours * 3_600_000
            amount = cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=to_ms - from_ms)
            changes = {"from_ms": from_ms, "to_ms": to_ms, "price_micro_usd_per_hour": price}
            of_it = schema.ledger.c.attempt_id == lease.attempt_id
            tx.connection.execute(sa.update(schema.ledger).where(of_it).values(**changes, amount_micro_usd=amount))
            ended = {
                "started_at_ms": from_ms,
                "ended_at_ms": to_ms,
                "reason": "succeeded",
                "node_id": f"node-{place}",
            }
            own = schema.attempts.c.id == lease.attempt_id
            tx.connection.execute(sa.update(schema.attempts).where(own).values(**ended))


def test_cached_project_spending_equals_the_database_at_any_time(rig: StoreRig) -> None:
    """The sum of what ended long ago is kept: across turns of the month, breaks, and a clock that is set back."""
    for wait_s in (0.0, 700, 40 * 86_400, 3, 5 * 86_400, 700, -2 * 86_400, 30 * 86_400, -40 * 86_400, 90 * 86_400):
        rig.clock.advance_s(wait_s)
        rig.add_job()
        lease = rig.lease(1)
        beat(rig, lease, after_s=100)
        fresh = replace(rig.ctx, memory=ProcessCache())
        with rig.store.read() as tx:
            now_ms = rig.clock.now_ms()
            assert spent(rig) == project_spent(tx, fresh, ROOT_PROJECT, at_ms=now_ms)
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
        assert spent(rig).month_micro_usd > 0
