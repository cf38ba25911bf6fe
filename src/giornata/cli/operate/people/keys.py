"""`giornata key …` and `giornata project …`."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from giornata.cli.jobs.budget import NEGATIVE, find_project, money, monthly_money, project_budget
from giornata.cli.operate.people.members import add_member_commands
from giornata.cli.operate.project.end_of_life import add_retention_commands
from giornata.cli.operate.project.project_transfer import add_transfer_commands
from giornata.cli.operate.project.quotas import project_quotas
from giornata.cli.options import JsonFlag, check_message, seconds_of, settings_of
from giornata.cli.settings.connection import Invitation, connect, target_of
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import ago, ahead, micro_usd
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.picture import SafetyPolicy
from giornata.protocol.project.admin import USER_VERBS, CreateKey, CreateProject, Key, RotateKey, Scope, SetLimits

ProjectOption = Annotated[
    str | None, typer.Option("--project", help="Project of the key. Default: your own project.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the command groups `key` and `project` to `app`."""
    key = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.")
    key.command("create")(create_key)
    key.command("list")(list_keys)
    key.command("rotate")(rotate_key)
    key.command("revoke")(revoke_key)
    app.add_typer(key, name="key")
    project = typer.Typer(no_args_is_help=True, help="Create projects; set their quotas, budgets, members.")
    project.command("create")(create_project)
    project.command("list")(list_projects)
    project.command("limits")(project_limits)
    project.command("quotas", context_settings=NEGATIVE)(project_quotas)
    project.command("safety")(project_safety)
    project.command("budget", context_settings=NEGATIVE)(project_budget)
    add_member_commands(project)
    add_retention_commands(project)
    add_transfer_commands(project)
    app.add_typer(project, name="project")


