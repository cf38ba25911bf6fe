"""What the demo sees of its jobs and nodes at one moment, and what follows from it. No I/O."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from giornata.domain.job import JobState
from giornata.domain.reasons import INTERRUPTION, Reason
from giornata.protocol.admin import Node, NodeState
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Attempt, Event, Job

EARLIEST_KILL, MIDDLE, LATEST_KILL = 0.25, 0.5, 0.75
"""Parts of a job's steps: between the first and the last it is killed, from the middle on without further ado."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Jobs in the order of their submission, with their attempts; nodes by name, without those that are gone.

    `lost` are the killed nodes in whose place no other has come yet.
    """

    jobs: tuple[Job, ...] = ()
    nodes: tuple[Node, ...] = ()
    lost: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A node in the middle of a job."""

    node: Node
    job: Job
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """An attempt that ended before its job did. `resumed_step` is None until another one has taken over."""

    attempt: int
    resumed_step: int | None


def running_attempt(job: Job) -> Attempt | None:
    """The attempt that works on the job now."""
    if job.state is not JobState.RUNNING:
        return None
    return next((each for each in reversed(job.attempts) if each.ended_at is None), None)


def live_nodes(nodes: Collection[Node], killed: Collection[str] = ()) -> tuple[Node, ...]:
    """Nodes that may still be there, by name."""
    present = [node for node in nodes if node.state is not NodeState.GONE and node.id not in killed]
    return tuple(sorted(present, key=lambda node: node.name))


def find_victim(scene: Scene, already: Collection[str]) -> Victim | None:
    """A node to kill: in the middle of a job, with a checkpoint committed by this very attempt.

    Jobs in `already` were hit before, and are left alone. While jobs are left that no node has begun, nothing
    happens before those that were hit go on: it shows better one after the other. None while there is no such node.
    """
    waiting = any(job.id in already and len(job.attempts) < 2 for job in scene.jobs)
    if waiting and any(job.state is JobState.QUEUED and not job.attempts for job in scene.jobs):
        return None
    nodes = {node.id: node for node in scene.nodes}
    for job in scene.jobs:
        attempt = running_attempt(job)
        if job.id in already or attempt is None or not _in_the_middle(job, attempt):
            continue
        node = nodes.get(attempt.node_id)
        if node is not None and node.pid is not None and node.engine_pid is not None:
            return Victim(node=node, job=job, attempt=attempt)
    return None


def _in_the_middle(job: Job, attempt: Attempt) -> bool:
    total, step = job.total_steps or 0, reached(job)
    committed = attempt.committed_step > attempt.start_step
    # There should be something to lose, but that is known only now and then, and the time runs.
    at_risk = step > attempt.committed_step or step >= MIDDLE * total
    return committed and at_risk and EARLIEST_KILL * total <= step <= LATEST_KILL * total


def reached(job: Job) -> int:
    """The last step that is known to be done: reports and checkpoints come by different ways."""
    return max(job.step, job.committed_step)


def interruptions(events: Collection[Event]) -> tuple[Interruption, ...]:
    """The interruptions that a job's history records, oldest first."""
    broken = {event.attempt for event in events if event.attempt is not None and _interrupts(event)}
    starts = {
        event.attempt: int(event.data.get("resume_step", 0))
        for event in events
        if event.type == EventType.ATTEMPT_STARTED and event.attempt is not None
    }
    return tuple(Interruption(attempt=number, resumed_step=starts.get(number + 1)) for number in sorted(broken))


def _interrupts(event: Event) -> bool:
    if event.type != EventType.ATTEMPT_ENDED:
        return False
    reason = event.data.get("reason")
    return reason in set(Reason) and INTERRUPTION[Reason(str(reason))]


def changes(before: Scene, after: Scene) -> Iterator[str]:
    """What happened between two moments, in sentences."""
    known = {job.id: job for job in before.jobs}
    for job in after.jobs:
        yield from _job_changes(known.get(job.id), job)


def _job_changes(before: Job | None, job: Job) -> Iterator[str]:
    seen = {} if before is None else {attempt.number: attempt for attempt in before.attempts}
    for attempt in job.attempts:
        if attempt.number not in seen:
            yield f"{job.name}: {_taken(job, attempt)}"
        if attempt.lapsed and attempt.ended_at is None and not _lapsed(seen, attempt.number):
            yield f"{job.name}: {attempt.node_name} has been silent for a whole lease; back in the queue"
    if job.state not in {JobState.QUEUED, JobState.RUNNING} and (before is None or before.state is not job.state):
        yield f"{job.name}: {job.state}" + (f", {job.error}" if job.error else f" at step {job.step}")


def _lapsed(seen: Mapping[int, Attempt], number: int) -> bool:
    return number in seen and seen[number].lapsed


def _taken(job: Job, attempt: Attempt) -> str:
    if attempt.number == 1:
        return f"taken by {attempt.node_name}"
    before = next((each for each in job.attempts if each.number == attempt.number - 1), None)
    again = before is not None and before.node_name == attempt.node_name
    place = f"a new {attempt.node_name}" if again else attempt.node_name
    if not attempt.start_step:
        return f"begins again on {place}"
    return f"resumes on {place} from step {attempt.start_step} of {job.total_steps}"
