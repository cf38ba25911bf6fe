"""Explain a lack of pods from the messages that the cluster writes on its objects."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from giornata.fleets.kubernetes.calls import FIELD_MANAGER
from giornata.fleets.kubernetes.errors import in_words
from giornata.fleets.kubernetes.pods import Pod, how_it_ended

LONGEST_MESSAGE = 400
OWN_NAMES = frozenset({FIELD_MANAGER, "OpenAPI-Generator"})  # the latter was ours before the number had a name
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
# Why a cluster makes no pod, and what to do about it.
_REFUSALS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r"no PriorityClass with name (\S+) was found",
            r"the PriorityClass \1 does not exist: create it, or correct priority_class in the fleet's options",
        ),
        (
            r"error looking up service account \S+?/(\S+?): .*",
            r"the ServiceAccount \1 does not exist: create it, or correct service_account in the fleet's options",
        ),
        (
            r"violates PodSecurity \"([^\"]+)\": (.*)",
            r"the namespace's Pod Security level \1 forbids them (\2): use a namespace with another level",
        ),
        (
            r"exceeded quota: ([^,]+), (requested: .*)",
            r"the ResourceQuota \1 leaves no room (\2): raise it, or ask for less",
        ),
    )
)
_OF_A_POD = re.compile(r"^(?:create Pod \S+ in \S+ \S+ failed error: )?pods? (?:\"[^\"]*\" )?is forbidden: ")


def why_missing(workload: Any, *, failed: Sequence[Pod], warnings: Sequence[Any]) -> str:
    """Explain missing pods to the operator in sentences; empty when the cluster says nothing."""
    conditions = (workload.status.conditions or []) if workload.status is not None else []
    said = [_of_condition(each) for each in conditions]
    # The controller of StatefulSets writes no conditions, only events. They are kept when they are over.
    made = (workload.status.replicas or 0) if workload.status is not None else 0
    refused = [each for each in warnings if each.reason == "FailedCreate" and made < (workload.spec.replicas or 0)]
    if refused:
        said.append(_not_made(max(refused, key=_when).message or ""))
    said.append(who_set_the_number(workload))
    if (last := _last_over(failed)) is not None:
        said.append(f"the last pod that ended: {how_it_ended(last)}")
    return "; ".join(filter(None, said))


def who_set_the_number(workload: Any) -> str:
    """Describe the last change of the number of pods by another manager, with its time.

    The result is empty when this driver set the number, or the workload does not tell.
    """
    owners = [
        each
        for each in workload.metadata.managed_fields or ()
        if "f:replicas" in ((each.fields_v1 or {}).get("f:spec") or {})
    ]
    if not owners or any(each.manager in OWN_NAMES for each in owners):
        return ""
    last = max(owners, key=lambda each: each.time or _LONG_AGO)
    at = f" at {last.time:%Y-%m-%d %H:%M} UTC" if last.time else ""
    return f"{last.manager} set the number of pods to {workload.spec.replicas or 0}{at}, and not Giornata"


def _of_condition(condition: Any) -> str:
    if condition.type == "ReplicaFailure" and condition.status == "True":
        return _not_made(condition.message or condition.reason)
    if condition.type == "Progressing" and condition.status == "False":
        return f"pods do not become ready: {in_words(condition.message or condition.reason)}"
    return ""


def _not_made(message: str) -> str:
    """Explain a refused pod. `message` comes from the refusing admission or quota."""
    why, forbidden = _OF_A_POD.subn("", in_words(message))
    for pattern, words in _REFUSALS:
        if found := pattern.search(why):
            return f"no pod can be made: {found.expand(words)}"[:LONGEST_MESSAGE]
    return f"no pod can be made: {'it is forbidden: ' if forbidden else ''}{why}"[:LONGEST_MESSAGE]


def _when(event: Any) -> datetime:
    found: datetime = event.last_timestamp or event.event_time or event.metadata.creation_timestamp or _LONG_AGO
    return found


def _last_over(failed: Sequence[Pod]) -> Pod | None:
    over = [pod for pod in failed if how_it_ended(pod)]
    return max(over, key=lambda pod: (str(pod.metadata.creation_timestamp), pod.metadata.name), default=None)
