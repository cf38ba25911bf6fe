"""Why no node is connected for a job, as far as the fleets tell."""

from giornata.control.context import Context
from giornata.control.fleet_views import bidders
from giornata.control.ports.store import Transaction
from giornata.domain.capacity import Use
from giornata.domain.fleet_share import Bidder
from giornata.domain.starts import is_late


def why_no_node_comes(tx: Transaction, ctx: Context, kind: str) -> str:
    """In words for the job's owner, without names of fleets or machines; empty: nodes may be on their way."""
    now_ms = ctx.clock.now_ms()
    serving = [each for each in bidders(tx, ctx, at_ms=now_ms) if kind in each.view.offer.kinds]
    for each in serving:
        if stopped := each.stopped(now_ms):
            return f"{stopped}, and one more is tried each hour; an operator sees why with: giornata fleets"
    lost = [_lost(each, now_ms) for each in serving]
    failing, late = sum(each[0] for each in lost), sum(each[1] for each in lost)
    found = []
    if failing:
        found.append(f"{_nodes(failing)} ended again and again before asking for work")
    if late:
        found.append(f"{_nodes(late)} did not come in time")
    return f"{' and '.join(found)}; the job goes to the next node that comes" if found else ""


def _lost(bidder: Bidder, now_ms: int) -> tuple[int, int]:
    """How many of its nodes fail to start, and how many others are late."""
    waited_for = [each for each in bidder.view.instances if each.stays and each.use is Use.NONE]
    failing = [each for each in waited_for if each.fails_to_start]
    late = [each for each in waited_for if not each.fails_to_start and is_late(each, bidder.policy, now_ms)]
    return len(failing), len(late)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
