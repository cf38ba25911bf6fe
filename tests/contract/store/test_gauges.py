"""The operator's gauges, on both databases."""

from tests.fixtures.world import ManualClock

from giornata.control.access.authenticate import authenticate
from giornata.control.access.install import install
from giornata.control.access.keys import create_key
from giornata.control.attempts.claim import claim_once
from giornata.control.context import Context
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submit import submit
from giornata.control.monitoring import read_gauges
from giornata.protocol.admin import CreateKey, NodeState, Scope
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.work import Claim, NodeInfo


def test_an_empty_installation_is_all_zero(ctx: Context) -> None:
    gauges = read_gauges(ctx)
    assert (gauges.jobs, gauges.oldest_queued_at_ms, gauges.nodes, gauges.attempts_ended) == ({}, None, {}, {})


def test_everything_is_counted_once(ctx: Context, clock: ManualClock) -> None:
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
    assert gauges.attempts_ended == {"canceled": 1}
