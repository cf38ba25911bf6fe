"""Carry replay audits on: find a machine for each run, read its result, and decide.

The same result as claimed confirms the stretch. Another one contests it, and a third machine decides who is alone. A
machine whose conditions turn out to be others says nothing, and another one is asked. One server at a time does this.

A run repeats the conditions that the audited checkpoint tells, as far as a machine can choose them.
"""

from collections.abc import Sequence
from dataclasses import replace

from giornata.control.attempts.auditing.audit_results import (
    EXCUSED,
    claimed_conditions,
    claimed_result,
    run_conditions,
    run_result,
)
from giornata.control.attempts.auditing.draw_audit import NOBODY, add_run, audit_seed, run_record
from giornata.control.attempts.auditing.refute_machine import refute_machine
from giornata.control.attempts.auditing.stretch_conditions import StretchConditions
from giornata.control.context import Context
from giornata.control.ports.node_queries.audit_store import AuditRun, ReplayAuditRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.jobs.audits import AuditMachine, AuditParty, AuditResult, AuditState, agree, alone, draw_machine
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.domain.machines.health import MachineState
from giornata.protocol.events import EventType

AT_MOST = 500
SAME, DIFFERS, OTHER_CONDITIONS, FAILED = "same", "differs", "other_conditions", "failed"
LEFT_LATELY_MS = 10 * 60_000
"""For so long may a job that has left a node still be in its batch: a node hears of an end with a beat."""
CONDITIONS = "conditions"
"""The field of a run's spec; without it, nobody has looked yet at the checkpoint's header."""
NOBODY_CAME = "no machine with an equal fingerprint was free in time"


def settle_audits(ctx: Context) -> int:
    """Carry every open audit on; return how many changed. A loop calls it again and again."""
    with ctx.store.only_here("audits") as ours:
        if not ours:
            return 0
        with ctx.store.read() as tx:
            open_ids = tx.audits.open_ids(limit=AT_MOST)
        changed = sum(_settle(ctx, audit_id) for audit_id in open_ids)
    if changed:
        ctx.memory.forget_refutations()
    return changed


def _settle(ctx: Context, audit_id: str) -> bool:
    """Carry one audit on; return True when it changed. Each has a transaction of its own."""
    conditions = _conditions_of_claim(ctx, audit_id)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        audit = tx.audits.lock(audit_id)
        if audit is None or audit.decided_at_ms is not None:
            return False
        job = tx.submission.lock(audit.runs[-1].job_id, project_id=audit.project_id)
        if job is None:
            _decide(tx, audit, AuditState.NOT_AUDITED, message="its job is gone", at_ms=now_ms)
        elif job.state == JobState.QUEUED:
            return _place(tx, ctx, audit, _with_conditions(tx, audit, job, conditions), at_ms=now_ms)
        elif job.state == JobState.SUCCEEDED:
            _read(tx, ctx, audit, job, conditions, at_ms=now_ms)
        elif job.state in TERMINAL:
            _after_failure(tx, ctx, audit, job, at_ms=now_ms)
        else:
            return False
        return True


def _conditions_of_claim(ctx: Context, audit_id: str) -> StretchConditions | None:
    """Return the conditions of the audited checkpoint, read outside of any transaction, before the first run and when
    a run has ended.
    """
    with ctx.store.read() as tx:
        audit = tx.audits.get(audit_id)
        job = None if audit is None else tx.jobs.get(audit.runs[-1].job_id)
        ended = job is not None and job.state is JobState.SUCCEEDED
        begins = job is not None and job.state is JobState.QUEUED and CONDITIONS not in job.spec
        checkpoint = tx.audits.checkpoint(audit) if audit is not None and (ended or begins) else None
    return None if checkpoint is None else claimed_conditions(ctx, checkpoint)


# ---- a machine for the run


def _with_conditions(
    tx: Transaction, audit: ReplayAuditRow, job: JobRecord, conditions: StretchConditions | None
) -> JobRecord:
    """Return the run with the conditions that it repeats. Conditions that cannot be are not repeated."""
    if CONDITIONS in job.spec:
        return job
    sound = conditions is not None and not _is_false(tx, audit, job, conditions)
    repeated = conditions.to_repeat(audit.from_step) if conditions is not None and sound else []
    spec = {**job.spec, CONDITIONS: repeated}
    tx.jobs.update(job.id, spec=spec)
    return replace(job, spec=spec)


