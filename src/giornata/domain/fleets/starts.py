"""Nodes that do not come: which of them are no capacity, which are replaced, and when a fleet stops trying.

A start fails when a node's process ends before it asks for work. Two in a row say that the next one fails, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from giornata.domain.fleets.capacity import InstanceView, Use
from giornata.domain.fleets.fleet_plan import FleetView, ScalingPolicy
from giornata.domain.machines.health import common_cause

FAILED_STARTS = 2
# A fleet that stopped trying finds out once an hour whether the cause is gone.
TRIAL_EVERY_MS = 3_600_000


class NodeStart(StrEnum):
    """The progress of a node's process, by its last report."""

    DONE = ""  # it asks for work
    UNDER_WAY = "under_way"  # it reported its checks, and has not asked for work yet
    FAILED = "failed"  # it ends, because its engine does not start or its machine is not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """The restarts of the process on an instance, and the number of its latest failed starts in a row.

    `began_at_ms`: when the process was last found to begin; None: when the instance was found.
    """

    restarts: int = 0
    began_at_ms: int | None = None
    failed: int = 0


def after_restarts(before: Starts, *, restarts: int, had_asked: bool, at_ms: int) -> Starts:
    """After the process was restarted up to `restarts` times. `had_asked`: it asked for work since `before`."""
    ended = restarts - before.restarts
    if ended <= 0:
        return Starts(
            restarts=restarts,
            began_at_ms=before.began_at_ms,
            failed=0 if had_asked else before.failed,
        )
    failed = ended - 1 if had_asked else before.failed + ended
    return Starts(restarts=restarts, began_at_ms=at_ms, failed=failed)


def failed_in_a_row(starts: Sequence[NodeStart]) -> int:
    """Count the latest failed starts in a row of one instance's processes, in the order of their appearance."""
    failed = 0
    for number, start in enumerate(starts):
        if start is NodeStart.DONE:
            failed = 0
        else:
            failed += start is NodeStart.FAILED or number < len(starts) - 1
    return failed


def is_late(instance: InstanceView, policy: ScalingPolicy, now_ms: int) -> bool:
    """Return True when a node has been waited for too long: one that is billed sooner than one that is free."""
    within_s = policy.billed_startup_timeout_s if instance.billed else policy.startup_timeout_s
    return instance.use is Use.NONE and now_ms - instance.since_ms > within_s * 1000


def never_comes(instance: InstanceView, policy: ScalingPolicy, now_ms: int) -> bool:
    """Return True when no node is to be expected on the instance: such an instance is no capacity."""
    return is_late(instance, policy, now_ms) or (instance.use is Use.NONE and instance.fails_to_start)


def to_replace(
    instances: Sequence[InstanceView], view: FleetView, policy: ScalingPolicy, now_ms: int
) -> list[InstanceView]:
    """Return the instances that are replaced now, within the reaper's share.

    What fails to start is replaced at once where its place comes on another machine. Elsewhere its process is
    started again anyway, and it is replaced when it is late.
    """
    lost = [
        each
        for each in instances
        if is_late(each, policy, now_ms) or (view.moves and never_comes(each, policy, now_ms))
    ]
    left = view.reallocations_left if view.share_left is None else min(view.reallocations_left, view.share_left)
    if stopped(instances, view, policy, now_ms):
        left = min(left, int(is_trial_due(view, now_ms)))
    return sorted(lost, key=lambda each: (each.since_ms, each.id))[: max(0, left)]


def stopped(instances: Sequence[InstanceView], view: FleetView, policy: ScalingPolicy, now_ms: int) -> str:
    """Return the reason why the fleet requests and replaces no nodes, in words; empty when the fleet does.

    So many nodes never came that no machine can be the cause: see `domain.machines.health.common_cause`.
    """
    lost = [each for each in instances if never_comes(each, policy, now_ms)]
    there = [each.id for each in instances if each.use is not Use.NONE]
    if not common_cause(failing=[each.id for each in lost], fine=there, jobs=len(lost), policy=view.health):
        return ""
    never = not any(each.came for each in lost)
    if there:
        return f"{len(lost)} of {len(lost) + len(there)} nodes {'never came' if never else 'do not come'}"
    return f"none of {len(lost)} nodes {'ever came' if never else 'comes any more'}"


def is_trial_due(view: FleetView, now_ms: int) -> bool:
    """Return True when a fleet that stopped may try one more node."""
    return view.changed_at_ms is None or now_ms - view.changed_at_ms >= TRIAL_EVERY_MS
