"""Requests a second: which requests count, and how they stand to the limits of their project and their caller."""

from giornata.control.caller import Caller
from giornata.control.context import Foundations
from giornata.control.quotas.use import quotas_of
from giornata.control.request_rates import RateStanding
from giornata.domain.quotas import Quotas
from giornata.protocol.admin import USER_VERBS


def known_quotas(ctx: Foundations, caller: Caller) -> Quotas | None:
    """Return the quotas of the caller's project, where that needs no database."""
    return ctx.memory.quotas.of_project(caller.project_id, at_ms=ctx.clock.now_ms())


def read_quotas(ctx: Foundations, caller: Caller) -> Quotas:
    """Return the quotas of the caller's project, and remember them for a few seconds."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        quotas = quotas_of(tx, caller.project_id)
    ctx.memory.quotas.remember(caller.project_id, quotas, at_ms=now_ms)
    return quotas


def is_counted(caller: Caller) -> bool:
    """Return True for callers whose requests are limited: all but those that only claim work."""
    return not caller.scopes.isdisjoint(USER_VERBS)


def take_request(ctx: Foundations, caller: Caller, quotas: Quotas) -> RateStanding | None:
    """Count a request; return how it stands to its limits, or None where there are none."""
    limits = {}
    if quotas.max_requests_per_s is not None:
        limits["project", caller.project_id] = quotas.max_requests_per_s
    if quotas.max_requests_per_s_per_key is not None:
        limits["caller", f"{caller.key_id} {caller.project_id}"] = quotas.max_requests_per_s_per_key
    return ctx.request_rates.take(limits, at_ms=ctx.clock.now_ms()) if limits else None
