"""`giornata up` and `giornata server`: a server in this process, with its loops and perhaps a local fleet."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from giornata.api.app import create_app
from giornata.api.server import serve
from giornata.blobs.opening import folder_of
from giornata.cli.operate.composition import (
    OpenControlPlane,
    api_settings_of,
    open_control_plane,
    write_server_file,
)
from giornata.cli.operate.fleet.open_fleets import open_fleets
from giornata.cli.settings import Settings
from giornata.cli.settings.connection import ADMIN_KEY_FILE, SERVER_FILE
from giornata.cli.settings.private_files import write_private
from giornata.control.access.signing_in.sign_in_links import SignInLinks
from giornata.control.context import Context
from giornata.control.fleet_loops import fleet_loops
from giornata.control.loops import AUDIT_LOG_LOOP, DEFAULT_SCHEDULE, FLEET_TIME_LOOP, REQUEST_COUNTS_LOOP, Loops
from giornata.control.webhook_loops import webhook_loops
from giornata.dashboard.app import mount_dashboard
from giornata.dashboard.sign_in_pages import link_url


@dataclass(slots=True)
class _Address:
    """The address of the server, known once its socket is bound."""

    url: str = ""

    def __call__(self) -> str:
        return self.url


def run_server(
    settings: Settings,
    *,
    on_started: Callable[[str, str | None], None],
    own_nodes: range | None = None,
    new_signing_key: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT. With `own_nodes`, also run so many nodes on this machine.

    `on_started` is called with the URL, and with a one-time link to the dashboard where the server runs nodes on this
    machine. With `new_signing_key` leases and URLs from before are refused. Raises
    GiornataError when the server cannot start.
    """
    address = _Address(settings.public_url or "")
    with open_control_plane(settings, base_url=address, new_signing_key=new_signing_key) as opened:
        if opened.first_admin_key is not None:
            write_private(settings.data / ADMIN_KEY_FILE, opened.first_admin_key + "\n")
        fleets = open_fleets(settings, opened.context, address, own=own_nodes)
        app, loops = _app_with_loops(settings, opened, fleets.context)
        links = SignInLinks() if settings.dashboard and own_nodes is not None else None
        if settings.dashboard:
            mount_dashboard(app, links=links)

        def bound(url: str) -> None:
            address.url = settings.public_url or url

        def started(_url: str) -> None:
            write_server_file(settings.data, address.url)
            loops.start()
            fleets.start()
            on_started(address.url, None if links is None else link_url(address.url, links.make(opened.context)))

        def leave() -> None:
            # No further nodes are requested; draining nodes need the server for their last checkpoints.
            loops.stop()
            fleets.close()

        try:
            with _server_file_removed(settings.data):
                serve(
                    app,
                    settings.host,
                    settings.port,
                    on_bound=bound,
                    on_started=started,
                    before_stop=leave,
                )
        finally:
            leave()


def _app_with_loops(settings: Settings, opened: OpenControlPlane, context: Context) -> tuple[FastAPI, Loops]:
    # A loop that gave jobs back wakes the claims that wait in the app, and the app shows how the loops fare.
    def wake() -> None:
        app.state.wakeup.notify()

    own = (AUDIT_LOG_LOOP, FLEET_TIME_LOOP, *((REQUEST_COUNTS_LOOP,) if opened.is_shared else ()))
    schedule = (*DEFAULT_SCHEDULE, *own, *webhook_loops(), *fleet_loops(context.fleets))
    loops = Loops(context, schedule, after_work=wake)
    app = create_app(
        context,
        settings=api_settings_of(settings),
        loops_status=loops.status,
        checks={"migrations": opened.check_schema},
        disks=_disks(settings),
    )
    return app, loops


def _disks(settings: Settings) -> dict[str, Path]:
    """Return the folders of this machine that the server writes to."""
    blobs = settings.data / "blobs" if settings.blobs is None else folder_of(settings.blobs)
    return {"data": settings.data} | ({} if blobs is None else {"blobs": blobs})


@contextmanager
def _server_file_removed(data: Path) -> Iterator[None]:
    try:
        yield
    finally:
        (data / SERVER_FILE).unlink(missing_ok=True)