def _place(tx: Transaction, ctx: Context, audit: ReplayAuditRow, job: JobRecord, *, at_ms: int) -> bool:
    """Give the run to a machine that is idle, drawn by the server, or take it back from one that is busy now."""
    candidates = _candidates(tx, ctx, audit, at_ms=at_ms)
    contested = audit.state is AuditState.CONTESTED
    policy, seed = ctx.policy.audits, audit_seed(tx, ctx)
    drawn = draw_machine(seed, audit.id, candidates, _earlier(audit), contested=contested, policy=policy)
    pinned = next((each for each in candidates if each.machine_id == job.only_machine_id), None)
    chosen = pinned or drawn
    wanted = NOBODY if chosen is None else chosen.machine_id
    if wanted == job.only_machine_id or not tx.audits.pin(job.id, wanted):
        return False
    run = AuditRun(job_id=job.id)
    if chosen is not None:
        run = replace(run, machine_id=wanted, fleet=chosen.fleet)
    tx.audits.put(replace(audit, runs=(*audit.runs[:-1], run)))
    return True


def _candidates(tx: Transaction, ctx: Context, audit: ReplayAuditRow, *, at_ms: int) -> list[AuditMachine]:
    """Return idle machines in good health whose device and versions are those of the audited one."""
    since_ms = at_ms - round(ctx.policy.node_gone_after_s * 1000)
    nodes = tx.audits.idle_nodes(seen_since_ms=since_ms)
    alike = [node for node in nodes if (node.device, dict(node.versions)) == (audit.device, dict(audit.versions))]
    health = tx.machines.get_each([node.machine_id for node in alike], ["train"]) if alike else {}
    doubted = {machine_id for (machine_id, _), found in health.items() if found.state is not MachineState.OK}
    return [
        AuditMachine(machine_id=node.machine_id, fleet=node.fleet) for node in alike if node.machine_id not in doubted
    ]


def _earlier(audit: ReplayAuditRow) -> list[AuditMachine]:
    """Return the audited machine, and those of earlier runs."""
    ran = [AuditMachine(machine_id=run.machine_id, fleet=run.fleet) for run in audit.runs[:-1] if run.machine_id]
    return [AuditMachine(machine_id=audit.machine_id, fleet=audit.fleet), *ran]


# ---- its result


def _read(
    tx: Transaction,
    ctx: Context,
    audit: ReplayAuditRow,
    job: JobRecord,
    conditions: StretchConditions | None,
    *,
    at_ms: int,
) -> None:
    claimed = claimed_result(tx, audit, total_steps=_total_steps(job))
    result = run_result(tx, audit, job)
    if result is None:
        _after_failure(tx, ctx, audit, job, at_ms=at_ms)
        return
    if agree(claimed, result):
        _agreed(tx, ctx, _ran(audit, SAME, result), at_ms=at_ms)
        return
    ran = run_conditions(job)
    if conditions is None or conditions == ran or _is_false(tx, audit, job, conditions, ran):
        _differs(tx, ctx, audit, job, claimed, result, at_ms=at_ms)
    else:
        _run_again(tx, ctx, _ran(audit, OTHER_CONDITIONS, result), job, at_ms=at_ms)


def _is_false(
    tx: Transaction,
    audit: ReplayAuditRow,
    job: JobRecord,
    conditions: StretchConditions,
    ran: StretchConditions | None = None,
) -> bool:
    """Return True when the conditions of the claim cannot be: then they excuse no difference. A run that has ended
    tells which conditions the stretch began with.
    """
    others = tx.audits.others(audit.attempt_id, within_ms=LEFT_LATELY_MS, until_ms=audit.created_at_ms)
    if conditions.contradiction(audit, job.spec["training"], others=others):
        return True
    return ran is not None and conditions.before(audit.from_step) != ran.before(audit.from_step)


def _total_steps(job: JobRecord) -> int | None:
    found = job.spec["training"].get("max_train_steps")
    return found if isinstance(found, int) else None


def _ran(audit: ReplayAuditRow, outcome: str, result: AuditResult | None = None) -> ReplayAuditRow:
    """Return the audit with the outcome of its latest run."""
    run = replace(audit.runs[-1], outcome=outcome, sha256="" if result is None else result.sha256)
    return replace(audit, runs=(*audit.runs[:-1], run))


