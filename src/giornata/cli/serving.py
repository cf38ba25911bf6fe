"""`giornata up` and `giornata server`: a server in this process, with its loops and perhaps a local fleet."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from giornata.api.app import create_app
from giornata.api.server import serve
from giornata.cli.composition import (
    NODE_KEY_FILE,
    House,
    api_settings_of,
    open_house,
    write_private,
    write_server_file,
)
from giornata.cli.connection import ADMIN_KEY_FILE, SERVER_FILE
from giornata.cli.settings import Settings
from giornata.control.context import Caller, Context
from giornata.control.create_key import create_key
from giornata.control.loops import Loops
from giornata.domain.money import MICRO_USD
from giornata.fleets.local import LocalFleet
from giornata.protocol.admin import ROOT_PROJECT, CreateKey, Scope

LOCAL_FLEET = "local"


@dataclass(slots=True)
class _Address:
    """Where the server is reached: known once its socket is bound."""

    url: str = ""

    def __call__(self) -> str:
        return self.url


def run_server(settings: Settings, *, on_started: Callable[[str], None], embedded_nodes: int | None = None) -> None:
    """Serve until SIGTERM or SIGINT. With `embedded_nodes`, also run that many nodes on this machine.

    `on_started` is called with the URL. Raises GiornataError when the server cannot start.
    """
    address = _Address(settings.public_url or "")
    with open_house(settings, base_url=address) as house:
        if house.first_admin_key is not None:
            write_private(settings.data / ADMIN_KEY_FILE, house.first_admin_key + "\n")
        app, loops = _app_with_loops(settings, house)
        fleet = None if embedded_nodes is None else _local_fleet(settings, house.context, address)

        def bound(url: str) -> None:
            address.url = settings.public_url or url

        def started(_url: str) -> None:
            write_server_file(settings.data, address.url)
            loops.start()
            if fleet is not None:
                fleet.start(embedded_nodes or 0)
            on_started(address.url)

        try:
            with _server_file_removed(settings.data):
                # Nodes that drain need the server to take their last checkpoints.
                before_stop = fleet.stop if fleet is not None else None
                serve(
                    app,
                    settings.host,
                    settings.port,
                    on_bound=bound,
                    on_started=started,
                    before_stop=before_stop,
                )
        finally:
            if fleet is not None:
                fleet.stop()
            loops.stop()


def _app_with_loops(settings: Settings, house: House) -> tuple[FastAPI, Loops]:
    # A loop that gave jobs back wakes the claims that wait in the app, and the app shows how the loops fare.
    def wake() -> None:
        app.state.wakeup.notify()

    loops = Loops(house.context, after_work=wake)
    app = create_app(
        house.context,
        settings=api_settings_of(settings),
        loops_status=loops.status,
        checks={"migrations": house.check_schema},
    )
    return app, loops


def _local_fleet(settings: Settings, context: Context, address: Callable[[], str]) -> LocalFleet:
    environment = dict(os.environ, GIORNATA_NODE_KEY=_local_node_key(settings, context))
    return LocalFleet(
        command=lambda slot: _node_command(settings, slot, address()),
        environment=environment,
        log_directory=settings.data / "logs",
        price_micro_usd_per_hour=round(settings.price_usd_per_hour * MICRO_USD),
        grace_s=settings.grace_s + 5.0,
    )


def _local_node_key(settings: Settings, context: Context) -> str:
    """The key of the embedded nodes: made once, kept beside the database."""
    file = settings.data / NODE_KEY_FILE
    if not file.exists():
        operator = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="installation")
        created = create_key(context, operator, CreateKey(scope=Scope.NODE, name="nodes of this machine"))
        write_private(file, created.secret + "\n")
    return file.read_text().strip()


def _node_command(settings: Settings, slot: int, url: str) -> list[str]:
    name = f"local-{slot}"
    command = [sys.executable, "-m", "giornata", "--url", url, "node", "--name", name, "--machine-id", name]
    command += ["--fleet", LOCAL_FLEET, "--price", str(settings.price_usd_per_hour), "--exit-with-parent"]
    command += ["--work-dir", str(settings.data / "nodes" / name), "--device", settings.device]
    command += ["--threads", str(settings.threads), "--grace", str(settings.grace_s)]
    command += ["--places", str(settings.places), "--model-cache-bytes", str(settings.model_cache_bytes)]
    if settings.shared_compile_cache:
        command += ["--shared-compile-cache"]
    for kind in settings.kinds:
        command += ["--kind", kind]
    for kind, program in settings.workloads.items():
        command += ["--workload", f"{kind}={program}"]
    return command


@contextmanager
def _server_file_removed(data: Path) -> Iterator[None]:
    try:
        yield
    finally:
        (data / SERVER_FILE).unlink(missing_ok=True)
