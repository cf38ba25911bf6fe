"""`giornata nodes`."""

from typing import Annotated

import typer

from giornata.cli.connection import connect
from giornata.cli.hints import giornata
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.output import reporting
from giornata.cli.words import ago
from giornata.domain.money import MICRO_USD
from giornata.protocol.node_checks import NodeVerdict


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("nodes")(list_nodes)


def _fitness(checks: NodeVerdict | None) -> str:
    """What a node found out about itself, in a word, or what it lacks."""
    if checks is None:
        return ""
    return "; ".join(checks.shortcomings) or "fit"


def list_nodes(
    context: typer.Context,
    gone: Annotated[bool, typer.Option("--gone", help="Also those that have left.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the nodes, and what they are at."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        nodes = list(client.nodes(gone=gone))
        rows = [
            (
                node.name,
                node.state,
                ", ".join(node.job_ids),
                node.device,
                f"${node.price_micro_usd_per_hour / MICRO_USD:.2f}/h",
                str(node.strikes or ""),
                _fitness(node.checks),
                ago(node.last_seen_at),
                node.id,
            )
            for node in nodes
        ]
        if rows or not out.live:
            out.table(
                ("node", "state", "job", "device", "price", "strikes", "checks", "heard of", "id"),
                rows,
                right=(4, 5, 7),
                prose=(6,),
                spare=(8, 3, 5, 4),
            )
        else:
            out.hint(f"No nodes. Make a key for one with: {giornata('key', 'create', '--scope', 'node')}")
        out.result({"items": [node.model_dump(mode="json") for node in nodes]})
