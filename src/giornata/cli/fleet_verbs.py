"""What `giornata fleets` changes: pause, resume, scale, roll."""

from typing import Annotated

import typer

from giornata.cli.budget import micro_usd
from giornata.cli.connection import connect
from giornata.cli.hints import giornata
from giornata.cli.options import JsonFlag, misplaced, settings_of
from giornata.cli.output import reporting
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.money import MICRO_USD
from giornata.protocol.fleets import MOST_NODES, Fleet, ScaleFleet

FleetName = Annotated[str, typer.Argument(metavar="NAME", help="As `giornata fleets` shows it.", show_default=False)]


def pause(context: typer.Context, name: FleetName, as_json: JsonFlag = False) -> None:
    """Have no nodes of a fleet until it is resumed.

    Nodes at work write a checkpoint and give their jobs back first. The pause survives a restart of the server.
    """
    with reporting(as_json, see=("fleets",)) as out, connect(settings_of(context)) as client:
        fleet = client.pause_fleet(name)
        at_work = sum(each.jobs for each in fleet.instances)
        back = f"; {at_work} jobs go back to the queue after a checkpoint" if at_work else ""
        out.say(f"{name} is paused: its nodes leave, and none is asked for{back}")
        out.hint(f"Resume it with: {giornata('fleets', 'resume', name)}")
        out.result(fleet)


def resume(context: typer.Context, name: FleetName, as_json: JsonFlag = False) -> None:
    """Let a paused fleet follow the queue again."""
    with reporting(as_json, see=("fleets",)) as out, connect(settings_of(context)) as client:
        fleet = client.resume_fleet(name)
        out.say(f"{name} follows the queue again: min_nodes = {fleet.min_nodes}, max_nodes = {fleet.most_nodes}")
        out.result(fleet)


def scale(
    context: typer.Context,
    name: FleetName,
    fewest: Annotated[
        int | None,
        typer.Option("--min", metavar="N", min=0, max=MOST_NODES, help="Fewest nodes.", show_default=False),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--max", metavar="N", min=0, max=MOST_NODES, help="Most nodes.", show_default=False),
    ] = None,
    max_price: Annotated[
        str | None,
        typer.Option(
            "--max-price",
            metavar="USD",
            help="Dollars an hour; no further node is asked for while one costs more.",
            show_default=False,
        ),
    ] = None,
    as_settings: Annotated[
        bool, typer.Option("--as-settings", help="Go back to the limits of the settings.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Change a fleet's limits without a restart.

    A limit that is set here wins over the settings and their windows, also after a restart, until --as-settings.
    """
    with reporting(as_json, see=("fleets",)) as out:
        limits = _limits(fewest, most, max_price, as_settings=as_settings)
        with connect(settings_of(context)) as client:
            fleet = client.scale_fleet(name, limits)
            whose = f"; an operator set {limits_words(fleet)}" if limits_words(fleet) else ", as the settings say"
            out.say(f"{name}: min_nodes = {fleet.min_nodes}, max_nodes = {fleet.most_nodes}{whose}")
            out.result(fleet)


def roll(context: typer.Context, name: FleetName, as_json: JsonFlag = False) -> None:
    """Bring a fleet's nodes to what the settings say.

    A few at a time, and none is made to leave its work: each writes a checkpoint and gives its job back first.
    """
    with reporting(as_json, see=("fleets",)) as out, connect(settings_of(context)) as client:
        fleet = client.roll_fleet(name)
        changed = f": {', '.join(fleet.outdated)}" if fleet.outdated else ""
        out.say(f"The nodes of {name} are renewed as far as their settings changed{changed}")
        out.hint(f"See how far it is with: {giornata('fleets', name)}")
        out.result(fleet)


def limits_words(fleet: Fleet) -> str:
    """The limits that an operator set; empty when there are none."""
    limits, words = fleet.limits, []
    if limits.min_nodes is not None:
        words.append(f"min_nodes = {limits.min_nodes}")
    if limits.max_nodes is not None:
        words.append(f"max_nodes = {limits.max_nodes}")
    if limits.max_price_micro_usd_per_hour is not None:
        words.append(f"max_price_usd_per_hour = {limits.max_price_micro_usd_per_hour / MICRO_USD:g}")
    return ", ".join(words)


def _limits(fewest: int | None, most: int | None, max_price: str | None, *, as_settings: bool) -> ScaleFleet:
    """What to ask for. Raises InvalidInput when nothing is given, or limits together with --as-settings."""
    given = {"--min": fewest, "--max": most, "--max-price": max_price}
    if as_settings:
        faults = misplaced(given, "is a limit, and --as-settings takes all limits back", hint="give one of both")
        if faults:
            raise InvalidInput(faults)
        return ScaleFleet(min_nodes=None, max_nodes=None, max_price_micro_usd_per_hour=None)
    if all(value is None for value in given.values()):
        hint = "--min, --max, --max-price, or --as-settings"
        raise InvalidInput([Fault(where="scale", message="nothing to change is given", hint=hint)])
    price = None if max_price is None else micro_usd(max_price, where="--max-price")
    limits = {"min_nodes": fewest, "max_nodes": most, "max_price_micro_usd_per_hour": price}
    return ScaleFleet(**{field: value for field, value in limits.items() if value is not None})
