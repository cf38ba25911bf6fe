"""From a pod to an instance."""

from datetime import datetime
from typing import Any

from giornata.control.ports.fleet import Instance, InstanceState

CONTAINER = "node"
Pod = Any  # a V1Pod, whose every field may be None to its types, and most never are


def is_over(pod: Pod) -> bool:
    """Whether it has ended and is only kept to be read: evicted, pre-empted, shut down with its machine."""
    return pod.status is not None and pod.status.phase in ("Succeeded", "Failed")


def instance_of(pod: Pod) -> Instance:
    """The pod as the control plane sees it."""
    since = _running_since(pod)
    return Instance(
        id=pod.metadata.uid,
        name=pod.metadata.name,
        state=_state(pod, running=since is not None),
        machine_id=pod.spec.node_name or None,
        running_since_ms=None if since is None else round(since.timestamp() * 1000),
    )


def _state(pod: Pod, *, running: bool) -> InstanceState:
    if pod.metadata.deletion_timestamp is not None:
        # Also a pod whose machine does not answer: it is deleted by the cluster after minutes, and may run on.
        return InstanceState.STOPPING
    return InstanceState.RUNNING if running else InstanceState.STARTING


def _running_since(pod: Pod) -> datetime | None:
    """Since when the node's container runs; None while an image comes, or between two starts of it."""
    statuses = (pod.status.container_statuses or []) if pod.status is not None else []
    chosen = [each for each in statuses if each.name == CONTAINER] or statuses[:1]
    for status in chosen:
        if status.state is not None and status.state.running is not None:
            started: datetime | None = status.state.running.started_at
            return started
    return None
