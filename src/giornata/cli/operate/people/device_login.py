"""The sign-in of `giornata login`: this terminal shows a code, and a person approves it in a browser."""

import os
import socket
import sys
import webbrowser
from collections.abc import Sequence

from giornata.cli.options import check_message
from giornata.cli.ui.output import Output
from giornata.client.device_sign_in import DeviceSignIn
from giornata.domain.errors import NotFound
from giornata.protocol.account.sign_in import AuthorizeDevice, DeviceToken
from giornata.protocol.project.admin import Scope

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def device_key(
    out: Output, address: str, *, scopes: Sequence[Scope], project: str | None, expires_in_s: int, opens: bool
) -> DeviceToken:
    """Show the code, wait for a person, and return the key. Raises Forbidden, Unauthenticated, Unavailable."""
    words = " ".join(scopes)
    check_message(
        AuthorizeDevice,
        scope=("--scope", words),
        project_id=("--project", project),
        key_expires_in_s=("--expires", expires_in_s),
    )
    host_name = socket.gethostname()[:128] or "unknown"
    asked = AuthorizeDevice(scope=words, host_name=host_name, project_id=project, key_expires_in_s=expires_in_s)
    device = DeviceSignIn(url=address)
    try:
        begun = device.begin(asked)
    except NotFound:
        hint = f"Log in with a key: giornata login {address} --key. Or with --email ADDRESS."
        raise NotFound(f"{address} has no sign-in by a browser: its version is older", hint=hint) from None
    out.say(f"Open {begun.verification_uri} in a browser, and enter the code {begun.user_code}")
    out.hint(f"The code is good for {begun.expires_in // 60} minutes. Approve nobody else's code.")
    if opens and has_browser():
        webbrowser.open(begun.verification_uri_complete)
    return device.wait(begun)


def has_browser() -> bool:
    """Return True where a browser can be shown: a terminal in front of a person, and a display."""
    shows = sys.platform == "darwin" or any(os.environ.get(name) for name in DISPLAYS)
    return shows and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ
