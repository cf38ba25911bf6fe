"""Requests a second: how a request stands to the limits of its project and its caller, on all servers together."""

from giornata.control.caller import Caller
from giornata.control.context import Foundations
from giornata.control.memory.request_rates import RateStanding
from giornata.control.quotas.use import quotas_of
from giornata.domain.billing.quotas import Quotas


def read_quotas(ctx: Foundations, caller: Caller) -> Quotas:
    """Return the quotas of the caller's project, and remember them for a few seconds."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        quotas = quotas_of(tx, caller.project_id)
    ctx.memory.quotas.remember(caller.project_id, quotas, at_ms=now_ms)
    return quotas


def take_request(ctx: Foundations, caller: Caller, quotas: Quotas) -> RateStanding | None:
    """Count a request; return how it stands to its limits, or None where there are none."""
    limits = {}
    if quotas.max_requests_per_s is not None:
        limits["project", caller.project_id] = quotas.max_requests_per_s
    if quotas.max_requests_per_s_per_key is not None:
        limits["caller", f"{caller.key_id} {caller.project_id}"] = quotas.max_requests_per_s_per_key
    return ctx.request_rates.take(limits, at_ms=ctx.clock.now_ms()) if limits else None


def exchange_counts(ctx: Foundations) -> None:
    """Tell the other servers what this one let through, and take what they let through from its buckets: one
    statement, and none while no limited project sends requests here. Raises Unavailable.
    """
    rates = ctx.request_rates
    at_ms = ctx.clock.now_ms()
    counts = rates.counts(at_ms=at_ms)
    if counts:
        rates.server_id = rates.server_id or ctx.names.new("server")
        with ctx.store.begin() as tx:
            others = tx.quotas.exchange_requests(rates.server_id, counts, at_ms=at_ms)
        rates.settle(others, at_ms=ctx.clock.now_ms())
    elif rates.is_exchanging:
        with ctx.store.begin() as tx:
            tx.quotas.forget_requests(rates.server_id)
        rates.end_exchange()
