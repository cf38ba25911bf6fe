"""`giornata up` and `giornata server`."""

import os
from typing import Annotated

import typer

from giornata.cli.operate.fleet.logs import log_to_file, log_to_stderr
from giornata.cli.operate.server_libraries import server_libraries
from giornata.cli.options import DataOption, KindOption, PlacesOption, PriceOption, WorkloadOption, flag, settings_of
from giornata.cli.settings import Settings, default_data_directory
from giornata.cli.settings.contexts import contexts_file, read_contexts
from giornata.cli.settings.hints import giornata
from giornata.cli.settings.private_files import DATA, keep_private, private_folder
from giornata.cli.ui.output import Output, reporting
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.picture import NODE_KINDS
from giornata.protocol.generation.preprocess import PREPROCESS_KIND

PortOption = Annotated[int | None, flag("port")]
HostOption = Annotated[str | None, flag("host")]
LogFormatOption = Annotated[str | None, flag("log_format", metavar="text|json")]
LeaseOption = Annotated[float | None, flag("lease_s", "--lease", metavar="SECONDS")]
NewSigningKey = Annotated[
    bool,
    typer.Option(
        "--new-signing-key",
        help="Make a new signing key at this start. The server then refuses earlier leases and signed URLs, and "
        "nodes claim their jobs again. Use it once, when secrets_key is lost or others know the signing key.",
    ),
]
StartedJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object when the server listens: url, pid, data, dashboard.")
]


def register(app: typer.Typer) -> None:
    """Add `up` and `server` to `app`."""
    app.command()(up)
    app.command()(server)


def up(
    context: typer.Context,
    nodes: Annotated[int | None, flag("nodes")] = None,
    max_nodes: Annotated[int | None, flag("max_nodes")] = None,
    places: PlacesOption = None,
    port: PortOption = None,
    host: HostOption = None,
    data: DataOption = None,
    price: PriceOption = None,
    lease: LeaseOption = None,
    log_format: LogFormatOption = None,
    kind: KindOption = None,
    workload: WorkloadOption = None,
    new_signing_key: NewSigningKey = False,
    as_json: StartedJson = False,
) -> None:
    """Run everything on this machine: server, storage and nodes."""
    with reporting(as_json) as out:
        settings = settings_of(
            context,
            nodes=nodes,
            max_nodes=max_nodes,
            places=places,
            port=port,
            host=host,
            data=data,
            price_usd_per_hour=price,
            lease_s=lease,
            log_format=log_format,
            kinds=tuple(kind) if kind else None,
            workloads=parse_workloads(workload),
        )
        _serve(with_all_kinds(settings), out, embedded=True, new_signing_key=new_signing_key)


def server(
    context: typer.Context,
    port: PortOption = None,
    host: HostOption = None,
    data: DataOption = None,
    database: Annotated[str | None, flag("database")] = None,
    blobs: Annotated[str | None, flag("blobs")] = None,
    public_url: Annotated[str | None, flag("public_url")] = None,
    lease: LeaseOption = None,
    log_format: LogFormatOption = None,
    new_signing_key: NewSigningKey = False,
    as_json: StartedJson = False,
) -> None:
    """Run a server without nodes.

    Several servers may share one PostgreSQL database.
    """
    with reporting(as_json) as out:
        settings = settings_of(
            context,
            port=port,
            host=host,
            data=data,
            database=database,
            blobs=blobs,
            public_url=public_url,
            lease_s=lease,
            log_format=log_format,
        )
        _serve(settings, out, embedded=False, new_signing_key=new_signing_key)


def _serve(settings: Settings, out: Output, *, embedded: bool, new_signing_key: bool) -> None:
    # Only these two commands load the server's libraries: the client is installed without them.
    with server_libraries():
        from giornata.cli.operate.fleet.open_fleets import own_nodes
        from giornata.cli.operate.serving import run_server
    keep_private()
    own = own_nodes(settings) if embedded else None
    if own is None:
        log_to_stderr(settings.log_level, settings.log_format)
    else:
        private_folder(settings.data, named="data", holds=DATA)
        log_to_file(settings.log_level, settings.data / "logs" / "server.log", settings.log_format)

    def started(url: str, link: str | None) -> None:
        out.say(f"Giornata is up at {url}")
        if link is not None:
            out.hint(f"  dashboard   {link}")
            out.hint("              the link signs you in, once")
        if own is not None:
            out.hint(f"  nodes       {_nodes_words(own)}")
            out.hint(f"  logs        {settings.data / 'logs'}")
        if settings.fleets:
            out.hint(f"  fleets      {', '.join(sorted(settings.fleets))}")
        out.hint(f"  data        {settings.data}")
        given = settings.admin_key or settings.admin_key_file
        out.hint(f"  key         {'as the settings say' if given else settings.data / 'admin.key'}")
        out.hint(f"  try         {_client_command(settings)} train PICTURES --model MODEL \\")
        out.hint('                --instance-prompt "a photo of sks dog"')
        out.hint("  stop        Ctrl-C; nodes write a checkpoint first")
        out.result({"url": url, "pid": os.getpid(), "data": str(settings.data), "dashboard": link})

    run_server(settings, on_started=started, own_nodes=own, new_signing_key=new_signing_key)
    out.say("Giornata is down.")


def with_all_kinds(settings: Settings) -> Settings:
    """Return the settings of nodes that are alone: they also annotate, unless the settings name their kinds."""
    if "kinds" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"kinds": (*NODE_KINDS, PREPROCESS_KIND)})


def _nodes_words(own: range) -> str:
    if len(own) == 1:
        return f"{own[0]} on this machine"
    least = f"{own[0]} to " if own[0] else "up to "
    return f"{least}{own[-1]} on this machine, as the queue needs them"


def _client_command(settings: Settings) -> str:
    """Return the command prefix with which another shell of this user reaches this server.

    The prefix names the data directory unless the default finds the directory.
    """
    found = settings.data == default_data_directory() and read_contexts(contexts_file()).in_use is None
    return "giornata" if found else giornata(data=str(settings.data.absolute()))


def parse_workloads(given: list[str] | None) -> dict[str, str] | None:
    """`x-NAME=COMMAND` to a mapping. Raises InvalidInput that lists each one that has no such form."""
    if not given:
        return None
    pairs = [each.partition("=") for each in given]
    faults = [
        Fault(
            where="--workload", message=f"{''.join(pair)!r} is not x-NAME=COMMAND", hint="x-count='python count.py'"
        )
        for pair in pairs
        if not (pair[0].startswith("x-") and pair[2].strip())
    ]
    if faults:
        raise InvalidInput(faults)
    return {name: command for name, _, command in pairs}
