"""The installation in numbers, for whoever operates it."""

from dataclasses import replace

from giornata.control.budgets import project_spent
from giornata.control.context import Context
from giornata.control.ports.gauges import Gauges


def read_gauges(ctx: Context) -> Gauges:
    """Counts of jobs, nodes and ended attempts, of all projects together. Raises Unavailable."""
    since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    with ctx.store.read() as tx:
        gauges = tx.gauges.now(seen_since_ms=since_ms)
        spent = project_spent(tx, ctx, None, at_ms=ctx.clock.now_ms())
        return replace(gauges, spend_micro_usd=spent.total_micro_usd)
