"""Build the reply that shows a job to its owner."""

from collections.abc import Sequence
from datetime import datetime

from giornata.control.access.machine_names import MachineNames
from giornata.control.ports.user_queries.records import AttemptRecord, JobRecord, QueueView
from giornata.control.timestamps import instant
from giornata.domain.billing.accounting import Seconds, account, run_of, total
from giornata.domain.billing.budget import Payer
from giornata.domain.billing.money import MICRO_USD, cost_per_step_micro_usd, format_usd
from giornata.domain.jobs.backoff import Obstacle, Outlook
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import BLAME, INTERRUPTION, Reason
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.generation.awaited_annotations import node_kind
from giornata.protocol.jobs import Attempt, FaultReply, Job, JobUrls


def job_reply(
    job: JobRecord,
    attempts: Sequence[AttemptRecord],
    *,
    names: MachineNames | None,
    spent_beside_micro_usd: int = 0,
    imported_cost_micro_usd: int | None = None,
    waiting_because: str | None = None,
    next_try_at: datetime | None = None,
) -> Job:
    """Return the job with its money and time, summed over all attempts; they are listed with these names of
    machines.

    An order has no attempts here: `spent_beside_micro_usd` is its part of the leases with pictures of it. Of a sweep
    it is what its jobs cost. With an `imported_cost_micro_usd` the attempts were made and billed elsewhere.
    """
    billed_here = attempts if imported_cost_micro_usd is None else ()
    spent = spent_beside_micro_usd + sum(attempt.amount_micro_usd for attempt in billed_here)
    seconds = _seconds(attempts)
    per_step = cost_per_step_micro_usd(total_micro_usd=spent, steps=_steps_made(billed_here))
    per_useful_step = cost_per_step_micro_usd(total_micro_usd=spent, steps=_safe_steps(job, billed_here))
    return Job(
        id=job.id,
        project_id=job.project_id,
        kind=job.kind,
        name=job.name,
        state=JobState(job.state),
        spec=job.spec,
        priority=job.priority,
        labels=job.labels,
        created_at=instant(job.created_at_ms),
        created_by=job.created_by,
        started_at=instant(job.started_at_ms),
        ended_at=instant(job.ended_at_ms),
        deadline_at=instant(job.deadline_at_ms),
        min_vram_bytes=job.min_vram_bytes,
        recovering=job.state == JobState.QUEUED and job.interrupted,
        waiting_because=waiting_because or _paused_because(job, spent),
        next_try_at=next_try_at,
        phase=job.phase,
        step=max(job.step, job.committed_step),  # rows of before may lag behind their checkpoint
        total_steps=job.total_steps,
        committed_step=job.committed_step,
        interruptions=sum(_interrupted(attempt) for attempt in attempts),
        useful_s=seconds.useful_ms / 1000,
        lost_s=seconds.lost_ms / 1000,
        cost_micro_usd=spent,
        cost_usd=spent / MICRO_USD,
        imported_cost_micro_usd=imported_cost_micro_usd,
        cost_per_step_usd=None if per_step is None else per_step / MICRO_USD,
        cost_per_useful_step_usd=None if per_useful_step is None else per_useful_step / MICRO_USD,
        budget_micro_usd=job.budget_micro_usd,
        error=job.error,
        faults=tuple(FaultReply.model_validate(fault) for fault in job.faults),
        result=job.result,
        retry_of=job.retry_of,
        suspect=job.suspect,
        parent_id=job.parent_id,
        attempts=() if names is None else tuple(_attempt_reply(each, names) for each in attempts),
        urls=_urls(job.id),
    )


def next_try_at(found: Outlook | None) -> datetime | None:
    """Return when a job that no connected node may take is tried again; None if not known, or if it will not be."""
    return None if found is None or found.obstacle is Obstacle.TOO_SMALL else instant(found.at_ms)


def waiting_because(
    job: JobRecord,
    view: QueueView,
    found: Outlook | None = None,
    *,
    names: MachineNames | None,
    missing: str = "",
) -> str | None:
    """Return why no node has a queued job, as far as the server knows; None for any other job.

    `found`: what becomes of a job that no connected node may take. Only a job for one machine needs `names`.
    `missing`: why no node comes, where none is connected.
    """
    if job.state != JobState.QUEUED:
        return None
    if view.max_running is not None and view.running >= view.max_running:
        return (
            f"the project runs {view.running} of {view.max_running} jobs; the next one begins when one of them ends"
        )
    if view.live_nodes == 0:
        only = ""
        if job.only_machine_id is not None and names is not None:
            only = f" on machine {names.machine(job.only_machine_id)}, which alone it is for,"
        why = f"no node for jobs of kind {node_kind(job.kind, job.spec)}{only} is connected"
        return f"{why}: {missing}" if missing else why
    if view.large_nodes == 0:
        needs, most = job.min_vram_bytes / 1e9, (view.largest_bytes or 0) / 1e9
        why = f"no connected node has enough GPU memory: it needs {needs:.1f} GB, and the largest has {most:.1f} GB"
        fails = found is not None and found.obstacle is Obstacle.TOO_SMALL
        return f"{why}; it fails {_at(found)} unless a larger one comes before" if fails else why
    if view.eligible_nodes == 0:
        large = "connected node" if view.large_nodes == view.live_nodes else "connected node that is large enough"
        return f"every {large} ({view.large_nodes}) {_obstacle(job, found)}"
    return f"waiting for its turn, position {view.ahead + 1} in the queue"


