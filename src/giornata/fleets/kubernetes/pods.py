"""Translate a pod into an instance."""

from datetime import datetime
from typing import Any

from giornata.control.ports.fleet import Instance, InstanceState
from giornata.fleets.kubernetes.errors import in_words

CONTAINER = "node"
LONGEST_TROUBLE = 500
# The cluster selects, so that those which are only kept to be read cost nothing.
PRESENT = "status.phase!=Succeeded,status.phase!=Failed"
FAILED = "status.phase=Failed"
USUAL = frozenset({"ContainerCreating", "PodInitializing"})
# https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff and the kubelet's own reasons beside it.
CANNOT_START = frozenset(
    {
        *("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    }
)
Pod = Any  # a V1Pod, whose every field may be None to its types, and most never are


def instance_of(pod: Pod) -> Instance:
    """The pod as the control plane sees it."""
    since = _running_since(pod)
    return Instance(
        id=pod.metadata.uid,
        name=pod.metadata.name,
        state=_state(pod, running=since is not None),
        machine_id=pod.spec.node_name or None,
        running_since_ms=None if since is None else round(since.timestamp() * 1000),
        trouble="" if since is not None else _trouble(pod),
        restarts=sum(each.restart_count or 0 for each in _chosen(pod)),
        cannot_start=any(
            each.state is not None and each.state.waiting is not None and each.state.waiting.reason in CANNOT_START
            for each in _chosen(pod)
        ),
    )


def how_it_ended(pod: Pod) -> str:
    """Describe the end of a pod: its name, time and reason; empty without a reason."""
    status = pod.status
    terminated = [
        each.state.terminated for each in _containers(pod) if each.state is not None and each.state.terminated
    ]
    why = ": ".join(filter(None, [status.reason, status.message])) or (_exit(terminated[0]) if terminated else "")
    at = terminated[0].finished_at if terminated else None
    return f"{pod.metadata.name}{f' ({at:%Y-%m-%d %H:%M} UTC)' if at else ''}, {why}"[:LONGEST_TROUBLE] if why else ""


def _trouble(pod: Pod) -> str:
    """Return the reason why a pod does not run: no machine, no image, or a container that ends again and again."""
    if pod.metadata.deletion_timestamp is not None:
        return ""
    for condition in (pod.status.conditions or []) if pod.status is not None else []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {in_words(condition.message or '')}"[:LONGEST_TROUBLE].rstrip(": ")
    for each in _containers(pod):
        waiting = each.state.waiting if each.state is not None else None
        if waiting is None or waiting.reason in USUAL:
            continue
        ended = each.last_state.terminated if each.last_state is not None else None
        said = filter(
            None, [waiting.reason, in_words(waiting.message or ""), _exit(ended) if ended is not None else ""]
        )
        return ": ".join(said)[:LONGEST_TROUBLE]
    return ""


def _exit(terminated: Any) -> str:
    said = ", ".join(filter(None, [terminated.reason, terminated.message]))
    return f"ended with status {terminated.exit_code}" + (f" ({said})" if said else "")


def _containers(pod: Pod) -> list[Any]:
    return (pod.status.container_statuses or []) if pod.status is not None else []


def _chosen(pod: Pod) -> list[Any]:
    """The status of the node's own container."""
    statuses = _containers(pod)
    return [each for each in statuses if each.name == CONTAINER] or statuses[:1]


def _state(pod: Pod, *, running: bool) -> InstanceState:
    if pod.metadata.deletion_timestamp is not None:
        # Also a pod whose machine does not answer: it is deleted by the cluster after minutes, and may run on.
        return InstanceState.STOPPING
    return InstanceState.RUNNING if running else InstanceState.STARTING


def _running_since(pod: Pod) -> datetime | None:
    """Since when the node's container runs; None while an image comes, or between two starts of it."""
    for status in _chosen(pod):
        if status.state is not None and status.state.running is not None:
            started: datetime | None = status.state.running.started_at
            return started
    return None
