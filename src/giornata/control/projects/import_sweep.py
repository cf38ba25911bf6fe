"""Take in a sweep that ended elsewhere: its jobs are imported before it, and belong to it from then on."""

from collections.abc import Iterable, Mapping
from typing import Any

from giornata.control.caller import Caller
from giornata.control.jobs.submission.spec_faults import ParsedSpec, parse_plain
from giornata.control.ports.store import Transaction
from giornata.domain.errors import Fault
from giornata.domain.jobs.job import IMPORTED_FROM, TERMINAL
from giornata.protocol.project.project_transfer import ImportJob
from giornata.protocol.sweeps import SweepSpec


def parse_sweep(tx: Transaction, caller: Caller, request: ImportJob) -> ParsedSpec:
    """Return the spec of the sweep, and its faults. Locks the jobs that it names: a job comes before its project."""
    parsed, faults = parse_plain(SweepSpec, request.spec)
    if not isinstance(parsed, SweepSpec):
        return None, faults
    for name in ("checkpoints", "artifacts"):
        if getattr(request, name):
            faults.append(Fault(where=name, message="a sweep has none", hint="its jobs have"))
    return parsed, [*faults, *_member_faults(tx, caller, parsed)]


def _member_faults(tx: Transaction, caller: Caller, spec: SweepSpec) -> Iterable[Fault]:
    where = {each.job: f"spec.jobs.{number}.job" for number, each in enumerate(spec.jobs)}
    if len(where) < len(spec.jobs):
        yield Fault(where="spec.jobs", message="names a job twice", hint="name each once")
    for job_id in sorted(where):  # everybody locks in one order
        job = tx.submission.lock(job_id, project_id=caller.project_id)
        if job is None or IMPORTED_FROM not in job.labels or job.state not in TERMINAL:
            message, hint = f"there is no imported job {job_id}", "import the jobs of a sweep before the sweep"
            yield Fault(where=where[job_id], message=message, hint=hint)
        elif job.parent_id is not None:
            message = f"{job_id} belongs to the sweep {job.parent_id}"
            yield Fault(where=where[job_id], message=message, hint="a job belongs to one sweep")


def members_of(spec: Mapping[str, Any]) -> list[str]:
    """Return the ids of the jobs that a parsed spec of a sweep names."""
    return [each["job"] for each in spec["jobs"]]
