"""`giornata user …` and `giornata whoami`."""

from typing import Annotated

import typer

from giornata.cli.operate.people.login import read_password
from giornata.cli.options import JsonFlag, check_message, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import ago
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.account.people import ChangeUser, CreateUser, User


def register(app: typer.Typer) -> None:
    """Add the command group `user` and the command `whoami` to `app`."""
    user = typer.Typer(no_args_is_help=True, help="Create, list and change the accounts of people.")
    user.command("create")(create_user)
    user.command("list")(list_users)
    user.command("change")(change_user)
    app.add_typer(user, name="user")
    app.command()(whoami)


def create_user(
    context: typer.Context,
    email: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Mail address, the name of the account.", show_default=False)
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the person. Default: first part of the address.", show_default=False),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="The person may govern the installation and every project.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create an account. The password comes from a prompt or from standard input.

    To let a person choose the password, send an invitation: giornata project invite
    """
    with reporting(as_json, see=("user", "list")) as out:
        password = read_password(email)
        check_message(
            CreateUser,
            email=("ADDRESS", email),
            name=("--name", name),
            password=("password", password),
            operator=("--operator", operator),
        )
        given = {"email": email, "name": name, "password": password, "operator": operator}
        with connect(settings_of(context)) as client:
            user = client.create_user(CreateUser.model_validate(given))
            out.say(f"{user.email} is made: {user.id}")
            out.result(user)


def list_users(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the accounts of the installation, newest first."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        users = list(client.users())
        rows = [(each.email, each.name, _standing(each), ago(each.created_at), each.id) for each in users]
        out.table(("address", "name", "", "made", "id"), rows, spare=(3,))
        out.result({"items": [each.model_dump(mode="json") for each in users]})


def change_user(
    context: typer.Context,
    user_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the account.", show_default=False)],
    operator: Annotated[
        bool | None,
        typer.Option("--operator/--no-operator", help="The person may govern the installation.", show_default=False),
    ] = None,
    active: Annotated[
        bool | None,
        typer.Option(
            "--active/--inactive", help="Inactive: every session and key of the person ends.", show_default=False
        ),
    ] = None,
    password: Annotated[
        bool, typer.Option("--password", help="Ask for a new password. Every session of the person ends.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a person an operator, set a new password, or deactivate an account."""
    with reporting(as_json, see=("user", "list")) as out:
        new_password = read_password(user_id) if password else None
        check_message(ChangeUser, active=("", True), password=("password", new_password))
        fields = {"operator": operator, "active": active, "password": new_password}
        given = {name: value for name, value in fields.items() if value is not None}
        if not given:
            hint = "give --operator, --no-operator, --active, --inactive or --password"
            raise InvalidInput([Fault(where="options", message="no change is given", hint=hint)])
        with connect(settings_of(context)) as client:
            user = client.change_user(user_id, ChangeUser.model_validate(given))
            out.say(f"{user.email}: {_standing(user) or 'active'}")
            out.result(user)


def _standing(user: User) -> str:
    if user.deactivated_at is not None:
        return "inactive"
    return "operator" if user.operator else ""


def whoami(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Show the project, the scopes and the person of your key."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        me = client.me()
        out.say(f"  project   {me.project_id}" + (", governs the installation" if me.operator else ""))
        out.say(f"  scopes    {' '.join(me.scopes)}")
        out.say(f"  key       {me.key_id}")
        if me.user is not None:
            out.say(f"  person    {me.user.name} <{me.user.email}>, {me.user.id}")
        out.result(me)
