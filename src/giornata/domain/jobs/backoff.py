"""The rules for the return of a job to a machine that failed it.

A ban prefers another machine. Where no other machine can take the job, the ban of one machine is lifted after a pause
that grows with the attempts in a row that made no progress, as in exponential backoff. So every job that a connected
node may take is tried again until it succeeds, or until its own rule ends it (`domain.jobs.reasons.job_fails`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from giornata.domain.fleets.capacity import Demand, Offer, could_take
from giornata.domain.jobs.attempt import CLOCKS_AGREE_MS
from giornata.domain.jobs.reasons import Reason

FACTOR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """The pause before a job goes back to a machine that failed it: the first one, and the longest one."""

    first_s: float = 10.0
    longest_s: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """A machine that failed a job, why, and when (epoch ms)."""

    machine_id: str
    reason: Reason
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffNode:
    """A connected node. `quarantines`: kinds for which its machine is quarantined → when that ends, None if never."""

    machine_id: str
    offer: Offer
    quarantines: Mapping[str, int | None] = field(default_factory=dict)


class Obstacle(StrEnum):
    """Obstacles between a queued job and every connected node of its kind and project."""

    BANNED = "banned"
    QUARANTINED = "quarantined"
    TOO_SMALL = "too_small"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The prospects of a queued job that no connected node may take.

    `at_ms`: BANNED, when the ban of `machine_id` is lifted; QUARANTINED, when the first quarantine ends; TOO_SMALL,
    when the job fails. None: only a person or another machine can help. `may_come`: a fleet may bring another machine
    before. `hosts` counts the nodes that the obstacle concerns, `quarantined` those of them that are.
    """

    obstacle: Obstacle
    at_ms: int | None
    machine_id: str | None = None
    hosts: int = 0
    quarantined: int = 0
    may_come: bool = False


def pause_s(fruitless: int, *, policy: BackoffPolicy) -> float:
    """Seconds until a job goes back, after so many attempts in a row without progress."""
    tries = min(max(0, fruitless - 1), 20)  # more would only make a number that nobody needs
    return min(policy.longest_s, policy.first_s * float(FACTOR) ** tries)


def outlook(
    demand: Demand,
    bans: Collection[Ban],
    hosts: Sequence[BackoffNode],
    *,
    fruitless: int,
    arrival_s: float | None,
    policy: BackoffPolicy,
    now_ms: int,
) -> Outlook | None:
    """Return the job's prospects.

    None: a connected node may take the job, or no connected node serves the job's kind and project.

    `demand` is the job without its bans. `arrival_s`: within this time a fleet may bring another machine that could
    take the job; None: no fleet can.
    """
    banned = {ban.machine_id for ban in bans}
    serving = [host for host in hosts if _takes(replace(demand, min_vram_bytes=0), host)]
    able = [host for host in serving if _takes(demand, host)]
    if any(host.machine_id not in banned and demand.kind not in host.quarantines for host in able):
        return None
    may_come = arrival_s is not None
    if able:
        wait_s = max(pause_s(fruitless, policy=policy), arrival_s or 0.0)
        found = _go_back(demand.kind, bans, able, wait_s=wait_s, now_ms=now_ms)
        quarantined = sum(demand.kind in host.quarantines for host in able)
        return replace(found, hosts=len(able), quarantined=quarantined, may_come=may_come)
    if serving and any(ban.reason is Reason.NODE_TOO_SMALL for ban in bans):
        at_ms = _after(bans, max(policy.longest_s, arrival_s or 0.0), now_ms=now_ms)
        return Outlook(obstacle=Obstacle.TOO_SMALL, at_ms=at_ms, hosts=len(serving), may_come=may_come)
    return None


def _takes(demand: Demand, host: BackoffNode) -> bool:
    return could_take(demand, host.offer, machine_id=host.machine_id)


def _go_back(kind: str, bans: Collection[Ban], able: Sequence[BackoffNode], *, wait_s: float, now_ms: int) -> Outlook:
    """Return the outlook of a job that goes back to the machine that failed the job longest ago.

    A quarantined machine gets no job until its quarantine ends.
    """
    at_work = {host.machine_id for host in able if kind not in host.quarantines}
    here = [ban for ban in bans if ban.machine_id in at_work]
    if here:
        oldest = min(here, key=lambda ban: (ban.at_ms, ban.machine_id))
        at_ms = _after(bans, wait_s, now_ms=now_ms)
        return Outlook(obstacle=Obstacle.BANNED, at_ms=at_ms, machine_id=oldest.machine_id)
    ends_ms = [ends for host in able if (ends := host.quarantines[kind]) is not None]
    return Outlook(obstacle=Obstacle.QUARANTINED, at_ms=min(ends_ms, default=None))


def _after(bans: Collection[Ban], wait_s: float, *, now_ms: int) -> int:
    """Return the instant `wait_s` after the latest failure; now when the clock was set back since."""
    latest_ms = max(ban.at_ms for ban in bans)
    return now_ms if latest_ms > now_ms + CLOCKS_AGREE_MS else latest_ms + round(wait_s * 1000)
