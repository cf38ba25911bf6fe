"""Routes of fleets."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from giornata.api.callers import Ctx, ReadLists, User
from giornata.api.openapi import USER_CHANGE, refusals
from giornata.control import operator_actions, read_fleets, roll
from giornata.protocol.fleets import Fleet, FleetPage, ScaleFleet
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["administration"])

FleetName = Annotated[str, Path(max_length=128)]


@router.get("/fleets", responses=refusals(401, 403), response_model=FleetPage)
async def list_fleets(ctx: Ctx, lists: ReadLists, caller: User) -> Response:
    """All fleets, with what was decided about them and why."""
    return await lists.page(read_fleets.list_fleets, ctx, caller)


@router.get("/fleets/{name}", responses=refusals(401, 403, 404))
def get_fleet(ctx: Ctx, caller: User, name: FleetName) -> Fleet:
    """One fleet."""
    return read_fleets.read_fleet(ctx, caller, name)


@router.post("/fleets/{name}/roll", responses=USER_CHANGE)
def roll_fleet(ctx: Ctx, caller: User, name: FleetName) -> Fleet:
    """Bring its instances to what the settings say, without losing work. Root admin only."""
    return roll.ask_to_roll(ctx, caller, name)


@router.post("/fleets/{name}/pause", responses=USER_CHANGE)
def pause_fleet(ctx: Ctx, caller: User, name: FleetName) -> Fleet:
    """Have no nodes of it until it is resumed; those at work give their jobs back first. Root admin only."""
    return operator_actions.pause_fleet(ctx, caller, name)


@router.post("/fleets/{name}/resume", responses=USER_CHANGE)
def resume_fleet(ctx: Ctx, caller: User, name: FleetName) -> Fleet:
    """Let a paused fleet follow the queue again. Root admin only."""
    return operator_actions.resume_fleet(ctx, caller, name)


@router.post("/fleets/{name}/scale", responses=USER_CHANGE)
def scale_fleet(ctx: Ctx, caller: User, name: FleetName, body: Json[ScaleFleet]) -> Fleet:
    """Set limits that win over the settings, or go back to these. Root admin only."""
    return operator_actions.scale_by_hand(ctx, caller, name, body)
