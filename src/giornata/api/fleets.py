"""Routes of fleets."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from giornata.api.callers import Ctx, ReadLists, User
from giornata.api.openapi import refusals
from giornata.control import read_fleets as reading_fleets
from giornata.control import roll
from giornata.protocol.fleets import Fleet, FleetPage

router = APIRouter(prefix="/v1", tags=["administration"])


@router.get("/fleets", responses=refusals(401, 403), response_model=FleetPage)
async def list_fleets(ctx: Ctx, lists: ReadLists, caller: User) -> Response:
    """All fleets, with what was decided about them and why."""
    return await lists.page(reading_fleets.list_fleets, ctx, caller)


@router.get("/fleets/{name}", responses=refusals(401, 403, 404))
def get_fleet(ctx: Ctx, caller: User, name: Annotated[str, Path(max_length=128)]) -> Fleet:
    """One fleet."""
    return reading_fleets.read_fleet(ctx, caller, name)


@router.post("/fleets/{name}/roll", responses=refusals(401, 403, 404, 409))
def roll_fleet(ctx: Ctx, caller: User, name: Annotated[str, Path(max_length=128)]) -> Fleet:
    """Bring its instances to what the settings say, without losing work. Root admin only."""
    return roll.ask_to_roll(ctx, caller, name)
