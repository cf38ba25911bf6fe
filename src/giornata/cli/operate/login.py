"""`giornata login`, `logout`, `contexts` and `use`: servers that this user works with."""

import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from pydantic import SecretStr

from giornata.cli.options import JsonFlag, check_message
from giornata.cli.settings.contexts import LOCAL, Contexts, SavedContext, contexts_file, read_contexts, write_contexts
from giornata.cli.ui.output import Output, reporting
from giornata.client import Backoff, Client
from giornata.client.people_calls import personal_key
from giornata.domain.errors import Fault, Forbidden, InvalidInput, Unauthenticated
from giornata.protocol.admin import CreateKey
from giornata.protocol.people import SignIn

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RETRIES = 1
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
ContextName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the saved server, as `giornata contexts` shows it.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add `login`, `logout`, `contexts` and `use` to `app`."""
    app.command()(login)
    app.command()(logout)
    app.command("contexts")(list_contexts)
    app.command()(use)


def login(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="URL of the server, such as https://gpu.example.com.", show_default=False),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the saved server. Default: the server's host.", show_default=False)
    ] = None,
    email: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Mail address of your account: the command asks for its password, and makes a key.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Use a server from now on. The command asks for the key, or with --email for the password.

    In a script the key or the password comes from standard input: giornata login URL < key.txt. If the server does
    not accept it, nothing is saved.
    """
    with reporting(as_json) as out:
        address, called = _checked(context, url, name)
        key = _read_key(address) if email is None else _new_key(address, email)
        projects = _projects_of(address, key)
        _, file = save_context(address, SecretStr(key), called)
        out.say(f"logged in to {address}, project {', '.join(projects[:3])}{' …' if len(projects) > 3 else ''}")
        out.hint(f"  saved as      {called}, in {file}")
        out.hint("  go back       giornata use local")
        if address.startswith("http:") and urlsplit(address).hostname not in LOOPBACK:
            out.hint("  beware        http sends the key in clear; use https outside a network that you trust")
        out.result({"name": called, "url": address, "projects": projects})


