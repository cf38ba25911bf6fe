"""The state of jobs and nodes at one moment: which node to kill, and what changed since the moment before. No I/O."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import INTERRUPTION, Reason
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Attempt, Event, Job
from giornata.protocol.project.admin import Node, NodeState

EARLIEST_KILL, MIDDLE, LATEST_KILL = 0.25, 0.5, 0.75
"""Fractions of a job's steps. A job is hit between the first and the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSnapshot:
    """Jobs in the order of their submission, the present nodes by name, and killed nodes without a replacement."""

    jobs: tuple[Job, ...] = ()
    nodes: tuple[Node, ...] = ()
    killed: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTarget:
    """A node in the middle of a job."""

    node: Node
    job: Job
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """An attempt that ended before its job. `resumed_step` is None until another attempt has started."""

    attempt: int
    resumed_step: int | None


def running_attempt(job: Job) -> Attempt | None:
    """Return the attempt that works on the job now."""
    if job.state is not JobState.RUNNING:
        return None
    return next((each for each in reversed(job.attempts) if each.ended_at is None), None)


def present_nodes(nodes: Collection[Node], killed: Collection[str] = ()) -> tuple[Node, ...]:
    """Return the nodes that may still run, ordered by name."""
    present = [node for node in nodes if node.state is not NodeState.GONE and node.id not in killed]
    return tuple(sorted(present, key=lambda node: node.name))


def find_target(snapshot: DemoSnapshot, already_hit: Collection[str]) -> KillTarget | None:
    """Return a node in the middle of a job whose attempt has committed a checkpoint, or None.

    A job in `already_hit` is left alone. While untouched jobs wait in the queue, a job that was hit resumes first.
    """
    jobs = snapshot.jobs
    resuming = any(job.id in already_hit and len(job.attempts) < 2 for job in jobs)
    if resuming and any(job.state is JobState.QUEUED and not job.attempts for job in jobs):
        return None
    nodes = {node.id: node for node in snapshot.nodes}
    for job in jobs:
        attempt = running_attempt(job)
        if job.id in already_hit or attempt is None or not _in_the_middle(job, attempt):
            continue
        node = nodes.get(attempt.node_id)
        if node is not None and node.pid is not None and node.engine_pid is not None:
            return KillTarget(node=node, job=job, attempt=attempt)
    return None


def _in_the_middle(job: Job, attempt: Attempt) -> bool:
    total, step = job.total_steps or 0, last_step(job)
    committed = attempt.committed_step > attempt.start_step
    # A kill should lose some steps. Reports of steps are rare, so from the middle on any moment is good enough.
    at_risk = step > attempt.committed_step or step >= MIDDLE * total
    return committed and at_risk and EARLIEST_KILL * total <= step <= LATEST_KILL * total


def last_step(job: Job) -> int:
    """Return the last step that is known to be done: reports and checkpoints arrive separately."""
    return max(job.step, job.committed_step)


def interruptions(events: Collection[Event]) -> tuple[Interruption, ...]:
    """Return the interruptions in a job's history, oldest first."""
    starts = {
        event.attempt: int(event.data.get("resume_step", 0))
        for event in events
        if event.type == EventType.ATTEMPT_STARTED and event.attempt is not None
    }
    broken = {event.attempt for event in events if event.attempt is not None and _interrupts(event)}
    return tuple(Interruption(attempt=number, resumed_step=starts.get(number + 1)) for number in sorted(broken))


def _interrupts(event: Event) -> bool:
    reason = event.data.get("reason")
    return event.type == EventType.ATTEMPT_ENDED and reason in set(Reason) and INTERRUPTION[Reason(str(reason))]


def changes(before: DemoSnapshot, after: DemoSnapshot) -> Iterator[str]:
    """Describe what happened to each job between two snapshots."""
    known = {job.id: job for job in before.jobs}
    for job in after.jobs:
        yield from _job_changes(known.get(job.id), job)


def _job_changes(before: Job | None, job: Job) -> Iterator[str]:
    seen = {} if before is None else {attempt.number: attempt for attempt in before.attempts}
    for attempt in job.attempts:
        known = seen.get(attempt.number)
        if known is None:
            yield f"{job.name}: {_start_text(job, attempt)}"
        if attempt.lapsed and attempt.ended_at is None and not (known is not None and known.lapsed):
            yield f"{job.name}: {attempt.node_name} has been silent for a whole lease; back in the queue"
    if job.state not in {JobState.QUEUED, JobState.RUNNING} and (before is None or before.state is not job.state):
        yield f"{job.name}: {job.state}" + (f", {job.error}" if job.error else f" at step {job.step}")


def _start_text(job: Job, attempt: Attempt) -> str:
    if attempt.number == 1:
        return f"taken by {attempt.node_name}"
    before = next((each for each in job.attempts if each.number == attempt.number - 1), None)
    replaced = before is not None and before.node_name == attempt.node_name
    node = f"a new {attempt.node_name}" if replaced else attempt.node_name
    if not attempt.start_step:
        return f"begins again on {node}"
    return f"resumes on {node} from step {attempt.start_step} of {job.total_steps}"
