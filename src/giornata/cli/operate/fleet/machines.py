"""The commands of `giornata machines`: show, quarantine and release."""

from collections.abc import Iterable
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, check_message, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import ago
from giornata.domain.machines.health import MachineState
from giornata.protocol.node.fleets import Machine, QuarantineMachine

MachineId = Annotated[
    str,
    typer.Argument(metavar="MACHINE", help="Id of the machine, as `giornata machines` shows it.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the command group `machines` to `app`."""
    machines = typer.Typer(
        invoke_without_command=True, help="Show the health of machines; quarantine or release a machine."
    )
    machines.callback()(list_machines)
    machines.command("quarantine")(quarantine)
    machines.command("release")(release)
    app.add_typer(machines, name="machines")


def list_machines(
    context: typer.Context,
    state: Annotated[
        MachineState | None, typer.Option(help="Only machines in this state.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the machines that have ended jobs, with their strikes."""
    if context.invoked_subcommand is not None:
        return
    with reporting(as_json, see=("machines",)) as out, connect(settings_of(context)) as client:
        machines = list(client.machines(state=state))
        if machines or not out.live:
            _table(out, machines)
        else:
            out.hint("No machine has ended a job yet.")
        out.result({"items": [machine.model_dump(mode="json") for machine in machines]})


def quarantine(
    context: typer.Context,
    machine_id: MachineId,
    reason: Annotated[str, typer.Option(help="Why the machine is quarantined.")] = "by hand",
    as_json: JsonFlag = False,
) -> None:
    """Give a machine no more jobs until it is released."""
    with reporting(as_json, see=("machines",)) as out:
        check_message(QuarantineMachine, reason=("--reason", reason))
        with connect(settings_of(context)) as client:
            page = client.quarantine_machine(machine_id, reason=reason)
            out.say(f"{machine_id} gets no more jobs; its running jobs continue to their end")
            out.hint(f"Release it with: {giornata('machines', 'release', machine_id)}")
            out.result(page)


def release(context: typer.Context, machine_id: MachineId, as_json: JsonFlag = False) -> None:
    """Forget the failures of a machine, and lift its bans for queued jobs."""
    with reporting(as_json, see=("machines",)) as out, connect(settings_of(context)) as client:
        page = client.release_machine(machine_id)
        out.say(f"{machine_id} gets jobs again")
        out.result(page)


def _table(out: Output, machines: Iterable[Machine]) -> None:
    headers = ("machine", "kind", "state", "since", "strikes", "quota", "why")
    rows = [
        (
            each.machine_id,
            each.kind,
            each.state,
            ago(each.since),
            f"{each.strikes:.1f}" if each.strikes else "",
            f"{each.quota}/h",
            each.reason,
        )
        for each in machines
    ]
    out.table(headers, rows, right=(3, 4, 5), prose=(6,))