def create_key(
    context: typer.Context,
    scope: Annotated[
        list[Scope] | None,
        typer.Option(help="Scope of the key; may be repeated. [default: member]", show_default=False),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the key.")] = "key",
    project: ProjectOption = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            help="With --scope node: only nodes of this fleet on your own machines may use the key.",
            show_default=False,
        ),
    ] = None,
    max_price: Annotated[
        str | None,
        typer.Option(
            metavar="USD",
            help="With --scope node: maximum price in US dollars per hour that a node may report. Default: the "
            "server's setting.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time after which the server refuses the key, such as 90d or 12h. Default: the key does not expire.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a key. The command shows its secret once."""
    with reporting(as_json, see=("project", "list")) as out:
        price = None if max_price is None else micro_usd(max_price, where="--max-price")
        expires_in_s = None if expires is None else seconds_of(expires, where="--expires")
        check_message(
            CreateKey,
            name=("--name", name),
            max_price_micro_usd_per_hour=("--max-price", price),
            expires_in_s=("--expires", expires_in_s),
        )
        scopes = scope or [Scope.MEMBER]
        with connect(settings := settings_of(context)) as client:
            made = client.create_key(
                scope=scopes[0],
                scopes=scopes if len(scopes) > 1 else None,
                name=name,
                project_id=project,
                fleet=fleet,
                max_price_micro_usd_per_hour=price,
                expires_in_s=expires_in_s,
            )
            out.say(made.secret)
            out.hint("Store the key now: it is not shown again.")
            if scopes == [Scope.NODE]:
                invitation = Invitation(url=settings.public_url or target_of(settings).url, key=made.secret)
                joined = "" if fleet is None else f" --fleet {fleet}"
                out.hint(f"On each machine that is to join as a node:\n  giornata node --join '{invitation}'{joined}")
            out.result(made)


def list_keys(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the keys without their secrets."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        keys = list(client.keys())
        rows = [
            (
                key.prefix,
                key.name,
                " ".join(key.scopes) if len(key.scopes) < len(USER_VERBS) and key.scopes else key.scope,
                key.project_id,
                ago(key.created_at),
                ago(key.last_used_at) if key.last_used_at else "never used",
                _ending(key),
                key.created_by or "",
                key.id,
            )
            for key in keys
        ]
        out.table(("prefix", "name", "scope", "project", "made", "used", "", "by", "id"), rows, spare=(3, 4, 5, 7))
        out.result({"items": [key.model_dump(mode="json") for key in keys]})


def _ending(key: Key) -> str:
    if key.revoked_at:
        return "revoked"
    if key.expires_at is None:
        return ""
    return "expired" if key.expires_at <= datetime.now(UTC) else f"expires {ahead(key.expires_at)}"


def rotate_key(
    context: typer.Context,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key.", show_default=False)],
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="Time for which the old secret stays valid, such as 1d or 0s.")
    ] = "1d",
    as_json: JsonFlag = False,
) -> None:
    """Give a key a new secret. The command shows the new secret once."""
    with reporting(as_json, see=("key", "list")) as out:
        overlap_s = seconds_of(overlap, where="--overlap")
        check_message(RotateKey, overlap_s=("--overlap", overlap_s))
        with connect(settings_of(context)) as client:
            made = client.rotate_key(key_id, overlap_s=overlap_s)
            out.say(made.secret)
            until = "ends now" if not overlap_s else f"is valid for another {overlap}"
            out.hint(f"Store the secret now: it is not shown again. The secret of before {until}.")
            out.result(made)


def revoke_key(
    context: typer.Context,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Revoke a key: the server refuses it from now on."""
    with reporting(as_json, see=("key", "list")) as out, connect(settings_of(context)) as client:
        key = client.revoke_key(key_id)
        out.say(f"{key.prefix}… is revoked")
        out.result(key)


def create_project(
    context: typer.Context,
    project_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the project: lower-case letters, digits and dashes.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the project for people. Default: its id.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a project (a tenant) in the installation."""
    with reporting(as_json) as out:
        check_message(CreateProject, id=("ID", project_id), name=("--name", name))
        with connect(settings_of(context)) as client:
            project = client.create_project(project_id, name=name)
            out.say(f"{project.id} is made")
            out.hint(f"  its first key   {giornata('key', 'create', '--project', project.id, '--scope', 'admin')}")
            out.result(project)


def list_projects(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the projects with their budgets and costs."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        projects = list(client.projects())
        rows = [
            (each.id, each.name, ago(each.created_at), *money(each), *monthly_money(each), each.created_by or "")
            for each in projects
        ]
        headers = ("id", "name", "made", "budget", "spent", "set aside", "a month", "spent in it", "by")
        out.table(headers, rows, right=(2, 3, 4, 5, 6, 7), spare=(8, 2, 1))
        out.result({"items": [each.model_dump(mode="json") for each in projects]})


def project_limits(
    context: typer.Context,
    project_id: Annotated[str, typer.Argument(metavar="ID", help="The project's id.", show_default=False)],
    max_pictures: Annotated[
        str | None,
        typer.Option(
            metavar="N|default",
            help="Maximum number of pictures in a dataset; default: the server's setting max_pictures.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show or set the limits of a project, apart from its budgets.

    Existing datasets stay as they are. Without an option the command shows the limits.
    """
    with reporting(as_json, see=("project", "list")) as out:
        most = None if max_pictures is None else _most_pictures(max_pictures)
        with connect(settings_of(context)) as client:
            if max_pictures is None:
                project = find_project(client, project_id)
            else:
                project = client.set_project_limits(project_id, max_pictures=most)
        shown = "unknown: the server is older" if project.max_pictures is None else str(project.max_pictures)
        out.say(f"{project.id}: most pictures of a dataset: {shown}")
        out.result(project)


def project_safety(
    context: typer.Context,
    project_id: Annotated[str, typer.Argument(metavar="ID", help="The project's id.", show_default=False)],
    policy: Annotated[
        SafetyPolicy | None,
        typer.Argument(
            metavar="off|flag|block",
            help="off: only orders that ask for it are checked. flag: unsafe pictures get a flag. block: unsafe "
            "pictures are not uploaded.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show or set a project's rule for pictures that the safety checker finds unsafe.

    A change holds within a minute, for pictures that no node has begun. Without a policy the command shows it.
    """
    with reporting(as_json, see=("project", "list")) as out:
        with connect(settings_of(context)) as client:
            if policy is None:
                project = find_project(client, project_id)
            else:
                project = client.set_project_safety(project_id, policy)
        out.say(f"{project.id}: unsafe pictures: {project.safety or 'unknown: the server is older'}")
        out.result(project)


def _most_pictures(text: str) -> int | None:
    if text == "default":
        return None
    if not text.isascii() or not text.isdigit():
        message, hint = f"{text!r} is not a number of pictures", "give a number such as 5000, or: default"
        raise InvalidInput([Fault(where="--max-pictures", message=message, hint=hint)])
    check_message(SetLimits, max_pictures=("--max-pictures", int(text)))
    return int(text)
