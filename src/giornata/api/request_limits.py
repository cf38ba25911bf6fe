"""Requests a second: count the request of a caller, and tell in headers how it stands to its limits.

The headers are those of the IETF's draft `draft-ietf-httpapi-ratelimit-headers` that clients know best:
`RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, all of the tighter limit.
"""

from collections.abc import MutableMapping
from typing import Any

from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.quotas.request_limits import is_counted, known_quotas, take_request
from giornata.control.request_rates import RateStanding
from giornata.domain.errors import RateLimited
from giornata.domain.quotas import Quotas

SCOPE_KEY = "giornata.rate_limit_headers"
NAMES = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


def is_ready(ctx: Context, caller: Caller) -> bool:
    """Return True when a request of this caller can be counted without the database."""
    return not is_counted(caller) or known_quotas(ctx, caller) is not None


def count_known(scope: MutableMapping[str, Any], ctx: Context, caller: Caller) -> None:
    """Count a request of a caller that `is_ready`. Raises RateLimited."""
    if not is_counted(caller):
        return
    quotas = known_quotas(ctx, caller)
    if quotas is not None:
        count(scope, ctx, caller, quotas)


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
