"""Tell the node of an attempt to checkpoint and give the job back; see `ordered_end` for what becomes of it.

One that does not is ended after a grace: see `enforce_releases`.
"""

from collections.abc import Mapping
from typing import Any

from giornata.control.context import Context
from giornata.domain.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.work import Order


def order_release(ctx: Context, attempt_id: str, *, reason: Reason, notice: Mapping[str, Any]) -> bool:
    """Order it, and put the notice into the job's history; False when it has ended, lapsed, or has an order.

    The node hears of it with its next heartbeat.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job = tx.jobs.lock_of_attempt(attempt_id)
        attempt = tx.attempts.get(attempt_id)
        if job is None or attempt is None or attempt.ended_at_ms is not None or attempt.lapsed:
            return False
        if attempt.order != Order.CONTINUE:
            return False
        tx.attempts.update_live(attempt_id, order=Order.RELEASE, order_reason=reason)
        tx.events.add(job.id, job.project_id, EventType.NOTICE, attempt.number, notice, now_ms)
        return True
