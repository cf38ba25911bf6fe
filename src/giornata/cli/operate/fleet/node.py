"""`giornata node`: one agent with its engine, on this machine."""

import os
import secrets
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from giornata.agent.machine.instance_metadata import (
    InstanceMetadata,
    InstancePlace,
    WorkloadToken,
    direct_client,
    place_in,
)
from giornata.agent.main import monotonic_s, run_node
from giornata.agent.settings import AgentSettings
from giornata.cli.operate.fleet.logs import log_to_stderr
from giornata.cli.operate.serve import parse_workloads
from giornata.cli.options import (
    KindOption,
    PlacesOption,
    PriceOption,
    WorkloadOption,
    flag,
    settings_of,
    workload_commands,
)
from giornata.cli.settings import Settings
from giornata.cli.settings.connection import read_invitation
from giornata.cli.settings.private_files import NODE, keep_private, private_folder
from giornata.cli.ui.output import reporting
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.specs import PRETRAIN_KIND
from giornata.protocol.training.optimization import Compile


def register(app: typer.Typer) -> None:
    """Add the command `node` to `app`."""
    app.command()(node)


def node(
    context: typer.Context,
    join: Annotated[
        str | None,
        typer.Option(
            help="Server and key as https://SERVER#KEY, which giornata key create --scope node prints.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[str | None, flag("node_key", "--key")] = None,
    name: Annotated[str | None, flag("node_name", "--name")] = None,
    machine: Annotated[str | None, flag("machine_id", "--machine-id")] = None,
    fleet: Annotated[str | None, flag("fleet")] = None,
    price: PriceOption = None,
    kind: KindOption = None,
    workload: WorkloadOption = None,
    work_dir: Annotated[Path | None, flag("work_directory", "--work-dir")] = None,
    device: Annotated[str | None, flag("device")] = None,
    threads: Annotated[int | None, flag("threads")] = None,
    places: PlacesOption = None,
    model_cache_bytes: Annotated[int | None, flag("model_cache_bytes")] = None,
    shared_compile_cache: Annotated[
        bool | None,
        flag("shared_compile_cache", "--shared-compile-cache/--no-shared-compile-cache"),
    ] = None,
    grace: Annotated[float | None, flag("shutdown_grace_s", "--grace", metavar="SECONDS")] = None,
    log_format: Annotated[str | None, flag("log_format", metavar="text|json")] = None,
    parent: Annotated[int | None, typer.Option("--exit-with-parent", hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when the node has left.")] = False,
) -> None:
    """Join a server with this machine and run its jobs.

    On SIGTERM the node writes checkpoints, gives its jobs back and leaves.
    """
    with reporting(as_json) as out:
        keep_private()
        invited = read_invitation(join) if join else None
        settings = settings_of(
            context,
            url=invited.url if invited else None,
            node_key=invited.key if invited else key,
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
            shutdown_grace_s=grace,
            log_format=log_format,
        )
        place = place_of(settings, os.environ)
        agent = agent_settings_of(settings, place)
        if (words := unpriced_words(settings)) is not None:
            out.hint(words)
        private_folder(agent.work_dir, named="work_directory", holds=NODE)
    log_to_stderr(settings.log_level, settings.log_format, always={"node": agent.node_id})
    if parent is not None:
        _follow(parent)
    provider = InstanceMetadata(http=direct_client()) if place is not None else None
    status = run_node(agent, provider=provider)
    out.result({"node_id": agent.node_id, "machine_id": agent.machine_id, "status": status})
    raise typer.Exit(status)


def unpriced_words(settings: Settings) -> str | None:
    """Return a warning for a node of a cluster that has no price per hour; None for other nodes."""
    if PRETRAIN_KIND not in settings.kinds or settings.price_usd_per_hour:
        return None
    return "  runs on the cluster cost nothing and never reach a budget: set the price per hour with --price"


def place_of(settings: Settings, environment: Mapping[str, str]) -> InstancePlace | None:
    """Return the place that SaladCloud names for this process, unless the settings forbid to look.

    Raises InvalidInput when the settings demand SaladCloud and the process runs elsewhere.
    """
    if settings.provider == "none":
        return None
    place = place_in(environment)
    if place is None and settings.provider == "salad":
        message = "this process does not run on SaladCloud: SALAD_MACHINE_ID is not set"
        raise InvalidInput([Fault(where="provider", message=message, hint="set provider to auto")])
    return place


def agent_settings_of(settings: Settings, place: InstancePlace | None = None) -> AgentSettings:
    """The agent's part of the settings. What they say wins over what the provider says of the place. Raises
    InvalidInput with every fault."""
    bearer, fleet = None, settings.fleet
    if place is not None:
        if settings.node_key is None:
            # Lives as long as the process does.
            bearer = WorkloadToken(fetch=InstanceMetadata(http=direct_client()).token, monotonic_s=monotonic_s)
        if "fleet" not in settings.model_fields_set and place.group is not None:
            fleet = place.group
    machine = settings.machine_id or (place.machine_id if place is not None else machine_id(settings.data))
    agent = AgentSettings(
        url=settings.url or "",
        key=settings.node_key or "",
        bearer=bearer,
        machine_id=machine,
        name=settings.node_name or machine,
        work_dir=settings.work_directory or settings.data / "node",
        fleet=fleet,
        instance_id=settings.instance_id or (place.instance_id if place is not None else None),
        price_micro_usd_per_hour=round(settings.price_usd_per_hour * MICRO_USD),
        kinds=settings.kinds,
        workloads=workload_commands(settings.workloads),
        threads=settings.threads,
        model_cache_bytes=settings.model_cache_bytes,
        shared_compile_cache=settings.shared_compile_cache,
        compile_cache_key=settings.compile_cache_key,
        device=settings.device,
        places=settings.places,
        max_pictures=settings.max_pictures_per_lease,
        join_for_s=settings.batch_join_window_s,
        grace_s=settings.shutdown_grace_s,
        stall_s=settings.stall_timeout_s,
        cache_bytes=settings.cache_bytes,
        model_store_bytes=settings.model_store_bytes,
        host_model_bytes=settings.host_model_bytes,
        compile=Compile(settings.compile),
        environment=dict(os.environ),
    )
    if faults := agent.faults():
        raise InvalidInput(faults)
    return agent


def _follow(parent: int) -> None:
    """Leave, in good order, when the process that started this one is gone. It says who it is: asked here, a parent
    that is gone already would be taken for whoever adopted this process."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


MACHINE_ID_FILE = "machine-id"


def machine_id(data: Path) -> str:
    """The machine's id, drawn once and kept in the data directory. Raises InvalidInput when that cannot be."""
    file = data / MACHINE_ID_FILE
    try:
        if not file.exists():
            data.mkdir(parents=True, exist_ok=True)
            file.write_text(f"machine-{secrets.token_hex(6)}\n")
        return file.read_text().strip()
    except OSError as error:
        message = f"cannot keep the machine's id in {file}: {error.strerror}"
        raise InvalidInput([Fault(where="data", message=message, hint="give --machine-id or --data")]) from None
