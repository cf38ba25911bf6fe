"""`giornata node`: one agent with its engine, on this machine."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from giornata.agent.main import run_node
from giornata.agent.settings import AgentSettings
from giornata.cli.logs import log_to_stderr
from giornata.cli.machine import machine_id
from giornata.cli.options import settings_of
from giornata.cli.output import reporting
from giornata.cli.serve import parse_workloads
from giornata.cli.settings import Settings
from giornata.cli.workloads import workload_commands
from giornata.domain.errors import InvalidInput
from giornata.domain.money import MICRO_USD


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(node)


def node(
    context: typer.Context,
    key: Annotated[
        str | None, typer.Option(help="A key of scope node (GIORNATA_NODE_KEY).", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="For people.", show_default=False)] = None,
    machine: Annotated[
        str | None, typer.Option("--machine-id", help="Names the hardware.", show_default=False)
    ] = None,
    fleet: Annotated[str | None, typer.Option(help="The fleet it belongs to.", show_default=False)] = None,
    price: Annotated[float | None, typer.Option(help="US dollars per hour.", show_default=False)] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Kind of job to take.", show_default=False)] = None,
    workload: Annotated[list[str] | None, typer.Option(help="x-NAME=COMMAND", show_default=False)] = None,
    work_dir: Annotated[Path | None, typer.Option(help="Scratch space.", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.", show_default=False)] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the engine.", show_default=False)] = None,
    places: Annotated[int | None, typer.Option(help="Jobs that may share a batch.", show_default=False)] = None,
    model_cache_bytes: Annotated[
        int | None, typer.Option(help="Bound of the models fetched from the hub.", show_default=False)
    ] = None,
    shared_compile_cache: Annotated[
        bool | None,
        typer.Option(
            "--shared-compile-cache/--no-shared-compile-cache",
            help="Share compiled kernels with other nodes that have GIORNATA_COMPILE_CACHE_KEY.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[float | None, typer.Option(help="Seconds for the last checkpoint.", show_default=False)] = None,
    exit_with_parent: Annotated[bool, typer.Option("--exit-with-parent", hidden=True)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when it has left.")] = False,
) -> None:
    """Join a server's fleet with this machine: claim jobs, run them, give them back on SIGTERM."""
    with reporting(as_json) as out:
        settings = settings_of(
            context,
            node_key=key,
            node_name=name,
            machine_id=machine,
            fleet=fleet,
            price_usd_per_hour=price,
            kinds=tuple(kind) if kind else None,
            workloads=parse_workloads(workload),
            work_directory=work_dir,
            device=device,
            threads=threads,
            places=places,
            model_cache_bytes=model_cache_bytes,
            shared_compile_cache=shared_compile_cache,
            grace_s=grace,
        )
        agent = agent_settings_of(settings)
    log_to_stderr(settings.log_level)
    if exit_with_parent:
        _follow_parent()
    status = run_node(agent)
    out.result({"node_id": agent.node_id, "machine_id": agent.machine_id, "status": status})
    raise typer.Exit(status)


def agent_settings_of(settings: Settings) -> AgentSettings:
    """The agent's part of the settings. Raises InvalidInput with every fault."""
    machine = settings.machine_id or machine_id(settings.data)
    agent = AgentSettings(
        url=settings.url or "",
        key=settings.node_key or "",
        machine_id=machine,
        name=settings.node_name or machine,
        work_dir=settings.work_directory or settings.data / "node",
        fleet=settings.fleet,
        instance_id=settings.instance_id,
        price_micro_usd_per_hour=round(settings.price_usd_per_hour * MICRO_USD),
        kinds=settings.kinds,
        workloads=workload_commands(settings.workloads),
        threads=settings.threads,
        model_cache_bytes=settings.model_cache_bytes,
        shared_compile_cache=settings.shared_compile_cache,
        compile_cache_key=settings.compile_cache_key,
        device=settings.device,
        places=settings.places,
        join_for_s=settings.join_for_s,
        grace_s=settings.grace_s,
        stall_s=settings.stall_s,
        cache_bytes=settings.cache_bytes,
        environment=dict(os.environ),
    )
    if faults := agent.faults():
        raise InvalidInput(faults)
    return agent


def _follow_parent() -> None:
    """Leave, in good order, when the process that started this one is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()
