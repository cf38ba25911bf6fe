"""Routes of machines, for whoever operates the installation."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from giornata.api.callers import Ctx, ReadLists, User, Wake
from giornata.api.openapi import USER, USER_ITEM
from giornata.api.paging import Cursor, Limit
from giornata.control import machine_hand
from giornata.domain.health import MachineState
from giornata.protocol.fleets import MachinePage, QuarantineMachine
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1/machines", tags=["administration"])

# `desk-1@ann` is the machine desk-1 of the project ann.
MachineId = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9._:-]{1,128}(@[a-z0-9-]{1,40})?$")]


@router.get("", responses=USER, response_model=MachinePage)
async def list_machines(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    state: Annotated[MachineState | None, Query(description="Only those in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """How machines fare with jobs of each kind: state, reason, strikes, quota. Root admin only."""
    return await lists.page(machine_hand.list_machines, ctx, caller, state=state, cursor=cursor, limit=limit)


@router.post("/{machine_id}/quarantine", responses=USER_ITEM)
def quarantine_machine(ctx: Ctx, caller: User, machine_id: MachineId, body: Json[QuarantineMachine]) -> MachinePage:
    """No more work for it until it is released. What it is at goes on to its end. Root admin only."""
    return machine_hand.quarantine_machine(ctx, caller, machine_id, reason=body.reason)


@router.post("/{machine_id}/release", responses=USER_ITEM)
def release_machine(ctx: Ctx, caller: User, wakeup: Wake, machine_id: MachineId) -> MachinePage:
    """Nothing is held against it any more: it gets work again, also queued jobs that it failed. Root admin only."""
    page = machine_hand.release_machine(ctx, caller, machine_id)
    wakeup.notify()
    return page
