"""The faults of a submission that are limits of its project."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from giornata.control.models.allowed_models import not_allowed
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.billing.quotas import QuotaRequest, QuotaStanding, over_quota, priority_fault
from giornata.domain.errors import QuotaFault
from giornata.domain.generation.picture import ORDER_KINDS


def quota_request(job: JobRecord) -> QuotaRequest:
    """Return what a job takes of its project's quotas when it is queued."""
    return request_for(job.kind, job.total_steps)


def request_for(kind: str, steps: int | None) -> QuotaRequest:
    """Return what a job of so many steps takes. A step of an order is a picture."""
    return QuotaRequest(jobs=1, orders=1, pictures=steps or 0) if kind in ORDER_KINDS else QuotaRequest(jobs=1)


def quota_faults(
    tx: Transaction,
    project_id: str,
    *,
    kind: str,
    priority: int,
    spec: Mapping[str, Any] | None,
    asked: QuotaRequest,
    standing: QuotaStanding,
    faulty: Collection[str] = (),
) -> Iterator[QuotaFault]:
    """Yield a fault for each limit of the project that the job passes. `spec` is whole, or None where it cannot be
    read. A model with a fault of its own, at one of the places `faulty`, is not judged.
    """
    yield from over_quota(standing, asked)
    yield from priority_fault(standing.quotas, priority)
    if spec is not None:
        models = not_allowed(tx, project_id, kind, spec, standing.quotas)
        yield from (fault for fault in models if fault.where not in faulty)


def retry_faults(tx: Transaction, job: JobRecord, standing: QuotaStanding) -> tuple[QuotaFault, ...]:
    """Return the faults of a job that is submitted once more."""
    found = quota_faults(
        tx,
        job.project_id,
        kind=job.kind,
        priority=job.priority,
        spec=job.spec,
        asked=quota_request(job),
        standing=standing,
    )
    return tuple(found)
