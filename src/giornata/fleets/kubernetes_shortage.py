"""Why fewer pods run than were asked for, from what the cluster writes on its objects."""

from collections.abc import Sequence
from typing import Any

from giornata.fleets.kubernetes_pods import Pod, how_it_ended, is_over

LONGEST_MESSAGE = 300


def why_missing(workload: Any, pods: Sequence[Pod]) -> str:
    """One sentence or two for the operator; empty when the cluster says nothing."""
    conditions = (workload.status.conditions or []) if workload.status is not None else []
    found = [
        _said(each)
        for each in conditions
        if (each.type == "ReplicaFailure" and each.status == "True")
        or (each.type == "Progressing" and each.status == "False")
    ]
    if (last := _last_over(pods)) is not None:
        found.append(f"the last pod that ended: {how_it_ended(last)}")
    return "; ".join(found)


def _said(condition: Any) -> str:
    return f"{condition.reason}: {condition.message or ''}"[:LONGEST_MESSAGE].rstrip(": ")


def _last_over(pods: Sequence[Pod]) -> Pod | None:
    over = [pod for pod in pods if is_over(pod) and how_it_ended(pod)]
    return max(over, key=lambda pod: (str(pod.metadata.creation_timestamp), pod.metadata.name), default=None)