def _obstacle(job: JobRecord, found: Outlook | None) -> str:
    """Say what keeps the job from the nodes, when that ends, and what ends it sooner."""
    if found is not None and found.obstacle is Obstacle.QUARANTINED:
        ends = f"; the first gets jobs again {_at(found)}" if found.at_ms is not None else ""
        sooner = "an operator ends a quarantine: giornata machines release MACHINE"
        return f"is quarantined for jobs of kind {job.kind}{ends}; {sooner}"
    failed = "has failed this job before"
    if found is None:
        return f"{failed} and is banned from it"
    if found.quarantined:
        failed += f" or is quarantined ({found.quarantined})"
    another = " unless another machine comes before" if found.may_come else ""
    return f"{failed}; it goes back to one of them {_at(found)}{another}; now: giornata retry {job.id}"


def _at(found: Outlook | None) -> str:
    at = None if found is None else instant(found.at_ms)
    return "" if at is None else f"at {at:%Y-%m-%d %H:%M:%S} UTC"


def _paused_because(job: JobRecord, spent: int) -> str | None:
    if job.state != JobState.PAUSED:
        return None
    if job.kind == SWEEP_KIND:
        return "every job of it that has not ended waits until a budget is raised"
    if job.paused_by == Payer.SWEEP:
        return (
            "the sweep's budget has no room for it; it goes on by itself when that is raised, or when other jobs of "
            f"the sweep cost less than they set aside: giornata budget {job.parent_id} USD"
        )
    if job.paused_by == Payer.MONTH:
        return (
            "the project's budget for this month is used up; the job goes on by itself when the next month begins "
            "(at midnight UTC), or when an administrator raises the budget"
        )
    if job.paused_by == Payer.PROJECT or job.budget_micro_usd is None:
        return "the project's budget is used up; the job goes on when an administrator raises it"
    limit, paid = format_usd(job.budget_micro_usd), format_usd(spent)
    return f"its budget of {limit} is used up ({paid} spent); it goes on when that is raised"


def _seconds(attempts: Sequence[AttemptRecord]) -> Seconds:
    return total(account(run_of(attempt)) for attempt in attempts)


def _steps_made(attempts: Sequence[AttemptRecord]) -> int:
    """Return the number of steps made: a step that was lost, and made again, counts twice."""
    return sum(max(0, attempt.last_step - attempt.start_step) for attempt in attempts)


def _safe_steps(job: JobRecord, attempts: Sequence[AttemptRecord]) -> int:
    """Return the steps that the money of these attempts bought: a retry did not pay for those that it inherited."""
    reached = job.step if job.state == JobState.SUCCEEDED else job.committed_step
    return reached - attempts[0].start_step if attempts else 0


def _interrupted(attempt: AttemptRecord) -> bool:
    return attempt.lapsed if attempt.reason is None else INTERRUPTION[Reason(attempt.reason)]


def _attempt_reply(attempt: AttemptRecord, names: MachineNames) -> Attempt:
    shown = names.node(node_id=attempt.node_id, machine_id=attempt.machine_id, name=attempt.node_name)
    reason = None if attempt.reason is None else Reason(attempt.reason)
    return Attempt(
        id=attempt.id,
        number=attempt.number,
        node_id=shown.node_id,
        machine_id=shown.machine_id,
        node_name=shown.name,
        started_at=instant(attempt.started_at_ms),
        first_step_at=instant(attempt.first_step_at_ms),
        ended_at=instant(attempt.ended_at_ms),
        reason=reason,
        blame=None if reason is None else BLAME[reason],
        message=attempt.message,
        lease_expires_at=instant(attempt.lease_expires_at_ms),
        lapsed=attempt.lapsed,
        start_step=attempt.start_step,
        last_step=attempt.last_step,
        committed_step=attempt.committed_step,
        phase=attempt.phase,
        billed_s=attempt.billed_ms / 1000,
        cost_micro_usd=attempt.amount_micro_usd,
    )


def _urls(job_id: str) -> JobUrls:
    own = f"/v1/jobs/{job_id}"
    rest = {name: f"{own}/{name}" for name in JobUrls.model_fields if name != "self"}
    return JobUrls.model_validate({"self": own} | rest)
