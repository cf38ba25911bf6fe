"""`giornata identity …`: your accounts at the OpenID provider."""

from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import ago


def register(app: typer.Typer) -> None:
    """Add the command group `identity` to `app`."""
    identity = typer.Typer(no_args_is_help=True, help="List and unlink your accounts at the OpenID provider.")
    identity.command("list")(list_identities)
    identity.command("unlink")(unlink_identity)
    app.add_typer(identity, name="identity")


def list_identities(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the accounts at the OpenID provider that sign you in, and whether you have a password."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = client.identities()
        rows = [
            (each.issuer, each.subject, _standing(each.signs_in), ago(each.linked_at), each.id)
            for each in found.items
        ]
        out.table(("provider", "account", "", "linked", "id"), rows, spare=(3,))
        out.say("You have a password, too." if found.password else "You have no password.")
        out.result(found)


def unlink_identity(
    context: typer.Context,
    identity_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the linked account.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Unlink an account. Your last way to sign in is refused.

    Existing sessions and keys stay valid: end them, too, if the account was not yours.
    """
    with reporting(as_json, see=("identity", "list")) as out, connect(settings_of(context)) as client:
        client.unlink_identity(identity_id)
        out.say(f"{identity_id} is unlinked")
        out.result({"id": identity_id})


def _standing(signs_in: bool) -> str:
    return "" if signs_in else "not asked any more"
