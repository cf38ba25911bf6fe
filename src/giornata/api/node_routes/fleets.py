"""Routes of fleets, machines, single nodes and the server's loops, for the operator of the installation."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from giornata.api.replies.openapi import USER, USER_CHANGE, USER_ITEM, refusals
from giornata.api.requests.callers import Ctx, ReadLists, ReadLoops, User, Wake
from giornata.api.requests.lists import Cursor, Limit
from giornata.control.fleets import nodes, operator_actions, read_fleets, roll
from giornata.control.loops import read_loops
from giornata.domain.machines.health import MachineState
from giornata.protocol.node.fleets import Fleet, FleetPage, MachinePage, QuarantineMachine, ScaleFleet, ServerLoopPage
from giornata.protocol.project.admin import Node
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["administration"])
FleetName = Annotated[str, Path(max_length=128)]
# `desk-1@ann` is the machine desk-1 of the project ann.
MachineId = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9._:-]{1,128}(@[a-z0-9-]{1,40})?$")]
NodeId = Annotated[str, Path(max_length=64)]


@router.get("/fleets", responses=refusals(401, 403), response_model=FleetPage)
async def list_fleets(ctx: Ctx, lists: ReadLists, caller: User) -> Response:
    """Return all fleets, with their last scaling decisions and the reasons."""
    return await lists.page(read_fleets.list_fleets, ctx, caller)


@router.get("/fleets/{name}", responses=refusals(401, 403, 404))
def get_fleet(ctx: Ctx, caller: User, name: FleetName) -> Fleet:
    """Return the fleet of this name."""
    return read_fleets.read_fleet(ctx, caller, name)


@router.post("/fleets/{name}/roll", responses=USER_CHANGE)
def roll_fleet(ctx: Ctx, caller: User, name: FleetName) -> Fleet:
    """Replace the fleet's instances that have outdated settings, without losing work. Root admin only."""
    return roll.ask_to_roll(ctx, caller, name)


@router.post("/fleets/{name}/pause", responses=USER_CHANGE)
def pause_fleet(ctx: Ctx, caller: User, name: FleetName) -> Fleet:
    """Stop all nodes of the fleet until it is resumed. Busy nodes give their jobs back first. Root admin only."""
    return operator_actions.pause_fleet(ctx, caller, name)


@router.post("/fleets/{name}/resume", responses=USER_CHANGE)
def resume_fleet(ctx: Ctx, caller: User, name: FleetName) -> Fleet:
    """Let a paused fleet scale with the queue again. Root admin only."""
    return operator_actions.resume_fleet(ctx, caller, name)


@router.post("/fleets/{name}/scale", responses=USER_CHANGE)
def scale_fleet(ctx: Ctx, caller: User, name: FleetName, body: Json[ScaleFleet]) -> Fleet:
    """Set limits that override the settings, or remove such limits. Root admin only."""
    return operator_actions.scale_by_hand(ctx, caller, name, body)


@router.get("/machines", responses=USER, response_model=MachinePage)
async def list_machines(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    state: Annotated[MachineState | None, Query(description="Only machines in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Return the health of machines for each kind of job: state, reason, strikes, quota. Root admin only."""
    return await lists.page(operator_actions.list_machines, ctx, caller, state=state, cursor=cursor, limit=limit)


@router.post("/machines/{machine_id}/quarantine", responses=USER_ITEM)
def quarantine_machine(ctx: Ctx, caller: User, machine_id: MachineId, body: Json[QuarantineMachine]) -> MachinePage:
    """Give the machine no more jobs until it is released. It finishes its present jobs. Root admin only."""
    return operator_actions.quarantine_machine(ctx, caller, machine_id, reason=body.reason)


@router.post("/machines/{machine_id}/release", responses=USER_ITEM)
def release_machine(ctx: Ctx, caller: User, wakeup: Wake, machine_id: MachineId) -> MachinePage:
    """Forget the failures of a machine and lift its bans: it gets jobs again, also queued ones that it failed. Root
    admin only.
    """
    page = operator_actions.release_machine(ctx, caller, machine_id)
    wakeup.notify()
    return page


@router.post("/nodes/{node_id}/drain", responses=USER_CHANGE)
def drain_node(ctx: Ctx, caller: User, wakeup: Wake, node_id: NodeId) -> Node:
    """Give the node no more jobs: it gives its jobs back, after a checkpoint, and leaves. Root admin only."""
    node = nodes.drain_node(ctx, caller, node_id)
    wakeup.notify()
    return node


@router.post("/nodes/{node_id}/undrain", responses=USER_CHANGE)
def undrain_node(ctx: Ctx, caller: User, wakeup: Wake, node_id: NodeId) -> Node:
    """Let the node have jobs again, if it has not left yet. Root admin only."""
    node = nodes.undrain_node(ctx, caller, node_id)
    wakeup.notify()
    return node


@router.get("/loops", responses=refusals(401, 403))
def list_loops(caller: User, status: ReadLoops) -> ServerLoopPage:
    """Return what each loop of the server that answers did last, with its last error. Root admin only."""
    return read_loops(caller, status())
