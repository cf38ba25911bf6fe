"""What was paid, and what for: of fleets, of jobs, of steps."""

from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.store_rig import NODE_CALLER, PRICE, StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.control.monitoring import read_gauges
from giornata.control.pictures.settle_order import settle_orders
from giornata.control.projects.read_costs import read_costs
from giornata.control.timestamps import instant
from giornata.domain.errors import Forbidden, InvalidInput
from giornata.protocol.node.work import CompleteAttempt, Heartbeat, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Costs, Scope
from giornata.store import schema
from giornata.store.database.transaction import Transaction

ROOT = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")
ANN = Caller(project_id="ann", scopes=Scope.MEMBER.reach, key_id="key_ann")
PER_S = PRICE // 3600


def add_instance(rig: StoreRig, name: str = "i-1", **columns: object) -> None:
    now_ms = rig.clock.now_ms()
    row = {"fleet": "spot", "id": name, "name": name, "state": "running", "price_micro_usd_per_hour": PRICE}
    row |= {"first_listed_at_ms": now_ms, "last_listed_at_ms": now_ms, "running_at_ms": now_ms}
    with rig.store.begin() as tx:
        tx.connection.execute(sa.insert(schema.instances).values(**row | columns))
        if (row | columns)["running_at_ms"] is not None:
            add_interval(tx, name, from_ms=now_ms)


def add_interval(tx: Transaction, name: str, *, from_ms: int, to_ms: int | None = None) -> None:
    billed = {"fleet": "spot", "instance_id": name, "seq": 0, "from_ms": from_ms, "to_ms": to_ms}
    row = {**billed, "price_micro_usd_per_hour": PRICE}
    tx.connection.execute(sa.insert(schema.billed_intervals).values(row))


def listed(rig: StoreRig, name: str = "i-1", **columns: object) -> None:
    """The provider lists it now."""
    with rig.store.begin() as tx:
        mine = sa.update(schema.instances).where(schema.instances.c.id == name)
        tx.connection.execute(mine.values(last_listed_at_ms=rig.clock.now_ms(), **columns))
        its = sa.update(schema.billed_intervals).where(schema.billed_intervals.c.instance_id == name)
        tx.connection.execute(its.values(to_ms=columns.get("gone_at_ms")))


def on_instance(rig: StoreRig, number: int, name: str) -> None:
    """The node runs on it. Nodes say so when they ask for work."""
    with rig.store.begin() as tx:
        mine = sa.update(schema.nodes).where(schema.nodes.c.id == f"node_{number:08d}")
        tx.connection.execute(mine.values(fleet="spot", instance_id=name))


def during(rig: StoreRig, caller: Caller = ROOT) -> Costs:
    """Of the last day."""
    return read_costs(rig.ctx, caller, instant(rig.clock.now_ms()) - timedelta(days=1), None)


def a_life(rig: StoreRig) -> None:
    """30 s until the first claim, 10 s idle, 10 s before the first step, 90 s of steps of which 40 are lost, 60 s to
    the end of a job, 20 s idle."""
    add_instance(rig)
    rig.clock.advance_s(30)
    assert rig.claim(1).lease is None
    on_instance(rig, 1, "i-1")
    rig.clock.advance_s(10)
    rig.add_job()
    lease = rig.lease(1)
    on_instance(rig, 1, "i-1")
    rig.clock.advance_s(10)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1))
    rig.checkpoint(lease, 6)
    rig.clock.advance_s(90)
    release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=10))
    again = rig.lease(1)
    on_instance(rig, 1, "i-1")
    rig.clock.advance_s(60)
    complete(rig.ctx, again.attempt_id, CompleteAttempt(step=12))
    rig.clock.advance_s(20)
    listed(rig, gone_at_ms=rig.clock.now_ms())


def test_an_instances_bill_is_split_to_the_last_second(rig: StoreRig) -> None:
    a_life(rig)
    (fleet,) = during(rig).fleets
    assert (fleet.fleet, fleet.instances, fleet.billed_s) == ("spot", 1, 220)
    assert (fleet.startup_s, fleet.useful_s, fleet.lost_s, fleet.at_risk_s, fleet.idle_s) == (40, 110, 40, 0, 30)
    parts = (fleet.startup_micro_usd, fleet.useful_micro_usd, fleet.lost_micro_usd, fleet.idle_micro_usd)
    assert parts == (40 * PER_S, 110 * PER_S, 40 * PER_S, 30 * PER_S)
    assert fleet.billed_micro_usd == sum(parts) == 220 * PER_S


def test_an_instance_that_never_asked_for_work_is_all_start_up(rig: StoreRig) -> None:
    add_instance(rig)
    rig.clock.advance_s(50)
    listed(rig)
    rig.clock.advance_s(50)
    (fleet,) = during(rig).fleets
    assert (fleet.billed_s, fleet.startup_s, fleet.idle_s) == (50, 50, 0), "and billed up to when it was last listed"


def test_instance_not_running_yet_is_not_billed(rig: StoreRig) -> None:
    add_instance(rig, running_at_ms=None)
    rig.clock.advance_s(50)
    listed(rig)
    assert during(rig).fleets == ()


def test_a_node_without_an_instance_is_billed_by_what_it_says(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(40)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=0))
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=10))
    rig.clock.advance_s(10)
    rig.claim(1)
    (fleet,) = during(rig).fleets
    assert (fleet.fleet, fleet.billed_s, fleet.useful_s, fleet.idle_s) == ("local", 50, 40, 10)
    assert fleet.billed_micro_usd == 50 * PER_S


