"""Read jobs for users: one job, a page of jobs, and why a job waits."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from giornata.control.access.machine_names import MachineNames, machine_names
from giornata.control.access.permissions import require_scope
from giornata.control.attempts.claiming.outlooks import Outlooks
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.fleet_views import bidders
from giornata.control.jobs.reading.imported_past import with_imported
from giornata.control.jobs.reading.job_reply import job_reply, next_try_at, waiting_because
from giornata.control.pages import check_limit, decode_cursor, encode_cursor, next_cursor
from giornata.control.pictures.annotator_nodes import missing_annotators
from giornata.control.pictures.model_coverage import missing_models
from giornata.control.ports.node_queries.machine_store import BannedJob
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.money_store import PictureTime
from giornata.control.ports.user_queries.records import JobRecord, QueueView
from giornata.control.ports.user_queries.user_store import Before
from giornata.control.quotas.ceilings import with_ceiling
from giornata.control.text_limits import is_id, label_faults, text_faults
from giornata.control.timestamps import instant
from giornata.domain.errors import Fault, InvalidInput, NotFound
from giornata.domain.fleets.capacity import Use
from giornata.domain.fleets.fleet_share import Bidder
from giornata.domain.fleets.starts import is_late
from giornata.domain.generation.picture import FAILED_AGAIN_MS, ORDER_KINDS
from giornata.domain.jobs.backoff import Outlook
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.generation.awaited_annotations import node_kind
from giornata.protocol.jobs import Job, JobPage, JobPart, PictureCounts, PicturePace
from giornata.protocol.project.admin import Scope


def get_job(ctx: Context, caller: Caller, job_id: str) -> Job:
    """Return the whole job with its attempts. Raises Forbidden, NotFound."""
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        return read_job(ctx, tx, caller, job_id)


def list_jobs(
    ctx: Context,
    caller: Caller,
    *,
    states: Sequence[JobState],
    labels: Mapping[str, str],
    kind: str | None,
    match: str | None = None,
    search: str | None = None,
    include: Collection[JobPart] = (),
    cursor: str | None,
    limit: int,
    costs: bool = True,
) -> JobPage:
    """Jobs of the project that are in one of `states` (any when empty) and have all the labels, newest first. With
    `match`, only those whose name this is, or whose id begins so, with or without the prefix. With `search`, only
    those with this text in their name; a page looks at some jobs, as the policy says, and may be empty though `next`
    goes on.

    Without `costs`, money, time and interruptions are 0 in the reply, and nothing is asked of the store for them.
    Attempts, and why a job waits, are said by `get_job` only; the spec and the result also here if `include` names
    them. A page may end before `limit`, for its bytes. Raises Forbidden, InvalidInput.
    """
    require_scope(caller, Scope.JOBS_READ)
    check_limit(limit)
    faults = [*label_faults(labels), *text_faults("match", match), *text_faults("search", search)]
    if kind is not None and not is_id(kind):
        faults.append(Fault(where="kind", message=f"{kind[:40]!r} is not a kind of job"))
    if faults:
        raise InvalidInput(faults)
    place = decode_cursor(cursor)
    with ctx.store.read() as tx:
        until = None if search is None else _searched_until(ctx, tx, caller, kind, place)
        rows = tx.job_reads.page(
            project_id=caller.project_id,
            states=states,
            labels=labels,
            kind=kind,
            match=match,
            search=search,
            looked_until=until,
            before=place,
            include=include,
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
        ids = [job.id for job in rows.items]
        found = tx.job_reads.attempts(ids, project_id=caller.project_id, messages=False) if costs else []
        spent = _spent_beside(tx, rows.items) if costs else {}
        attempts, elsewhere = with_imported(tx, rows.items if costs else (), found)
    following = next_cursor(rows, lambda job: (job.created_at_ms, job.id))
    if following is None and until is not None:
        following = encode_cursor(*until)
    items = (
        job_reply(
            job,
            attempts.get(job.id, ()),
            names=None,
            spent_beside_micro_usd=spent.get(job.id, 0),
            imported_cost_micro_usd=elsewhere.get(job.id),
        )
        for job in rows.items
    )
    return JobPage(items=tuple(items), next=following)


def _searched_until(ctx: Context, tx: Transaction, caller: Caller, kind: str | None, place: Before) -> Before:
    most = ctx.policy.max_searched_jobs
    return tx.job_reads.last_looked_at(project_id=caller.project_id, kind=kind, before=place, most=most)


def read_job(ctx: Context, tx: Transaction, caller: Caller, job_id: str) -> Job:
    """Return the job as this transaction sees it. Raises NotFound."""
    job = own_job(tx, caller, job_id)
    names = machine_names(tx, ctx, caller)
    because, found = why_it_waits(ctx, tx, job, names=names)
    # The attempts of an order are leases of its pictures, which a reply counts instead.
    made = () if job.kind in ORDER_KINDS else tx.job_reads.attempts([job_id], project_id=caller.project_id)
    attempts, elsewhere = with_imported(tx, [job], made)
    reply = job_reply(
        job,
        attempts.get(job_id, ()),
        names=names,
        spent_beside_micro_usd=_spent_beside(tx, [job]).get(job_id, 0),
        imported_cost_micro_usd=elsewhere.get(job_id),
        waiting_because=because,
        next_try_at=next_try_at(found),
    )
    if job.kind not in ORDER_KINDS:
        return reply
    order = _with_pictures(tx, reply)
    if job.state != JobState.RUNNING or order.pictures is None or order.pictures.leased or not order.pictures.queued:
        return order
    because, again_at = _why_the_rest_waits(ctx, tx, job, names=names)
    return order.model_copy(update={"waiting_because": because, "next_try_at": again_at})


def why_it_waits(
    ctx: Context, tx: Transaction, job: JobRecord, *, names: MachineNames
) -> tuple[str | None, Outlook | None]:
    """Return why no node has a job, and what becomes of one that no connected node may take.

    Both are None for a job that is not queued.
    """
    if job.state != JobState.QUEUED:
        return None, None
    view = with_ceiling(tx, ctx, job, _queue_view(ctx, tx, job))
    because, found = _why_not_yet(ctx, tx, job, view, names=names)
    if job.kind in ORDER_KINDS and view.eligible_nodes:
        because = missing_annotators(tx, ctx, job) or missing_models(tx, ctx, job.project_id, job.spec) or because
    return because, found


def _why_the_rest_waits(
    ctx: Context, tx: Transaction, order: JobRecord, *, names: MachineNames
) -> tuple[str | None, datetime | None]:
    """Return why no node has a picture of a running order that has queued ones, and when machines that failed are
    asked again. Both are None where the pictures wait for their turn only.
    """
    queued = replace(order, state=JobState.QUEUED)
    view = _queue_view(ctx, tx, queued)
    if not view.eligible_nodes:
        because, found = _why_not_yet(ctx, tx, queued, view, names=names)
        return because, next_try_at(found)
    missing = missing_annotators(tx, ctx, order) or missing_models(tx, ctx, order.project_id, order.spec)
    if missing:
        return missing, None
    kept = tx.picture_orders.kept_from(order.id, since_ms=ctx.clock.now_ms() - FAILED_AGAIN_MS)
    if kept is None:
        return None, None
    again_at = instant(kept.first_at_ms + FAILED_AGAIN_MS)
    machines = "1 machine" if kept.machines == 1 else f"{kept.machines} machines"
    said = f"{kept.pictures} of its pictures could not be drawn on {machines}"
    said += f" (such as: {kept.error})" if kept.error else ""
    return f"{said}; they are tried there again at {again_at:%H:%M:%S} UTC, or elsewhere before", again_at


def _queue_view(ctx: Context, tx: Transaction, job: JobRecord) -> QueueView:
    seen_since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    return tx.job_reads.queue_view(job, seen_since_ms=seen_since_ms)


def _why_not_yet(
    ctx: Context, tx: Transaction, job: JobRecord, view: QueueView, *, names: MachineNames
) -> tuple[str | None, Outlook | None]:
    found = _outlook(ctx, tx, job) if view.live_nodes and not view.eligible_nodes else None
    missing = "" if view.live_nodes else why_no_node_comes(tx, ctx, node_kind(job.kind, job.spec))
    return waiting_because(job, view, found, names=names, missing=missing), found


def _spent_beside(tx: Transaction, jobs: Sequence[JobRecord]) -> Mapping[str, int]:
    """Return the cost of each order and each sweep among the jobs, in micro-dollars: an order's part of every lease,
    and what the jobs of a sweep cost."""
    orders = [job.id for job in jobs if job.kind in ORDER_KINDS]
    sweeps = [job.id for job in jobs if job.kind == SWEEP_KIND]
    of_orders = tx.spending.of_jobs(orders) if orders else {}
    return {**of_orders, **tx.sweeps.spent(sweeps)} if sweeps else of_orders


def _with_pictures(tx: Transaction, order: Job) -> Job:
    """Return the reply with the order's pictures counted by state; its step is the number of those that succeeded."""
    counts = PictureCounts.model_validate(dict(tx.picture_orders.counts(order.id)))
    paces = _paces(tx.spending.picture_times(order.id)) if order.state in TERMINAL else ()
    error = tx.picture_orders.first_error(order.id) if counts.failed else None
    found = {"pictures": counts, "step": counts.succeeded, "picture_error": error, "picture_paces": paces}
    return order.model_copy(update=found)


