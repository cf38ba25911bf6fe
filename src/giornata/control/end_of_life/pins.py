"""Pin what must stay: jobs, datasets and checkpoints."""

import re

from giornata.control.access.permissions import require_any, require_scope
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.user_queries.end_of_life_store import PinRecord
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import NotFound
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.end_of_life import PIN_PATTERN, Pin, PinList

TARGET = re.compile(PIN_PATTERN, re.ASCII)
MOST_SHOWN = 1000


def set_pin(ctx: Context, caller: Caller, target: str, *, pinned: bool) -> Pin:
    """Pin or unpin a job, a dataset, or a checkpoint, which is named JOB@STEP. May be repeated.

    Retention deletes nothing that is pinned, and neither does a request. A pinned checkpoint stays when later ones
    are committed. Raises Forbidden, NotFound.
    """
    require_any(caller, Scope.JOBS_WRITE, Scope.DATASETS)
    if TARGET.fullmatch(target) is None:
        raise NotFound(f"there is no job, dataset or checkpoint {target[:80]}")
    target_id, at, step = target.partition("@")
    pin = PinRecord(target_id=target_id, step=int(step) if at else None)
    with ctx.store.begin() as tx:
        changed = tx.pins.set(pin, project_id=caller.project_id, pinned=pinned)
        if changed is None:
            raise NotFound(f"there is no job, dataset or checkpoint {target}")
        verb = AuditVerb.PIN_SET if pinned else AuditVerb.PIN_REMOVE
        if changed:
            record_call(tx, caller, verb, target, at_ms=ctx.clock.now_ms())
    return Pin(target=target, pinned=pinned)


def list_pins(ctx: Context, caller: Caller, *, limit: int = MOST_SHOWN) -> PinList:
    """Return what is pinned in the caller's project, at most `limit`. Raises Forbidden."""
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        found = tx.pins.of_project(caller.project_id, limit=limit)
    return PinList(items=[Pin(target=_name(each), pinned=True) for each in found])


def _name(pin: PinRecord) -> str:
    return pin.target_id if pin.step is None else f"{pin.target_id}@{pin.step}"