def _agreed(tx: Transaction, ctx: Context, audit: ReplayAuditRow, *, at_ms: int) -> None:
    """Confirm the claim. The machine that contested it gave the only other result."""
    liars = [run for run in audit.runs if run.outcome == DIFFERS]
    if liars:
        audit = replace(audit, guilty_machine_id=liars[0].machine_id)
    _decide(tx, audit, AuditState.CONFIRMED, message="", at_ms=at_ms)
    tx.audits.release_earlier(audit.job_id)
    for liar in liars:
        job = tx.jobs.get(liar.job_id)
        if job is not None and job.attempt_id is not None:
            refute_machine(tx, ctx, job.attempt_id, because=audit, at_ms=at_ms)


def _differs(  # noqa: PLR0917
    tx: Transaction,
    ctx: Context,
    audit: ReplayAuditRow,
    job: JobRecord,
    claimed: AuditResult,
    result: AuditResult,
    *,
    at_ms: int,
) -> None:
    """Ask a third machine, or decide when this is the third. The audited machine loses against two that agree."""
    first = _first_result(tx, audit)
    audit = _ran(audit, DIFFERS, result)
    if first is None:
        _run_again(tx, ctx, replace(audit, state=AuditState.CONTESTED), job, at_ms=at_ms)
        return
    if alone(claimed, first, result) is AuditParty.AUDITED:
        audit = replace(audit, guilty_machine_id=audit.machine_id)
        _decide(tx, audit, AuditState.REFUTED, message="two machines agree on another result", at_ms=at_ms)
        refute_machine(tx, ctx, audit.attempt_id, because=audit, at_ms=at_ms)
        return
    _decide(tx, audit, AuditState.UNDECIDED, message="three machines have three results", at_ms=at_ms)


def _first_result(tx: Transaction, audit: ReplayAuditRow) -> AuditResult | None:
    """Return the result that contested the claim first."""
    contested = next((run for run in audit.runs if run.outcome == DIFFERS), None)
    job = None if contested is None else tx.submission.lock(contested.job_id, project_id=audit.project_id)
    return None if job is None else run_result(tx, audit, job)


def _after_failure(tx: Transaction, ctx: Context, audit: ReplayAuditRow, job: JobRecord, *, at_ms: int) -> None:
    """Ask another machine after a run that came to nothing; give up after one that no machine took in time."""
    audit = _ran(audit, FAILED)
    if job.state in {JobState.EXPIRED, JobState.CANCELED}:
        _give_up(tx, audit, NOBODY_CAME if job.state == JobState.EXPIRED else "it was canceled", at_ms=at_ms)
    else:
        _run_again(tx, ctx, audit, job, at_ms=at_ms)


def _run_again(tx: Transaction, ctx: Context, audit: ReplayAuditRow, job: JobRecord, *, at_ms: int) -> None:
    """Order one more run, unless there were enough."""
    if len(audit.runs) >= ctx.policy.audits.max_runs:
        _give_up(tx, audit, EXCUSED, at_ms=at_ms)
        return
    new = run_record(ctx, audit, job.spec, min_vram_bytes=job.min_vram_bytes, at_ms=at_ms)
    add_run(tx, new, earlier=audit.runs)
    tx.audits.put(replace(audit, runs=(*audit.runs, AuditRun(job_id=new.id))))


def _give_up(tx: Transaction, audit: ReplayAuditRow, message: str, *, at_ms: int) -> None:
    contested = audit.state is AuditState.CONTESTED
    state = AuditState.UNDECIDED if contested else AuditState.NOT_AUDITED
    _decide(tx, audit, state, message=message, at_ms=at_ms)


def _decide(tx: Transaction, audit: ReplayAuditRow, state: AuditState, *, message: str, at_ms: int) -> None:
    """Write the verdict, and tell the training job's history. Bytes are kept only where two machines agree."""
    held = audit.sha256 if state is AuditState.CONFIRMED else None
    tx.audits.put(replace(audit, state=state, message=message, sha256=held, decided_at_ms=at_ms))
    data = {
        "name": "audited",
        "from_step": audit.from_step,
        "step": audit.to_step,
        "state": state,
        "machine_ids": _distinct([audit.machine_id, *(run.machine_id for run in audit.runs)]),
        "message": message,
    }
    tx.events.add(audit.job_id, audit.project_id, EventType.NOTICE, audit.attempt_number, data, at_ms)


def _distinct(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if name})
