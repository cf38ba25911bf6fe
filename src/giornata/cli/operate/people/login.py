"""`giornata login`, `logout`, `contexts` and `use`: servers that this user works with."""

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from pydantic import SecretStr

from giornata.cli.operate.people.device_login import device_key
from giornata.cli.options import JsonFlag, check_message, seconds_of
from giornata.cli.settings.contexts import LOCAL, Contexts, SavedContext, contexts_file, read_contexts, write_contexts
from giornata.cli.ui.output import Output, reporting
from giornata.client import Backoff, Client
from giornata.client.calls.people_calls import personal_key
from giornata.domain.errors import Fault, Forbidden, InvalidInput, NotFound, Unauthenticated, Unavailable
from giornata.protocol.account.people import SignIn
from giornata.protocol.project.admin import CreateKey, Scope

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RETRIES = 1
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
ContextName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the saved server, as `giornata contexts` shows it.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key to save. `key_id` is given if a login made it."""

    secret: str = field(repr=False)
    key_id: str | None = None


def register(app: typer.Typer) -> None:
    """Add `login`, `logout`, `contexts` and `use` to `app`."""
    app.command()(login)
    app.command()(logout)
    app.command("contexts")(list_contexts)
    app.command()(use)


def login(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            help="URL of the server, such as https://gpu.example.com. Default: the server in use.",
            show_default=False,
        ),
    ] = None,
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
    key: Annotated[
        bool, typer.Option("--key", help="Ask for a key, or read one from standard input, instead of signing in.")
    ] = False,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(
            help="Scope of the key that a sign-in makes; may be repeated. [default: member]", show_default=False
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Project of that key. Default: you choose it in the browser.", show_default=False),
    ] = None,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="Time after which that key ends, such as 30d or 12h.")
    ] = "90d",
    browser: Annotated[bool, typer.Option(help="Open the browser where there is one.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Use a server from now on. You approve the sign-in in a browser, here or on another machine.

    In a script use --key, or --email: the key or the password comes from standard input, as in giornata login URL
    --key < key.txt. If the server does not accept it, nothing is saved.
    """
    with reporting(as_json) as out:
        address, called = _checked(context, *_server(url, name))
        expires_in_s = seconds_of(expires, where="--expires")
        if key and email is not None:
            hint = "leave one out"
            raise InvalidInput([Fault(where="--key", message="--email is given as well", hint=hint)])
        if key:
            made = NewKey(secret=_read_key(address))
        elif email is not None:
            made = _new_key(address, email, project=project, expires_in_s=expires_in_s)
        else:
            scopes = scope or [Scope.MEMBER]
            taken = device_key(out, address, scopes=scopes, project=project, expires_in_s=expires_in_s, opens=browser)
            made = NewKey(secret=taken.access_token, key_id=taken.key_id)
            out.say(f"signed in as {taken.email}, with the scopes {taken.scope}")
        projects = _projects_of(address, made.secret)
        _, file = save_context(address, SecretStr(made.secret), called, key_id=made.key_id)
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
    keep_key: Annotated[
        bool, typer.Option("--keep-key", help="Forget the server without asking it: the key stays valid.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Forget a saved server, and revoke the key of the login.

    A key that you gave with --key stays valid: giornata key revoke ends it.
    """
    with reporting(as_json) as out:
        file = contexts_file()
        saved = read_contexts(file)
        gone = name or saved.current
        if gone is None:
            known = ", ".join(sorted(saved.contexts))
            hint = f"name one of: {known}" if known else "there is none; log in with: giornata login URL"
            raise InvalidInput([Fault(where="NAME", message="no context is in use", hint=hint)])
        ended = not keep_key and _ended(saved.named(gone))
        rest = {each: saved.contexts[each] for each in saved.contexts if each != gone}
        current = None if saved.current == gone else saved.current
        write_contexts(file, Contexts(current=current, contexts=rest))
        of_key = "its key has ended" if ended else "its key stays valid"
        out.say(f"{gone} is forgotten, and {of_key}; commands use {_place(current, rest)}")
        out.result({"name": gone, "current": current or LOCAL, "key_ended": ended})


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


def _server(url: str | None, name: str | None) -> tuple[str, str | None]:
    """Return the server that is named, or the one in use. Raises InvalidInput without either."""
    if url is not None:
        return url, name
    saved = read_contexts(contexts_file())
    if saved.in_use is None:
        hint = "name the server: giornata login https://gpu.example.com"
        raise InvalidInput([Fault(where="URL", message="no context is in use", hint=hint)])
    return saved.in_use.url, name or saved.current


def _ended(context: SavedContext) -> bool:
    """End the key that a login made; return False for another key. Raises Unreachable: then it would stay valid."""
    if context.key_id is None:
        return False
    with Client(context.url, context.api_key.get_secret_value(), backoff=Backoff(retries=RETRIES)) as client:
        try:
            client.revoke_key(context.key_id)
        except (Unauthenticated, NotFound):
            return True  # it had ended already
        except Unavailable as error:
            hint = "Try again, or forget the server alone: giornata logout --keep-key"
            raise Unavailable(f"the key could not be ended: {error}", hint=hint) from error
    return True


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
        hint = f"type it, or write it to standard input: giornata login {address} --key < key.txt"
        raise InvalidInput([Fault(where="key", message="is empty", hint=hint)])
    return key


def _new_key(address: str, email: str, *, project: str | None, expires_in_s: int) -> NewKey:
    """Sign in with a password, and return a new key of the person's. Raises InvalidInput, Unauthenticated."""
    check_message(SignIn, email=("--email", email), password=("", "p"))
    person = SignIn.model_validate({"email": email, "password": read_password(email)})
    check_message(CreateKey, expires_in_s=("--expires", expires_in_s), project_id=("--project", project))
    name = f"giornata login on {socket.gethostname()}"[:128]
    made = personal_key(address, person, key=CreateKey(name=name, project_id=project, expires_in_s=expires_in_s))[1]
    return NewKey(secret=made.secret, key_id=made.id)


def read_password(email: str) -> str:
    """Read the password of an account from a prompt, or from standard input. Raises InvalidInput."""
    prompt = f"Password of {email}"
    is_typed = sys.stdin.isatty()
    password = typer.prompt(prompt, hide_input=True, err=True) if is_typed else sys.stdin.read().rstrip("\r\n")
    if not password:
        hint = "type it, or write it to standard input"
        raise InvalidInput([Fault(where="password", message="is empty", hint=hint)])
    return str(password)


def save_context(
    address: str, key: SecretStr, called: str | None = None, *, key_id: str | None = None
) -> tuple[str, Path]:
    """Keep a server with its key, and use it from now on. Returns the name of the context and its file.

    `key_id` is given for a key that a logout is to end.
    """
    file = contexts_file()
    saved = read_contexts(file)
    name = called or urlsplit(address).netloc.replace(":", "-")
    entry = SavedContext(url=address, api_key=key, key_id=key_id)
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
            raise Forbidden("this key has the scope node, which only nodes can use", hint=hint) from None