def logout(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Name of the saved server. Default: the server in use.", show_default=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Forget a server and its key. The key stays valid: giornata key revoke ends it."""
    with reporting(as_json) as out:
        file = contexts_file()
        saved = read_contexts(file)
        gone = name or saved.current
        if gone is None:
            known = ", ".join(sorted(saved.contexts))
            hint = f"name one of: {known}" if known else "there is none; log in with: giornata login URL"
            raise InvalidInput([Fault(where="NAME", message="no context is in use", hint=hint)])
        saved.named(gone)
        rest = {each: saved.contexts[each] for each in saved.contexts if each != gone}
        current = None if saved.current == gone else saved.current
        write_contexts(file, Contexts(current=current, contexts=rest))
        out.say(f"{gone} is forgotten; commands use {_place(current, rest)}")
        out.result({"name": gone, "current": current or LOCAL})


def list_contexts(as_json: JsonFlag = False) -> None:
    """List the servers that giornata login has saved.

    A star marks the server in use.
    """
    with reporting(as_json) as out:
        saved = read_contexts(contexts_file())
        items = [{"name": LOCAL, "url": None, "current": saved.in_use is None}]
        items += [
            {"name": name, "url": each.url, "current": name == saved.current}
            for name, each in sorted(saved.contexts.items())
        ]
        here = "the installation on this machine"
        rows = [("*" if each["current"] else "", str(each["name"]), str(each["url"] or here)) for each in items]
        out.table(("", "context", "server"), rows)
        _say_overruled(out)
        out.result({"items": items})


def use(name: ContextName, as_json: JsonFlag = False) -> None:
    """Use another saved server, or the installation on this machine.

    The installation on this machine is called local.
    """
    with reporting(as_json) as out:
        file = contexts_file()
        saved = read_contexts(file)
        current = None if name == LOCAL else name
        if current is not None:
            saved.named(current)
        write_contexts(file, Contexts(current=current, contexts=saved.contexts))
        out.say(f"commands use {_place(current, saved.contexts)}")
        _say_overruled(out)
        out.result({"current": name})


def _place(current: str | None, contexts: Mapping[str, SavedContext]) -> str:
    if current is None:
        return "the installation on this machine"
    return f"{current}, {contexts[current].url}"


def _say_overruled(out: Output) -> None:
    """The environment wins over a context, which is easy to forget."""
    named = [each for each in ("GIORNATA_URL", "GIORNATA_DATA") if os.environ.get(each)]
    if named:
        out.hint(f"the context is overruled by {' and '.join(named)} in the environment")


def _checked(context: typer.Context, url: str, name: str | None) -> tuple[str, str]:
    """The address and the name. Raises InvalidInput with every fault."""
    faults = []
    parts, shown = urlsplit(url), url.partition("#")[0]
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.fragment:
        hint = "such as https://gpu.example.com; no key belongs into it"
        faults.append(Fault(where="URL", message=f"{shown!r} is not the address of a server", hint=hint))
    if context.find_root().params.get("api_key") is not None:
        message = "would be visible in the list of processes"
        faults.append(
            Fault(where="--api-key", message=message, hint="leave the option out; the command asks for the key")
        )
    called = name or parts.netloc.rpartition("@")[2].replace(":", "-")
    if called == LOCAL or (NAME.fullmatch(called) is None and not faults):
        hint = "letters, digits, dots and dashes; local is the installation on this machine"
        faults.append(Fault(where="--name", message=f"{called!r} is not a valid name", hint=hint))
    if faults:
        raise InvalidInput(faults)
    return url.rstrip("/"), called


def _read_key(address: str) -> str:
    """Read the key from a prompt, or from standard input. Raises InvalidInput."""
    prompt = f"Key for {address}"
    key = (typer.prompt(prompt, hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()).strip()
    if not key:
        hint = f"type it, or write it to standard input: giornata login {address} < key.txt"
        raise InvalidInput([Fault(where="key", message="is empty", hint=hint)])
    return key


def _new_key(address: str, email: str) -> str:
    """Sign in with a password, and return a new key of the person's. Raises InvalidInput, Unauthenticated."""
    check_message(SignIn, email=("--email", email), password=("", "p"))
    person = SignIn.model_validate({"email": email, "password": read_password(email)})
    wanted = CreateKey(name=f"giornata login on {socket.gethostname()}"[:128])
    return personal_key(address, person, key=wanted)[1].secret


def read_password(email: str) -> str:
    """Read the password of an account from a prompt, or from standard input. Raises InvalidInput."""
    prompt = f"Password of {email}"
    is_typed = sys.stdin.isatty()
    password = typer.prompt(prompt, hide_input=True, err=True) if is_typed else sys.stdin.read().rstrip("\r\n")
    if not password:
        hint = "type it, or write it to standard input"
        raise InvalidInput([Fault(where="password", message="is empty", hint=hint)])
    return str(password)


def save_context(address: str, key: SecretStr, called: str | None = None) -> tuple[str, Path]:
    """Keep a server with its key, and use it from now on. Returns the name of the context and its file."""
    file = contexts_file()
    saved = read_contexts(file)
    name = called or urlsplit(address).netloc.replace(":", "-")
    entry = SavedContext(url=address, api_key=key)
    write_contexts(file, Contexts(current=name, contexts={**saved.contexts, name: entry}))
    return name, file


def _projects_of(address: str, key: str) -> list[str]:
    """Return the sorted ids of the projects that the key reaches.

    Raises GiornataError when the server does not answer, does not know the key, or the key is one for nodes.
    """
    with Client(address, key, backoff=Backoff(retries=RETRIES)) as client:
        try:
            return sorted(project.id for project in client.projects())
        except Unauthenticated:
            hint = "Check that the whole key was copied. An administrator makes one: giornata key create"
            raise Unauthenticated(f"{address} does not know this key", hint=hint) from None
        except Forbidden:
            hint = "Log in with a key of scope member or admin. A node joins with: giornata node --join URL#KEY"
            raise Forbidden("this key is one for nodes", hint=hint) from None
