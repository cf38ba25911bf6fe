"""How many machines of a fleet may be replaced now, so that the fleet does not starve itself.

A reallocated machine is kept away from the fleet by the provider for days (48 hours on SaladCloud): whoever
reallocates eagerly runs out of machines.
"""

from collections.abc import Collection
from dataclasses import dataclass

MS_PER_MINUTE = 60_000
MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapPolicy:
    """Of what a fleet has. At least one each."""

    hourly_share: float = 0.1
    excluded_share: float = 0.5  # away at one time, because they were reallocated
    drain_s: float = 120.0  # for the last checkpoint of what a quarantined machine still does


def may_reallocate(
    *,
    nodes: int,
    reallocated_at_ms: Collection[int],
    per_minute: int | None,
    excluded_s: float,
    policy: ReapPolicy,
    now_ms: int,
) -> int:
    """How many more now.

    `nodes` is what the fleet has; `reallocated_at_ms` says when machines were, as far back as `excluded_s` and an
    hour; `per_minute` is the provider's limit, None for none.
    """

    def since(ms: float) -> int:
        return sum(1 for each in reallocated_at_ms if each > now_ms - ms)

    rooms = [
        max(1, int(nodes * policy.hourly_share)) - since(MS_PER_HOUR),
        max(1, int(nodes * policy.excluded_share)) - since(excluded_s * 1000),
    ]
    if per_minute is not None:
        rooms.append(per_minute - since(MS_PER_MINUTE))
    return max(0, min(rooms))
