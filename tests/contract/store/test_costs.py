"""What was paid, and what for: of fleets, of jobs, of steps."""

from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.fixtures.work import NODE_CALLER, PRICE, Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.reported_ends import release
from giornata.control.caller import Caller
from giornata.control.jobs.read_jobs import get_job
from giornata.control.monitoring import read_gauges
from giornata.control.projects.read_costs import read_costs
from giornata.control.timestamps import instant
from giornata.domain.errors import Forbidden, InvalidInput
from giornata.protocol.admin import ROOT_PROJECT, Costs, Scope
from giornata.protocol.work import CompleteAttempt, Heartbeat, ReleaseAttempt
from giornata.store import schema
from giornata.store.transaction import Transaction

ROOT = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_root")
ANN = Caller(project_id="ann", scope=Scope.MEMBER, key_id="key_ann")
PER_S = PRICE // 3600


def add_instance(shop: Workshop, name: str = "i-1", **columns: object) -> None:
    now_ms = shop.clock.now_ms()
    row = {"fleet": "spot", "id": name, "name": name, "state": "running", "price_micro_usd_per_hour": PRICE}
    row |= {"first_listed_at_ms": now_ms, "last_listed_at_ms": now_ms, "running_at_ms": now_ms}
    with shop.store.begin() as tx:
        tx.connection.execute(sa.insert(schema.instances).values(**row | columns))
        if (row | columns)["running_at_ms"] is not None:
            add_interval(tx, name, from_ms=now_ms)


def add_interval(tx: Transaction, name: str, *, from_ms: int, to_ms: int | None = None) -> None:
    billed = {"fleet": "spot", "instance_id": name, "seq": 0, "from_ms": from_ms, "to_ms": to_ms}
    row = {**billed, "price_micro_usd_per_hour": PRICE}
    tx.connection.execute(sa.insert(schema.billed_intervals).values(row))


def listed(shop: Workshop, name: str = "i-1", **columns: object) -> None:
    """The provider lists it now."""
    with shop.store.begin() as tx:
        mine = sa.update(schema.instances).where(schema.instances.c.id == name)
        tx.connection.execute(mine.values(last_listed_at_ms=shop.clock.now_ms(), **columns))
        its = sa.update(schema.billed_intervals).where(schema.billed_intervals.c.instance_id == name)
        tx.connection.execute(its.values(to_ms=columns.get("gone_at_ms")))


def on_instance(shop: Workshop, number: int, name: str) -> None:
    """The node runs on it. Nodes say so when they ask for work."""
    with shop.store.begin() as tx:
        mine = sa.update(schema.nodes).where(schema.nodes.c.id == f"node_{number:08d}")
        tx.connection.execute(mine.values(fleet="spot", instance_id=name))


def during(shop: Workshop, caller: Caller = ROOT) -> Costs:
    """Of the last day."""
    return read_costs(shop.ctx, caller, instant(shop.clock.now_ms()) - timedelta(days=1), None)


def a_life(shop: Workshop) -> None:
    """30 s until the first claim, 10 s idle, 10 s before the first step, 90 s of steps of which 40 are lost, 60 s to
    the end of a job, 20 s idle."""
    add_instance(shop)
    shop.clock.advance_s(30)
    assert shop.claim(1).lease is None
    on_instance(shop, 1, "i-1")
    shop.clock.advance_s(10)
    shop.add_job()
    lease = shop.lease(1)
    on_instance(shop, 1, "i-1")
    shop.clock.advance_s(10)
    heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1))
    shop.checkpoint(lease, 6)
    shop.clock.advance_s(90)
    release(shop.ctx, lease.attempt_id, ReleaseAttempt(step=10))
    again = shop.lease(1)
    on_instance(shop, 1, "i-1")
    shop.clock.advance_s(60)
    complete(shop.ctx, again.attempt_id, CompleteAttempt(step=12))
    shop.clock.advance_s(20)
    listed(shop, gone_at_ms=shop.clock.now_ms())


def test_an_instances_bill_is_split_to_the_last_second(shop: Workshop) -> None:
    a_life(shop)
    (fleet,) = during(shop).fleets
    assert (fleet.fleet, fleet.instances, fleet.billed_s) == ("spot", 1, 220)
    assert (fleet.startup_s, fleet.useful_s, fleet.lost_s, fleet.at_risk_s, fleet.idle_s) == (40, 110, 40, 0, 30)
    parts = (fleet.startup_micro_usd, fleet.useful_micro_usd, fleet.lost_micro_usd, fleet.idle_micro_usd)
    assert parts == (40 * PER_S, 110 * PER_S, 40 * PER_S, 30 * PER_S)
    assert fleet.billed_micro_usd == sum(parts) == 220 * PER_S


