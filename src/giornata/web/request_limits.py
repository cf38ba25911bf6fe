"""Requests a second: count the request of a caller, and tell in headers how it stands to its limits.

The headers are those of the IETF's draft `draft-ietf-httpapi-ratelimit-headers` that clients know best:
`RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, all of the tighter limit.
"""

from collections.abc import MutableMapping
from typing import Any

from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.memory.request_rates import RateStanding
from giornata.control.quotas.request_limits import read_quotas, take_request
from giornata.domain.billing.quotas import Quotas
from giornata.domain.errors import RateLimited
from giornata.protocol.project.admin import USER_VERBS

SCOPE_KEY = "giornata.rate_limit_headers"
NAMES = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


def counted_at_once(scope: MutableMapping[str, Any], ctx: Context, caller: Caller) -> bool:
    """Count a request, if that needs no database; return False when it does. Raises RateLimited."""
    if caller.scopes.isdisjoint(USER_VERBS):
        return True  # it only claims work
    quotas = ctx.memory.quotas.of_project(caller.project_id, at_ms=ctx.clock.now_ms())
    if quotas is None:
        return False
    if quotas.max_requests_per_s is not None or quotas.max_requests_per_s_per_key is not None:
        count(scope, ctx, caller, quotas)
    return True


def count_in_thread(scope: MutableMapping[str, Any], ctx: Context, caller: Caller) -> None:
    """Count a request; the quotas of its project may be read from the database. Raises RateLimited."""
    if not counted_at_once(scope, ctx, caller):
        count(scope, ctx, caller, read_quotas(ctx, caller))


def count(scope: MutableMapping[str, Any], ctx: Context, caller: Caller, quotas: Quotas) -> None:
    """Count a request by these quotas of the caller's project, and keep its headers in the scope. Raises RateLimited
    when it has to wait.
    """
    standing = take_request(ctx, caller, quotas)
    if standing is None:
        return
    scope[SCOPE_KEY] = _headers(standing)
    if standing.wait_s:
        message = f"more than {standing.limit} requests a second came; wait {standing.wait_s} s"
        raise RateLimited(message, limit=standing.limit, retry_after_s=standing.wait_s)


def _headers(standing: RateStanding) -> list[tuple[bytes, bytes]]:
    values = (standing.limit, standing.remaining, standing.reset_s)
    return [(name.lower().encode(), str(value).encode()) for name, value in zip(NAMES, values, strict=True)]