def test_costs_count_only_the_requested_period(rig: StoreRig) -> None:
    begin = instant(rig.clock.now_ms())
    a_life(rig)
    halves = [
        read_costs(rig.ctx, ROOT, begin, begin + timedelta(seconds=35)),
        read_costs(rig.ctx, ROOT, begin + timedelta(seconds=35), None),
    ]
    (first,), (second,) = (half.fleets for half in halves)
    assert (first.startup_s, first.idle_s, second.startup_s, second.idle_s) == (30, 5, 10, 25)
    assert first.billed_micro_usd + second.billed_micro_usd == 220 * PER_S
    assert [half.work.jobs for half in halves] == [0, 1]


def test_work_is_counted_by_job_by_step_and_by_useful_step(rig: StoreRig) -> None:
    a_life(rig)
    work = during(rig).work
    assert (work.jobs, work.jobs_succeeded, work.steps, work.useful_steps) == (1, 1, 16, 12)
    assert work.cost_micro_usd == 160 * PER_S
    assert work.cost_per_job_usd == pytest.approx(0.016)
    assert work.cost_per_step_usd == pytest.approx(0.001)
    assert work.cost_per_useful_step_usd == pytest.approx(0.016 / 12)
    (row,) = rig.rows(schema.jobs)
    job = get_job(rig.ctx, ROOT, row["id"])
    assert (job.cost_per_step_usd, job.cost_per_useful_step_usd) == (pytest.approx(0.001), pytest.approx(0.016 / 12))
    assert read_gauges(rig.ctx).spend_micro_usd == 160 * PER_S


def test_a_member_sees_its_own_work_and_no_fleet(rig: StoreRig) -> None:
    rig.add_project("ann")
    a_life(rig)
    nothing = during(rig, ANN)
    assert (nothing.fleets, nothing.work.jobs, nothing.work.cost_micro_usd) == ((), 0, 0)
    assert nothing.work.cost_per_job_usd is None
    job = rig.add_job(project_id="ann")
    lease = rig.lease(1)
    assert lease.job_id == job
    rig.clock.advance_s(10)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=5))
    own = during(rig, ANN).work
    assert (own.jobs, own.steps, own.cost_micro_usd) == (1, 5, 10 * PER_S)
    assert during(rig).work.cost_micro_usd == 170 * PER_S, "the operator sees all of it"
    with pytest.raises(Forbidden):
        during(rig, NODE_CALLER)


def test_a_shared_node_is_paid_once(rig: StoreRig) -> None:
    for _ in range(2):
        rig.add_job(joint_key="key")
    leases = [rig.lease(1, joint_key="key") for _ in range(2)]
    rig.clock.advance_s(40)
    for lease in leases:
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=5))
        with rig.store.begin() as tx:
            tx.connection.execute(sa.update(schema.nodes).values(last_seen_at_ms=rig.clock.now_ms()))
    found = during(rig)
    assert found.work.cost_micro_usd == found.fleets[0].billed_micro_usd == 40 * PER_S
    assert read_gauges(rig.ctx).spend_micro_usd == 40 * PER_S


def job_cost(rig: StoreRig, caller: Caller, job_id: str) -> int:
    """As the job's own reply and the list of jobs say."""
    cost = get_job(rig.ctx, caller, job_id).cost_micro_usd
    page = list_jobs(rig.ctx, caller, states=(), labels={}, kind=None, cursor=None, limit=50)
    assert {job.id: job.cost_micro_usd for job in page.items}[job_id] == cost
    return cost


def test_a_lease_of_pictures_is_paid_by_its_orders_by_pixel_steps(rig: StoreRig) -> None:
    rig.add_project("ann")
    picture_rig = PictureRig(rig)
    # Of three equal parts of a price that three does not divide, each is rounded by itself.
    mine, hers = picture_rig.order(1), picture_rig.order(2, project_id="ann")
    lease = picture_rig.lease(1)
    assert {each.order_id for each in lease.pictures} == {mine, hers}
    rig.clock.advance_s(7)
    picture_rig.draw(lease)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=0))
    rig.clock.advance_s(2)
    settle_orders(rig.ctx)
    billed = {row["job_id"]: row["amount_micro_usd"] for row in rig.rows(schema.ledger)}
    assert {mine: job_cost(rig, ROOT, mine), hers: job_cost(rig, ANN, hers)} == billed
    assert billed[hers] == pytest.approx(2 * billed[mine], abs=1)
    own, whole = during(rig, ANN).work, during(rig).work
    assert (own.cost_micro_usd, own.jobs, own.jobs_succeeded) == (billed[hers], 1, 1)
    assert (whole.cost_micro_usd, whole.jobs, whole.jobs_succeeded) == (sum(billed.values()), 2, 2)


def test_leases_beside_one_another_are_shown_under_each_of_their_orders(rig: StoreRig) -> None:
    picture_rig = PictureRig(rig)
    orders = [picture_rig.order(1), picture_rig.order(1), picture_rig.order(spec=generate_spec(2, side_px=768))]
    leases = [picture_rig.lease(1, most=2), picture_rig.lease(1, most=2)]
    rig.clock.advance_s(7)
    for lease in leases:
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=0))
    costs = [job_cost(rig, ROOT, order) for order in orders]
    found = during(rig).work
    assert sum(costs) == found.cost_micro_usd == 7 * PER_S
    assert costs[2] == costs[0] + costs[1], "each lease pays half of the node"
    assert (found.jobs, found.jobs_succeeded) == (3, 0), "a lease that ended well ends no order"


def test_times_that_are_none_are_refused(rig: StoreRig) -> None:
    now = instant(rig.clock.now_ms())
    for since, until in ((now, now), (now, now - timedelta(days=1)), (now - timedelta(days=400), now)):
        with pytest.raises(InvalidInput, match="since"):
            read_costs(rig.ctx, ROOT, since, until)