def _paces(times: Iterable[PictureTime]) -> tuple[PicturePace, ...]:
    """Return the times of an order's leases in seconds, to three digits: as short for many leases as for some."""
    pictures: Counter[float] = Counter()
    for each in times:
        pictures[float(f"{each.node_ms / 1000:.3g}")] += each.pictures
    return tuple(PicturePace(node_s=node_s, pictures=count) for node_s, count in sorted(pictures.items()))


def _outlook(ctx: Context, tx: Transaction, job: JobRecord) -> Outlook | None:
    """Return the job's outlook; None for a job that is for one machine only: it fails when it fails there."""
    if job.only_machine_id is not None:
        return None
    row = tx.jobs.get(job.id)
    waiting = BannedJob(
        id=job.id,
        project_id=job.project_id,
        kind=job.kind,
        min_vram_bytes=job.min_vram_bytes,
        fruitless=0 if row is None else row.fruitless,
        bans=tuple(tx.bans.of_job(job.id)),
    )
    return Outlooks(tx, ctx, at_ms=ctx.clock.now_ms()).of(waiting)


def own_job(tx: Transaction, caller: Caller, job_id: str) -> JobRecord:
    """Return the row of a job of the caller's project. Raises NotFound, for another project's job too."""
    job = tx.job_reads.get(job_id, project_id=caller.project_id) if is_id(job_id) else None
    if job is None:
        raise NotFound(f"there is no job {job_id}")
    return job


