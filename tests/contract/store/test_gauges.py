"""The operator's gauges, on both databases."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import sqlalchemy as sa
from tests.fixtures.contexts import ManualClock
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.control import monitoring
from giornata.control.access.authenticate import authenticate
from giornata.control.access.install import install
from giornata.control.access.keys import create_key
from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.control.monitoring import read_gauges
from giornata.control.pictures.settle_order import settle_orders
from giornata.control.ports.node_queries.gauges import Gauges, PictureGauges
from giornata.control.projects.set_budget import change_job
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import ChangeJob, SubmitJob
from giornata.protocol.node.work import Claim, CompleteAttempt, Heartbeat, NodeInfo
from giornata.protocol.project.admin import ROOT_PROJECT, CreateKey, NodeState, Scope
from giornata.store import schema
from giornata.store.schema import attempts


def test_threads_that_ask_at_once_read_the_gauges_once(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    admin, readings, may_end = authenticate(ctx, install(ctx) or ""), [], threading.Event()

    def slow(of: Context) -> Gauges:
        readings.append(threading.get_ident())
        may_end.wait(10)
        return read_gauges(of)

    monkeypatch.setattr(monitoring, "read_gauges", slow)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(monitoring.read_installation, ctx, admin) for _ in range(4)]
        wait(asked, timeout=0.3)  # all of them have begun
        may_end.set()
        found = [each.result(10) for each in asked]
    assert len(readings) == 1
    assert all(each is found[0] for each in found)


def test_an_empty_installation_is_all_zero(ctx: Context) -> None:
    gauges = read_gauges(ctx)
    assert (gauges.jobs, gauges.oldest_queued_at_ms, gauges.nodes, gauges.ended.by_reason) == ({}, None, {}, {})


def test_gauges_count_each_job_node_and_attempt_once(ctx: Context, clock: ManualClock) -> None:
    admin = authenticate(ctx, install(ctx) or "")
    node = authenticate(ctx, create_key(ctx, admin, CreateKey(scope=Scope.NODE)).secret)
    made = []
    for kind in ("x-a", "x-a", "x-b", "x-b"):
        made.append(submit(ctx, admin, SubmitJob(kind=kind, spec={}), None)[0])
        clock.advance_s(1)
    oldest_ms = clock.now_ms() - 3000

    def claim(number: int, kind: str) -> None:
        info = NodeInfo(node_id=f"node_0000000{number}", machine_id=f"m-{number}", name="n")
        claim_once(ctx, node, Claim(request_id=f"request-{number}", node=info, kinds=(kind,)))

    claim(1, "x-none")
    clock.advance_s(ctx.policy.node_gone_after_s + 1)
    claim(2, "x-a")
    claim(3, "x-b")
    claim(4, "x-none")
    cancel(ctx, admin, made[2].id)
    gauges = read_gauges(ctx)
    assert gauges.jobs == {("x-a", "queued"): 1, ("x-a", "running"): 1, ("x-b", "queued"): 1, ("x-b", "canceled"): 1}
    assert gauges.oldest_queued_at_ms == oldest_ms
    assert gauges.nodes == {NodeState.GONE: 1, NodeState.BUSY: 1, NodeState.IDLE: 2}
    assert gauges.ended.by_reason == {"canceled": 1}


def test_steps_that_no_checkpoint_has_are_lost_unless_the_attempt_succeeded(rig: StoreRig) -> None:
    def ended(number: int, reason: Reason, *, start: int, last: int, committed: int) -> None:
        rig.add_job()
        lease = rig.lease(number)
        row = {
            "start_step": start,
            "last_step": last,
            "committed_step": committed,
            "reason": reason,
            "ended_at_ms": 1,
        }
        with rig.store.begin() as tx:
            tx.connection.execute(sa.update(attempts).where(attempts.c.id == lease.attempt_id).values(**row))

    ended(1, Reason.SUCCEEDED, start=0, last=100, committed=90)
    ended(2, Reason.LEASE_EXPIRED, start=0, last=50, committed=40)
    ended(3, Reason.CRASHED, start=40, last=47, committed=0)
    ended(4, Reason.PREEMPTED, start=40, last=40, committed=0)
    rig.add_job()
    rig.lease(5)  # it has not ended
    gauges = read_gauges(rig.ctx)
    assert (gauges.ended.steps_done, gauges.ended.steps_lost) == (100 + 50 + 7, 10 + 7)


def test_attempts_that_ended_long_ago_are_counted_once_more_by_no_read(rig: StoreRig) -> None:
    def end(count: int) -> None:
        for _ in range(count):
            rig.add_job()
            complete(rig.ctx, rig.lease(1).attempt_id, CompleteAttempt(step=1))

    end(2)
    rig.clock.advance_s(3600)
    assert read_gauges(rig.ctx).ended.by_reason == {"succeeded": 2}
    end(1)
    assert read_gauges(rig.ctx).ended.by_reason == {"succeeded": 3}
    with rig.store.begin() as tx:  # who is remembered is not read again
        old = schema.attempts.c.ended_at_ms < rig.clock.now_ms() - 1000
        tx.connection.execute(sa.update(schema.attempts).where(old).values(reason="crashed"))
    assert read_gauges(rig.ctx).ended.by_reason == {"succeeded": 3}
    rig.clock.advance_s(3600)
    end(1)
    assert read_gauges(rig.ctx).ended.by_reason == {"succeeded": 4}
    rig.clock.advance_s(-3 * 3600)
    assert read_gauges(rig.ctx).ended.by_reason == {"succeeded": 2, "crashed": 2}, "the clock was set back"


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")


def test_pictures_are_counted_by_state_while_their_orders_are_open(picture_rig: PictureRig) -> None:
    submitted_ms = picture_rig.ctx.clock.now_ms()
    first, ended = picture_rig.order(5), picture_rig.order(1)
    picture_rig.rig.clock.advance_s(60)
    picture_rig.order(2)
    lease = picture_rig.lease(1, most=4)
    picture_rig.draw(lease, 0)
    expected = PictureGauges(queued=4, leased=3, oldest_queued_at_ms=submitted_ms, leases=1)
    assert read_gauges(picture_rig.ctx).pictures == expected
    cancel(picture_rig.ctx, OWNER, ended)
    cancel(picture_rig.ctx, OWNER, first)
    now_ms = picture_rig.ctx.clock.now_ms()
    assert read_gauges(picture_rig.ctx).pictures == PictureGauges(queued=2, oldest_queued_at_ms=now_ms, leases=1)
    complete(picture_rig.ctx, lease.attempt_id, CompleteAttempt(step=0))
    assert read_gauges(picture_rig.ctx).pictures.leases == 0


def test_pictures_of_an_order_that_waits_for_money_are_paused(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(4, budget_micro_usd=1)
    lease = picture_rig.lease(1, most=2)
    picture_rig.rig.clock.advance_s(10)
    heartbeat(picture_rig.ctx, lease.attempt_id, Heartbeat())
    picture_rig.draw(lease, 0)
    assert read_gauges(picture_rig.ctx).pictures == PictureGauges(paused=2, leased=1, leases=1)
    complete(picture_rig.ctx, lease.attempt_id, CompleteAttempt(step=0))
    assert read_gauges(picture_rig.ctx).pictures == PictureGauges(paused=3)
    change_job(picture_rig.ctx, OWNER, order_id, ChangeJob(budget_micro_usd=10**9))
    assert read_gauges(picture_rig.ctx).pictures.queued == 3


def test_ended_pictures_are_counted_once_by_the_state_in_which_they_ended(picture_rig: PictureRig) -> None:
    picture_rig.order(3)
    stopped = picture_rig.order(2, priority=-1)
    lease = picture_rig.lease(1, most=3)
    done = [picture_rig.upload(lease, each) for each in lease.pictures]
    picture_rig.report(lease, done[:1])
    picture_rig.rig.clock.advance_s(2)
    picture_rig.report(lease, done[1:2], [(lease.pictures[2], Reason.BAD_SPEC)], complete=True)
    other = picture_rig.lease(1, most=2)
    picture_rig.draw(other, 0)
    cancel(picture_rig.ctx, OWNER, stopped)
    for _ in range(2):
        picture_rig.rig.clock.advance_s(2)
        settle_orders(picture_rig.ctx)
    assert picture_rig.ctx.ended_pictures.counts() == {PictureState.SUCCEEDED: 3, PictureState.FAILED: 1}
