"""Which nodes who may see, and in which state they are."""

import pytest
from tests.fixtures.contexts import ManualClock
from tests.fixtures.users import ANN, ANNS_NODE, BOB, ROOT, claim, end, move_in, new_job

from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.fleets.nodes import list_nodes
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import Heartbeat
from giornata.protocol.project.admin import NodeState


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def test_nodes_are_seen_by_the_operator_and_by_their_own_project(ctx: Context, clock: ManualClock) -> None:
    job = new_job(ctx)
    claim(ctx, ANNS_NODE, machine="m1", node="node_00000001")
    clock.advance_s(1)
    new_job(ctx)
    end(ctx, claim(ctx, machine="m2", node="node_00000002"), Reason.PREEMPTED, JobEvent.REQUEUE)

    def seen(caller: Caller, *, gone: bool = False) -> list[tuple[str, NodeState]]:
        nodes = list_nodes(ctx, caller, gone=gone, cursor=None, limit=10)
        return [(node.id, node.state) for node in nodes.items]

    assert seen(ROOT) == [("node_00000002", NodeState.IDLE), ("node_00000001", NodeState.BUSY)]
    assert seen(ANN) == [("node_00000001", NodeState.BUSY)]
    assert list_nodes(ctx, ANN, gone=False, cursor=None, limit=10).items[0].job_ids == (job.id,)
    assert seen(BOB) == []
    first = list_nodes(ctx, ROOT, gone=False, cursor=None, limit=1)
    assert [node.id for node in list_nodes(ctx, ROOT, gone=False, cursor=first.next, limit=1).items] == [
        "node_00000001"
    ]
    clock.advance_s(ctx.policy.node_gone_after_s + 1)
    assert seen(ANN) == [("node_00000001", NodeState.GONE)]
    clock.advance_s(3600)
    assert seen(ANN) == []
    assert seen(ANN, gone=True) == [("node_00000001", NodeState.GONE)]


def test_a_process_that_was_replaced_is_gone_and_one_that_is_heard_again_is_not(
    ctx: Context, clock: ManualClock
) -> None:
    new_job(ctx), new_job(ctx)
    lease = claim(ctx, machine="m1", node="node_00000001")
    clock.advance_s(5)
    claim(ctx, machine="m1", node="node_00000002")

    def states() -> dict[str, NodeState]:
        page = list_nodes(ctx, ROOT, gone=False, cursor=None, limit=10)
        return {node.id: node.state for node in page.items}

    assert states() == {"node_00000001": NodeState.GONE, "node_00000002": NodeState.BUSY}
    with ctx.store.read() as tx:
        assert tx.gauges.now(seen_since_ms=0).nodes == {NodeState.GONE: 1, NodeState.BUSY: 1}
    clock.advance_s(1)
    heartbeat(ctx, lease.attempt_id, Heartbeat(step=1))
    assert states() == {"node_00000001": NodeState.BUSY, "node_00000002": NodeState.BUSY}
