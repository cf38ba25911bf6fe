"""Decide if a machine may begin a job of a kind now."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from giornata.domain.machines.health import MS_PER_HOUR, HealthPolicy, MachineHealth, MachineState, cool_down_ends_ms


class Answer(StrEnum):
    """The answer to a machine that asks for a job of a kind."""

    YES = "yes"
    CANARY = "canary"  # a short trial first, unless that is under way
    PROBATION = "probation"  # not beside another
    QUOTA = "quota"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The answer; `again_at_ms` is when it may be another one, if that is known."""

    answer: Answer
    detail: str = ""
    again_at_ms: int | None = None


YES = Admission(answer=Answer.YES)


def unlimited(health: MachineHealth | None, *, policy: HealthPolicy) -> bool:
    """Return True when the machine may begin what it likes, so that nothing needs to be counted."""
    if health is None:
        return not policy.new_on_probation
    return health.state is MachineState.OK and health.quota >= policy.quota_per_hour


def admit(
    health: MachineHealth,
    *,
    live: int,
    at_stake_ms: Collection[int],
    offers_canary: bool,
    policy: HealthPolicy,
    at_ms: int,
) -> Admission:
    """May it begin one more?

    `live` counts its attempts of this kind that hold a lease. `at_stake_ms` says when those began, of the last
    hour, that live or were held against it: what succeeded or ended without blame gives its share of the quota back.
    """
    if health.state is MachineState.QUARANTINED:
        ends_ms = cool_down_ends_ms(health, policy=policy)
        return Admission(answer=Answer.QUARANTINED, detail=health.reason, again_at_ms=ends_ms)
    if health.state is MachineState.PROBATION:
        if live:
            return Admission(answer=Answer.PROBATION, detail=f"one at a time: {health.reason}")
        if offers_canary:
            return Admission(answer=Answer.CANARY, detail=health.reason)
        # One real job is the trial of a machine that offers no canary; the hour does not count against it.
        return YES
    counted = sorted(each for each in at_stake_ms if each > at_ms - MS_PER_HOUR)
    if len(counted) < health.quota:
        return YES
    again_ms = counted[len(counted) - health.quota] + MS_PER_HOUR
    detail = f"{len(counted)} of {health.quota} attempts an hour are taken; a success earns more"
    return Admission(answer=Answer.QUOTA, detail=detail, again_at_ms=again_ms)
