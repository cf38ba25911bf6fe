"""`giornata fleets`."""

from collections import Counter
from typing import Annotated

import typer

from giornata.cli.connection import connect
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.output import Output, reporting
from giornata.cli.words import ago
from giornata.domain.money import MICRO_USD
from giornata.protocol.fleets import Fleet


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fleets")(list_fleets)


def list_fleets(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only this one, with its instances.", show_default=False)] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the fleets: how many nodes each should have and has, and why."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        fleets = list(client.fleets()) if name is None else [client.fleet(name)]
        if not fleets and out.live:
            out.hint("No fleets. How to have some: docs/guides/fleets.md")
            return
        _table(out, fleets)
        if name is not None:
            _instances(out, fleets[0])
        out.result({"items": [each.model_dump(mode="json") for each in fleets]})


def _table(out: Output, fleets: list[Fleet]) -> None:
    headers = ("fleet", "driver", "wanted", "there", "jobs", "price", "why")
    rows = [
        (
            each.name,
            each.driver,
            f"{each.desired}" + ("" if each.most_nodes is None else f" of {each.most_nodes}"),
            _there(each),
            str(each.plan.jobs or ""),
            _price(each.price_micro_usd_per_hour),
            each.trouble or "; ".join(each.plan.reasons),
        )
        for each in fleets
    ]
    out.table(headers, rows, right=(2, 4, 5), prose=(6,))


def _there(fleet: Fleet) -> str:
    counts = Counter(each.state.value for each in fleet.instances)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"


def _price(micro_usd_per_hour: int | None) -> str:
    return "" if micro_usd_per_hour is None else f"${micro_usd_per_hour / MICRO_USD:.3f}/h"


def _instances(out: Output, fleet: Fleet) -> None:
    rows = [
        (
            each.id,
            each.state.value,
            each.machine_id or "",
            str(each.jobs or ""),
            ago(each.first_listed_at),
            each.reason,
        )
        for each in fleet.instances
    ]
    if rows:
        out.say("")
        out.table(("instance", "state", "machine", "jobs", "there since", "why"), rows, right=(3,), prose=(5,))
