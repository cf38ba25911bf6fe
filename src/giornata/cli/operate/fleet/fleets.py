"""The commands of `giornata fleets`: show, pause, resume, scale and roll."""

from collections import Counter
from typing import Annotated

import typer
from typer.core import TyperGroup

from giornata.cli.options import JsonFlag, misplaced, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import ago, micro_usd
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.node.fleets import MOST_NODES, Fleet, FleetInstance, ScaleFleet

SHOW = "show"


class _ShowUnlessSaid(TyperGroup):
    """`giornata fleets` and `giornata fleets NAME` are `giornata fleets show`, as nothing is done more often."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        said = args and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if said else [SHOW, *args])


def register(app: typer.Typer) -> None:
    """Add the command group `fleets` to `app`."""
    fleets = typer.Typer(cls=_ShowUnlessSaid, help="Show fleets and their nodes; pause, scale or roll a fleet.")
    fleets.command(SHOW)(list_fleets)
    fleets.command("pause")(pause)
    fleets.command("resume")(resume)
    fleets.command("scale")(scale)
    fleets.command("roll")(roll)
    app.add_typer(fleets, name="fleets")


def list_fleets(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show only this fleet, with its instances.", show_default=False),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show all fleets, or one fleet with its instances.

    You may leave the word `show` out.
    """
    with reporting(as_json, see=("fleets",)) as out, connect(settings_of(context)) as client:
        fleets = list(client.fleets()) if name is None else [client.fleet(name)]
        if not fleets and out.live:
            out.hint("No fleets. docs/how-to/fleets.md describes how to add one.")
            return
        _table(out, fleets)
        for fleet in fleets:
            _notes(out, fleet)
        if name is not None:
            _instances(out, fleets[0])
            _prices(out, fleets[0])
        out.result({"items": [each.model_dump(mode="json") for each in fleets]})


def _table(out: Output, fleets: list[Fleet]) -> None:
    headers = ("fleet", "driver", "wanted", "there", "waiting", "price", "why")
    rows = [
        (
            each.name,
            each.driver,
            _wanted(each),
            _there(each),
            str(each.plan.jobs or ""),
            _price(each.price_micro_usd_per_hour),
            "; ".join(each.plan.reasons) if each.gives_nodes else "machines join by themselves",
        )
        for each in fleets
    ]
    out.table(headers, rows, right=(2, 4, 5), prose=(6,))


def _notes(out: Output, fleet: Fleet) -> None:
    """Print the fleet's problems and changed limits as whole lines below the table.

    A provider's messages are long, and an operator wants the whole text.
    """
    if fleet.paused_since is not None:
        out.say(f"{fleet.name}: an operator paused it {ago(fleet.paused_since)}: it has no nodes until it is resumed")
        out.hint(f"Resume it with: {giornata('fleets', 'resume', fleet.name)}")
    if limits := limits_words(fleet):
        out.say(f"{fleet.name}: an operator set {limits}, in place of the settings")
        out.hint(f"Go back to the settings with: {giornata('fleets', 'scale', fleet.name, '--as-settings')}")
    if fleet.trouble:
        until = "" if fleet.quiet_until is None else f" (it is asked again at {fleet.quiet_until:%H:%M:%S} UTC)"
        out.say(f"{fleet.name}: {fleet.trouble}{until}")
    if fleet.plan.stopped:
        out.say(f"{fleet.name}: {fleet.plan.stopped}: one more is tried each hour, and no others")
        out.hint(f"Find out why, mend it, and renew the nodes: {giornata('fleets', fleet.name)}")
    if fleet.shortage:
        much = len(fleet.instances) > fleet.desired
        out.say(f"{fleet.name}: {'more nodes than are wanted' if much else 'nodes do not come up'}: {fleet.shortage}")
    old = sum(each.outdated for each in fleet.instances)
    if fleet.rolling_since is not None:
        out.say(f"{fleet.name}: is rolled since {ago(fleet.rolling_since)}; {old} of {len(fleet.instances)} to go")
    elif fleet.outdated:
        changed = ", ".join(fleet.outdated)
        who = f"{old} of {len(fleet.instances)}" if old else "nodes to come"
        out.say(f"{fleet.name}: {who} have other settings than are wanted now: {changed}")
        out.hint(f"Renew them without losing work: {giornata('fleets', 'roll', fleet.name)}")


def _wanted(fleet: Fleet) -> str:
    if not fleet.gives_nodes:
        return ""
    return f"{fleet.desired}" + ("" if fleet.most_nodes is None else f" of {fleet.most_nodes}")


def _there(fleet: Fleet) -> str:
    counts = Counter(each.state.value for each in fleet.instances)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"


def _price(micro_usd_per_hour: int | None) -> str:
    return "" if not micro_usd_per_hour else f"${micro_usd_per_hour / MICRO_USD:.3f}/h"


