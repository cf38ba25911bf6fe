"""The commands of `giornata secrets`: set, list and delete."""

import sys
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, check_message, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import ago
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.project.secrets import SetSecret

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the secret: letters, digits, - and _.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the command group `secrets` to `app`."""
    secrets = typer.Typer(no_args_is_help=True, help="Store tokens that jobs need, such as for gated models.")
    secrets.command("set")(set_secret)
    secrets.command("list")(list_secrets)
    secrets.command("delete")(delete_secret)
    app.add_typer(secrets, name="secrets")


def set_secret(context: typer.Context, name: Name, as_json: JsonFlag = False) -> None:
    """Store a secret. The value comes from standard input: giornata secrets set HUB < token.txt"""
    with reporting(as_json, see=("secrets", "list")) as out:
        value = _read_value(name)
        with connect(settings_of(context)) as client:
            kept = client.set_secret(name, value)
            out.say(f"{kept.name} is stored")
            out.hint(f"  use it   --set hub_token_secret={kept.name}, or wandb_api_key_secret={kept.name}")
            out.result(kept)


def _read_value(name: str) -> str:
    """Read the value from a prompt or from standard input, without surrounding space. Raises InvalidInput."""
    value = (typer.prompt(f"Value of {name}", hide_input=True) if sys.stdin.isatty() else sys.stdin.read()).strip()
    if not value:
        raise InvalidInput([Fault(where="standard input", message="is empty", hint="write the value to it")])
    check_message(SetSecret, value=("standard input", value))
    return value


def list_secrets(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the names of the project's secrets. The values cannot be read."""
    with reporting(as_json, see=("secrets", "list")) as out, connect(settings_of(context)) as client:
        secrets = client.secrets()
        rows = [(each.name, ago(each.created_at), ago(each.changed_at), each.created_by or "") for each in secrets]
        if rows or not out.live:
            out.table(("name", "made", "changed", "by"), rows, spare=(3,))
        else:
            out.hint(f"No secrets. Store one with: {giornata('secrets', 'set', 'NAME')} < FILE")
        out.result({"items": [each.model_dump(mode="json") for each in secrets]})


def delete_secret(context: typer.Context, name: Name, as_json: JsonFlag = False) -> None:
    """Delete a secret of the project."""
    with reporting(as_json, see=("secrets", "list")) as out, connect(settings_of(context)) as client:
        client.delete_secret(name)
        out.say(f"{name} is deleted")
        out.result({"name": name, "deleted": True})
