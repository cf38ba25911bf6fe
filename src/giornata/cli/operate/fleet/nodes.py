"""The commands of `giornata nodes`: list, drain and undrain."""

from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import ago
from giornata.client import Client
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.node.node_checks import NodeVerdict
from giornata.protocol.project.admin import Node, NodeState

NodeWord = Annotated[
    str,
    typer.Argument(metavar="NODE", help="Id or name of the node, as `giornata nodes` shows it.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the command group `nodes` to `app`."""
    nodes = typer.Typer(invoke_without_command=True, help="List the nodes and their jobs; drain a node.")
    nodes.callback()(list_nodes)
    nodes.command("drain")(drain)
    nodes.command("undrain")(undrain)
    app.add_typer(nodes, name="nodes")


def _fitness(checks: NodeVerdict | None) -> str:
    """Return the node's shortcomings, `fit` when it has none, or nothing before its checks are known."""
    if checks is None:
        return ""
    return "; ".join(checks.shortcomings) or "fit"


def list_nodes(
    context: typer.Context,
    gone: Annotated[bool, typer.Option("--gone", help="Also list nodes that have left.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the nodes and their jobs."""
    if context.invoked_subcommand is not None:
        return
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


def drain(context: typer.Context, node: NodeWord, as_json: JsonFlag = False) -> None:
    """Drain a node: it gives its jobs back after a checkpoint, and leaves.

    The server terminates the machine of the node if a fleet requested it. A node that was started by hand ends by
    itself, and gets jobs when it is started again.
    """
    with reporting(as_json, see=("nodes",)) as out, connect(settings_of(context)) as client:
        drained = client.drain_node(_node_id(client, node))
        at = f"; it gives back {', '.join(drained.job_ids)}" if drained.job_ids else ""
        out.say(f"{drained.name} gets no more jobs and leaves{at}")
        out.hint(f"Undo this before the node has left: {giornata('nodes', 'undrain', drained.id)}")
        keep_out = giornata("machines", "quarantine", drained.machine_id)
        out.hint(f"Also quarantine its machine: {keep_out}")
        out.result(drained)


def undrain(context: typer.Context, node: NodeWord, as_json: JsonFlag = False) -> None:
    """Let a drained node get jobs again, if the node has not left yet."""
    with reporting(as_json, see=("nodes",)) as out, connect(settings_of(context)) as client:
        stays = client.undrain_node(_node_id(client, node))
        out.say(f"{stays.name} gets jobs again")
        out.result(stays)


def _node_id(client: Client, word: str) -> str:
    """The id of the node that is meant; an id is taken as it is when no node has it as its name.

    Raises InvalidInput with the candidates when several that live have the name.
    """
    named = [each for each in client.nodes() if each.name == word]
    live = [each for each in named if each.state is not NodeState.GONE] or named
    if len(live) > 1:
        lines = [_candidate(each) for each in live]
        hint = "give the id of one of these nodes"
        raise InvalidInput([Fault(where="NODE", message=f"{word} matches {len(live)} nodes", hint=hint), *lines])
    return live[0].id if live else word


def _candidate(node: Node) -> Fault:
    return Fault(where=node.id, message=f"{node.state} on {node.machine_id}, heard of {ago(node.last_seen_at)}")
