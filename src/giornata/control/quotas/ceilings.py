"""Ceilings of running jobs: which projects a claim passes over, and why their jobs wait.

Which projects have a ceiling is remembered. Where none has, a claim asks nothing and its statement is as ever.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from giornata.control.context import Foundations
from giornata.control.ports.node_queries.work_rows import JobRow, Taking
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord, QueueView
from giornata.domain.errors import Unavailable
from giornata.domain.generation.picture import ORDER_KINDS


def ceilings(tx: Transaction, ctx: Foundations, *, at_ms: int) -> Mapping[str, int]:
    """Return how many jobs may run at a time, of each project with such a limit, as of a few seconds ago."""
    known = ctx.memory.quotas.ceilings(at_ms=at_ms)
    if known is None:
        known = tx.quotas.ceilings()
        ctx.memory.quotas.remember_ceilings(known, at_ms=at_ms)
    return known


def running_rooms(tx: Transaction, ctx: Foundations, *, at_ms: int) -> Mapping[str, int]:
    """Return how many more jobs each project with a ceiling may begin; 0 for one that is at its ceiling."""
    limits = ceilings(tx, ctx, at_ms=at_ms)
    running = tx.quotas.running() if limits else {}
    return {project_id: max(0, limit - running.get(project_id, 0)) for project_id, limit in limits.items()}


def full_projects(rooms: Mapping[str, int]) -> tuple[str, ...]:
    """Return the projects that may begin no job, in order."""
    return tuple(sorted(project_id for project_id, room in rooms.items() if room == 0))


def take_within(
    tx: Transaction, ctx: Foundations, claims: Sequence[Taking], rooms: dict[str, int], *, at_ms: int
) -> list[JobRow | None]:
    """Take jobs for these claims, of no project more than there is room for; write down what room is left.

    Two servers may take jobs of a project at one moment, each of them the last one. So what was taken of projects
    with a ceiling is counted again while nobody else begins any; if it is too much, it is taken back, and jobs of
    other projects are taken instead. Raises Unavailable when that has no end.
    """
    if not rooms:
        return tx.jobs.take_each(claims, at_ms=at_ms)
    for _ in range(len(rooms) + 1):
        passed_over = full_projects(rooms)
        within = [replace(each, wanted=replace(each.wanted, passed_over=passed_over)) for each in claims]
        with tx.savepoint() as undo:
            taken = tx.jobs.take_each(within, at_ms=at_ms, rooms=rooms)
            begun = Counter(job.project_id for job in taken if job is not None and job.project_id in rooms)
            contended = _contended(tx, ctx, begun, at_ms=at_ms)
            if contended:
                undo()
        if not contended:
            rooms.update({each: max(0, rooms[each] - number) for each, number in begun.items()})
            return taken
        rooms.update(dict.fromkeys(contended, 0))
    raise Unavailable("jobs of too many projects were taken by other servers at this moment; claim again")


def _contended(tx: Transaction, ctx: Foundations, project_ids: Collection[str], *, at_ms: int) -> set[str]:
    """Return those of these projects that run too many jobs now, or whose number another server holds just now. The
    numbers of the others are held until the transaction ends.
    """
    if not project_ids:
        return set()
    limits = ceilings(tx, ctx, at_ms=at_ms)
    held = set(tx.quotas.hold_running(project_ids))
    running = tx.quotas.running(held) if held else {}
    return {each for each in project_ids if each not in held or running.get(each, 0) > limits.get(each, 0)}


def with_ceiling(tx: Transaction, ctx: Foundations, job: JobRecord, view: QueueView) -> QueueView:
    """Return the view of a queued job with what its project runs, if that bounds when the job begins."""
    most = ceilings(tx, ctx, at_ms=ctx.clock.now_ms()).get(job.project_id)
    if most is None or job.kind in ORDER_KINDS or job.only_machine_id is not None:
        return view
    return replace(view, running=tx.quotas.running([job.project_id]).get(job.project_id, 0), max_running=most)