def test_an_instance_that_never_asked_for_work_is_all_start_up(shop: Workshop) -> None:
    add_instance(shop)
    shop.clock.advance_s(50)
    listed(shop)
    shop.clock.advance_s(50)
    (fleet,) = during(shop).fleets
    assert (fleet.billed_s, fleet.startup_s, fleet.idle_s) == (50, 50, 0), "and billed up to when it was last listed"


def test_one_that_does_not_run_yet_is_not_billed(shop: Workshop) -> None:
    add_instance(shop, running_at_ms=None)
    shop.clock.advance_s(50)
    listed(shop)
    assert during(shop).fleets == ()


def test_a_node_without_an_instance_is_billed_by_what_it_says(shop: Workshop) -> None:
    shop.add_job()
    lease = shop.lease(1)
    shop.clock.advance_s(40)
    heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=0))
    complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=10))
    shop.clock.advance_s(10)
    shop.claim(1)
    (fleet,) = during(shop).fleets
    assert (fleet.fleet, fleet.billed_s, fleet.useful_s, fleet.idle_s) == ("local", 50, 40, 10)
    assert fleet.billed_micro_usd == 50 * PER_S


def test_only_what_lies_in_the_time_counts(shop: Workshop) -> None:
    begin = instant(shop.clock.now_ms())
    a_life(shop)
    halves = [
        read_costs(shop.ctx, ROOT, begin, begin + timedelta(seconds=35)),
        read_costs(shop.ctx, ROOT, begin + timedelta(seconds=35), None),
    ]
    (first,), (second,) = (half.fleets for half in halves)
    assert (first.startup_s, first.idle_s, second.startup_s, second.idle_s) == (30, 5, 10, 25)
    assert first.billed_micro_usd + second.billed_micro_usd == 220 * PER_S
    assert [half.work.jobs for half in halves] == [0, 1]


def test_work_is_counted_by_job_by_step_and_by_useful_step(shop: Workshop) -> None:
    a_life(shop)
    work = during(shop).work
    assert (work.jobs, work.jobs_succeeded, work.steps, work.useful_steps) == (1, 1, 16, 12)
    assert work.cost_micro_usd == 160 * PER_S
    assert work.cost_per_job_usd == pytest.approx(0.016)
    assert work.cost_per_step_usd == pytest.approx(0.001)
    assert work.cost_per_useful_step_usd == pytest.approx(0.016 / 12)
    (row,) = shop.rows(schema.jobs)
    job = get_job(shop.ctx, ROOT, row["id"])
    assert (job.cost_per_step_usd, job.cost_per_useful_step_usd) == (pytest.approx(0.001), pytest.approx(0.016 / 12))
    assert read_gauges(shop.ctx).spend_micro_usd == 160 * PER_S


def test_a_member_sees_its_own_work_and_no_fleet(shop: Workshop) -> None:
    shop.add_project("ann")
    a_life(shop)
    nothing = during(shop, ANN)
    assert (nothing.fleets, nothing.work.jobs, nothing.work.cost_micro_usd) == ((), 0, 0)
    assert nothing.work.cost_per_job_usd is None
    job = shop.add_job(project_id="ann")
    lease = shop.lease(1)
    assert lease.job_id == job
    shop.clock.advance_s(10)
    complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=5))
    own = during(shop, ANN).work
    assert (own.jobs, own.steps, own.cost_micro_usd) == (1, 5, 10 * PER_S)
    assert during(shop).work.cost_micro_usd == 170 * PER_S, "the operator sees all of it"
    with pytest.raises(Forbidden):
        during(shop, NODE_CALLER)


def test_a_shared_node_is_paid_once(shop: Workshop) -> None:
    for _ in range(2):
        shop.add_job(joint_key="key")
    leases = [shop.lease(1, joint_key="key") for _ in range(2)]
    shop.clock.advance_s(40)
    for lease in leases:
        complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=5))
        with shop.store.begin() as tx:
            tx.connection.execute(sa.update(schema.nodes).values(last_seen_at_ms=shop.clock.now_ms()))
    found = during(shop)
    assert found.work.cost_micro_usd == found.fleets[0].billed_micro_usd == 40 * PER_S
    assert read_gauges(shop.ctx).spend_micro_usd == 40 * PER_S


def test_times_that_are_none_are_refused(shop: Workshop) -> None:
    now = instant(shop.clock.now_ms())
    for since, until in ((now, now), (now, now - timedelta(days=1)), (now - timedelta(days=400), now)):
        with pytest.raises(InvalidInput, match="since"):
            read_costs(shop.ctx, ROOT, since, until)