def require_job(tx: Transaction, caller: Caller, job_id: str) -> None:
    """Raises NotFound unless the caller's project has this job. Reads nothing of the job."""
    if not is_id(job_id) or not tx.job_reads.exists(job_id, project_id=caller.project_id):
        raise NotFound(f"there is no job {job_id}")


def why_no_node_comes(tx: Transaction, ctx: Context, kind: str) -> str:
    """Say in words for the job's owner why no node comes, without names of fleets or machines; empty: nodes may be
    on their way.
    """
    now_ms = ctx.clock.now_ms()
    serving = [each for each in bidders(tx, ctx, at_ms=now_ms) if kind in each.view.offer.kinds]
    for each in serving:
        if stopped := each.stopped(now_ms):
            return f"{stopped}, and one more is tried each hour; an operator sees why with: giornata fleets"
    lost = [_lost(each, now_ms) for each in serving]
    failing, late = sum(each[0] for each in lost), sum(each[1] for each in lost)
    found = []
    if failing:
        found.append(f"{_nodes(failing)} ended again and again before asking for work")
    if late:
        found.append(f"{_nodes(late)} did not come in time")
    return f"{' and '.join(found)}; the job goes to the next node that comes" if found else ""


def _lost(bidder: Bidder, now_ms: int) -> tuple[int, int]:
    """Return how many of its nodes fail to start, and how many others are late."""
    waited_for = [each for each in bidder.view.instances if each.stays and each.use is Use.NONE]
    failing = [each for each in waited_for if each.fails_to_start]
    late = [each for each in waited_for if not each.fails_to_start and is_late(each, bidder.policy, now_ms)]
    return len(failing), len(late)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
