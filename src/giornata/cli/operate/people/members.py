"""`giornata project members`, `role`, `remove`, `invite`, `invitations`, `uninvite` and `join`."""

import socket
from typing import Annotated
from urllib.parse import urlsplit

import typer
from pydantic import SecretStr

from giornata.cli.operate.people.login import read_password, save_context
from giornata.cli.options import JsonFlag, check_message, seconds_of, settings_of
from giornata.cli.settings.connection import connect, target_of
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import ago, ahead
from giornata.client.calls.people_calls import personal_key
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.account.people import AcceptInvitation, CreateInvitation, ProjectInvitation, Role
from giornata.protocol.project.admin import CreateKey

INVITATION_PATH = "/invitation"
ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's id.", show_default=False)]
OwnProject = Annotated[
    str | None,
    typer.Argument(metavar="[PROJECT]", help="Id of the project. Default: your own project.", show_default=False),
]
UserId = Annotated[
    str,
    typer.Argument(metavar="USER", help="Id of the person: giornata project members.", show_default=False),
]


def add_member_commands(project: typer.Typer) -> None:
    """Add the commands about members to the group `project`."""
    project.command("members")(list_members)
    project.command("role")(set_role)
    project.command("remove")(remove_member)
    project.command("invite")(invite)
    project.command("invitations")(list_invitations)
    project.command("uninvite")(uninvite)
    project.command("join")(join)


def list_members(context: typer.Context, project_id: OwnProject = None, as_json: JsonFlag = False) -> None:
    """List the members of a project with their roles."""
    with reporting(as_json, see=("project", "list")) as out, connect(settings_of(context)) as client:
        project_id = project_id or client.me().project_id
        members = client.members(project_id)
        rows = [(each.email, each.name, each.role, ago(each.created_at), each.user_id) for each in members]
        if rows or not out.live:
            out.table(("address", "name", "role", "joined", "id"), rows, spare=(3,))
        else:
            out.hint(f"No members. Invite one with: {giornata('project', 'invite', project_id)}")
        out.result({"items": [each.model_dump(mode="json") for each in members]})


def set_role(
    context: typer.Context,
    project_id: ProjectId,
    user_id: UserId,
    role: Annotated[Role, typer.Argument(help="New role of the member.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Give a member another role. An operator may add a person this way."""
    with reporting(as_json, see=("project", "members", project_id)) as out, connect(settings_of(context)) as client:
        member = client.set_member(project_id, user_id, role)
        out.say(f"{member.email} is {member.role} in {project_id}")
        out.result(member)


def remove_member(context: typer.Context, project_id: ProjectId, user_id: UserId, as_json: JsonFlag = False) -> None:
    """Remove a member. The keys that this person made in the project end."""
    with reporting(as_json, see=("project", "members", project_id)) as out, connect(settings_of(context)) as client:
        member = client.remove_member(project_id, user_id)
        out.say(f"{member.email} is no member of {project_id} any more")
        out.result(member)


def invite(
    context: typer.Context,
    project_id: OwnProject = None,
    role: Annotated[Role, typer.Option(help="Role of the person who accepts.")] = Role.VIEWER,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="Time for which the link is valid, such as 7d or 12h.")
    ] = "7d",
    as_json: JsonFlag = False,
) -> None:
    """Make a link that lets one person join a project. The command shows the link once."""
    with reporting(as_json, see=("project", "invitations")) as out:
        expires_in_s = seconds_of(expires, where="--expires")
        check_message(CreateInvitation, project_id=("PROJECT", project_id), expires_in_s=("--expires", expires_in_s))
        with connect(settings := settings_of(context)) as client:
            wanted = CreateInvitation(project_id=project_id, role=role, expires_in_s=expires_in_s)
            made = client.create_invitation(wanted)
            link = f"{settings.public_url or target_of(settings).url}{INVITATION_PATH}#{made.secret}"
            out.say(link)
            out.hint(f"Send the link to one person. It is good once, until {made.expires_at:%Y-%m-%d %H:%M} UTC.")
            out.hint(f"  to accept it   giornata project join '{link}' ADDRESS")
            out.result({**made.model_dump(mode="json"), "link": link})


def list_invitations(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the invitations of your project without their links."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = list(client.invitations())
        rows = [(each.role, ago(each.created_at), _standing(each), each.created_by or "", each.id) for each in found]
        out.table(("role", "made", "", "by", "id"), rows, spare=(3,))
        out.result({"items": [each.model_dump(mode="json") for each in found]})


def _standing(invitation: ProjectInvitation) -> str:
    if invitation.accepted_by:
        return f"accepted by {invitation.accepted_by}"
    return "revoked" if invitation.revoked_at else f"open, ends {ahead(invitation.expires_at)}"


def uninvite(
    context: typer.Context,
    invitation_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the invitation.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Revoke an invitation: the server refuses its link from now on."""
    with reporting(as_json, see=("project", "invitations")) as out, connect(settings_of(context)) as client:
        found = client.revoke_invitation(invitation_id)
        out.say(f"{found.id} is {'used already' if found.accepted_by else 'revoked'}")
        out.result(found)


def join(
    link: Annotated[str, typer.Argument(metavar="LINK", help="The link of the invitation.", show_default=False)],
    email: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="Mail address of your account.", show_default=False),
    ],
    name: Annotated[
        str | None, typer.Option(help="Your name. Default: the first part of the address.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Accept an invitation, and use its server from now on. The command asks for the password.

    An unknown address becomes an account with this password. A known one needs its own. The command makes a key with
    the reach of your role and saves the key.
    """
    with reporting(as_json) as out:
        url, secret = _parts(link)
        check_message(
            AcceptInvitation, email=("ADDRESS", email), name=("--name", name), password=("", "p"), secret=("", "s")
        )
        password = read_password(email)
        given = {"email": email, "password": password, "secret": secret} | ({} if name is None else {"name": name})
        wanted = CreateKey(name=f"giornata project join on {socket.gethostname()}"[:128])
        me, made = personal_key(url, AcceptInvitation.model_validate(given), key=wanted)
        called, file = save_context(url, SecretStr(made.secret), key_id=made.id)
        out.say(f"joined {me.project_id} at {url}")
        out.hint(f"  saved as      {called}, in {file}")
        out.result({"name": called, "url": url, "project": me.project_id, "key_id": made.id})


def _parts(link: str) -> tuple[str, str]:
    """Return the server and the secret of a link. Raises InvalidInput."""
    address, _, secret = link.partition("#")
    parts = urlsplit(address)
    is_one = parts.scheme in {"http", "https"} and parts.hostname and parts.path.endswith(INVITATION_PATH)
    if not is_one or not secret.startswith("gi_"):
        hint = "quote it for the shell: 'https://SERVER/invitation#gi_…'"
        raise InvalidInput([Fault(where="LINK", message="is not the link of an invitation", hint=hint)])
    return address.removesuffix(INVITATION_PATH), secret