def _instances(out: Output, fleet: Fleet) -> None:
    named = any(each.name not in {"", each.id} for each in fleet.instances)
    rows = [
        (
            each.id,
            *((each.name,) if named else ()),
            each.state.value,
            each.machine_id or "",
            str(each.jobs or ""),
            ago(each.first_listed_at),
        )
        for each in fleet.instances
    ]
    if rows:
        out.say("")
        headers = ("instance", *(("name",) if named else ()), "state", "machine", "jobs", "there since")
        out.table(headers, rows, right=(headers.index("jobs"),))
    # Names are long, and so are reasons: side by side there is room for neither.
    for each in fleet.instances:
        if why := _why(each):
            out.say(f"{each.name or each.id}: {why}")


def _prices(out: Output, fleet: Fleet) -> None:
    if len(fleet.price_changes) > 1:
        out.say("")
        rows = [(f"{each.at:%Y-%m-%d %H:%M} UTC", _price(each.micro_usd_per_hour)) for each in fleet.price_changes]
        out.table(("since", "price"), rows, right=(1,))


def _why(instance: FleetInstance) -> str:
    old = "of other settings" if instance.outdated and not instance.reason else ""
    return "; ".join(filter(None, [instance.reason, instance.trouble, old]))


FleetName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the fleet, as `giornata fleets` shows it.", show_default=False)
]


def pause(context: typer.Context, name: FleetName, as_json: JsonFlag = False) -> None:
    """Stop all nodes of a fleet until you resume it.

    Busy nodes first write a checkpoint and give their jobs back. The pause survives a restart of the server.
    """
    with reporting(as_json, see=("fleets",)) as out, connect(settings_of(context)) as client:
        fleet = client.pause_fleet(name)
        at_work = sum(each.jobs for each in fleet.instances)
        back = f"; {at_work} jobs go back to the queue after a checkpoint" if at_work else ""
        out.say(f"{name} is paused: its nodes leave, and no new ones start{back}")
        out.hint(f"Resume it with: {giornata('fleets', 'resume', name)}")
        out.result(fleet)


def resume(context: typer.Context, name: FleetName, as_json: JsonFlag = False) -> None:
    """Let a paused fleet scale with the queue again."""
    with reporting(as_json, see=("fleets",)) as out, connect(settings_of(context)) as client:
        fleet = client.resume_fleet(name)
        out.say(f"{name} scales with the queue again: min_nodes = {fleet.min_nodes}, max_nodes = {fleet.most_nodes}")
        out.result(fleet)


def scale(
    context: typer.Context,
    name: FleetName,
    fewest: Annotated[
        int | None,
        typer.Option(
            "--min", metavar="N", min=0, max=MOST_NODES, help="Minimum number of nodes.", show_default=False
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max", metavar="N", min=0, max=MOST_NODES, help="Maximum number of nodes.", show_default=False
        ),
    ] = None,
    max_price: Annotated[
        str | None,
        typer.Option(
            "--max-price",
            metavar="USD",
            help="Maximum price of a node in US dollars per hour. No node is added while the price is higher.",
            show_default=False,
        ),
    ] = None,
    as_settings: Annotated[
        bool,
        typer.Option("--as-settings", help="Use the limits of the settings again, and forget those of this command."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Change the limits of a fleet without a restart.

    These limits override the settings and their hours, even after a restart, until you give --as-settings.
    """
    with reporting(as_json, see=("fleets",)) as out:
        limits = _limits(fewest, most, max_price, as_settings=as_settings)
        with connect(settings_of(context)) as client:
            fleet = client.scale_fleet(name, limits)
            whose = f"; an operator set {limits_words(fleet)}" if limits_words(fleet) else ", as the settings say"
            out.say(f"{name}: min_nodes = {fleet.min_nodes}, max_nodes = {fleet.most_nodes}{whose}")
            out.result(fleet)


def roll(context: typer.Context, name: FleetName, as_json: JsonFlag = False) -> None:
    """Replace the nodes of a fleet whose settings have changed, a few at a time.

    No work is lost: each node first writes a checkpoint and gives its job back.
    """
    with reporting(as_json, see=("fleets",)) as out, connect(settings_of(context)) as client:
        fleet = client.roll_fleet(name)
        changed = f": {', '.join(fleet.outdated)}" if fleet.outdated else ""
        out.say(f"The nodes of {name} with other settings are replaced{changed}")
        out.hint(f"See the progress with: {giornata('fleets', name)}")
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
    """Build the request from the options of `scale`.

    Raises InvalidInput when no option is given, or limits together with --as-settings.
    """
    given = {"--min": fewest, "--max": most, "--max-price": max_price}
    if as_settings:
        faults = misplaced(
            given, "cannot be combined with --as-settings, which removes all limits", hint="give one of the two"
        )
        if faults:
            raise InvalidInput(faults)
        return ScaleFleet(min_nodes=None, max_nodes=None, max_price_micro_usd_per_hour=None)
    if all(value is None for value in given.values()):
        hint = "give --min, --max, --max-price or --as-settings"
        raise InvalidInput([Fault(where="scale", message="no limit is given", hint=hint)])
    price = None if max_price is None else micro_usd(max_price, where="--max-price")
    limits = {"min_nodes": fewest, "max_nodes": most, "max_price_micro_usd_per_hour": price}
    return ScaleFleet(**{field: value for field, value in limits.items() if value is not None})
