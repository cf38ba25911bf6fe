"""People: accounts, members of projects, invitations, and sessions."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from giornata.protocol.model import Label, Message, Reply
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.secrets import Confidential

MOST_INVITATION_TTL_S = 30 * 24 * 3600
PROJECT_HEADER = "X-Project"
CSRF_HEADER = "X-CSRF-Token"
_PART = r"[^@\s\x00-\x1f\x7f]"
Email = Annotated[str, StringConstraints(max_length=254, pattern=rf"^{_PART}{{1,64}}@{_PART}{{1,189}}$")]
Password = Annotated[Confidential, Field(min_length=12, max_length=256)]
"""A new password. No rule asks for kinds of characters (NIST SP 800-63B, section 5.1.1.2)."""


class Role(StrEnum):
    """The part that a person has in a project, from the least to the most."""

    VIEWER = "viewer"
    MEMBER = "member"
    OWNER = "owner"


class CreateUser(Message):
    """`POST /v1/users` (root admin only)."""

    email: Email
    name: Label | None = None
    password: Password
    operator: bool = Field(False, description="true: the person may govern the installation and every project.")


class ChangeUser(Message):
    """`PATCH /v1/users/{id}` (root admin only). A field that is not given stays as it is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    operator: bool | None = None
    active: bool | None = Field(None, description="false: end every session and every key of the person for ever.")
    password: Password | None = Field(None, description="A new password. Every session of the person ends.")

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if self.operator is None and self.active is None and self.password is None:
            raise ValueError("give operator, active, password, or several of them")
        return self


class User(Reply):
    """A person with a local account."""

    id: str
    email: str
    name: str
    operator: bool
    created_at: datetime
    created_by: str | None = None
    deactivated_at: datetime | None = None


class UserPage(Reply):
    """`GET /v1/users`: all people, newest first."""

    items: tuple[User, ...]
    next: str | None = None


class SetMember(Message):
    """The body of `PUT /v1/projects/{id}/members/{user_id}`."""

    role: Role


class ProjectMember(Reply):
    """A person in a project."""

    user_id: str
    project_id: str
    email: str
    name: str
    role: Role
    created_at: datetime
    created_by: str | None = None


class MemberPage(Reply):
    """`GET /v1/projects/{id}/members`: all of them, by address."""

    items: tuple[ProjectMember, ...]
    next: str | None = None


class CreateInvitation(Message):
    """`POST /v1/invitations`. Whoever has the link may take part in the project, once."""

    project_id: str | None = Field(
        None, max_length=64, description="Id of another project than the caller's. Root admin only."
    )
    role: Role = Role.VIEWER
    expires_in_s: int = Field(7 * 24 * 3600, ge=60, le=MOST_INVITATION_TTL_S)


class ProjectInvitation(Reply):
    """An invitation without its secret."""

    id: str
    project_id: str
    role: Role
    created_at: datetime
    created_by: str | None = None
    expires_at: datetime
    accepted_at: datetime | None = None
    accepted_by: str | None = None
    revoked_at: datetime | None = None


class CreatedInvitation(ProjectInvitation):
    """The only time that the secret is shown. The link is `<server>/invitation#<secret>`."""

    secret: str


class InvitationPage(Reply):
    """`GET /v1/invitations`: those of the project, newest first."""

    items: tuple[ProjectInvitation, ...]
    next: str | None = None


class SignIn(Message):
    """The body of `POST /v1/session`, which signs in."""

    email: Email
    password: Annotated[Confidential, Field(min_length=1, max_length=256)]


class AcceptInvitation(SignIn):
    """`POST /v1/invitations/accept`. An unknown address becomes an account; a known one needs its own password."""

    secret: Annotated[Confidential, Field(min_length=1, max_length=256)]
    name: Label | None = None


class ChangePassword(Message):
    """`POST /v1/me/password`. Every other session of the person ends."""

    password: Annotated[Confidential, Field(min_length=1, max_length=256, description="Present password.")]
    new_password: Password


class UserSession(Reply):
    """A session of a person: one browser or program that signed in."""

    id: str
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime
    address: str = Field(description="Network address from which the person signed in.")
    agent: str = Field(description="User-Agent of the browser or program that signed in.")
    current: bool = False


class SessionPage(Reply):
    """`GET /v1/sessions`: the sessions of the caller that have not ended."""

    items: tuple[UserSession, ...]
    next: str | None = None


class SignedIn(Reply):
    """A session with what a program needs to use it. The cookie comes beside it."""

    session: UserSession
    csrf_token: str = Field(description=f"Send it as {CSRF_HEADER} with each request but GET and HEAD.")
    user: User
    project_id: str | None = Field(None, description="Id of the project that the invitation led to.")


class Me(Reply):
    """`GET /v1/me`: what the key or the session of this request may do."""

    project_id: str
    scopes: tuple[Scope, ...]
    operator: bool = Field(description="true: the caller may govern the installation.")
    key_id: str | None = Field(None, description="Id of the key. null for a session.")
    session_id: str | None = None
    user: User | None = Field(None, description="The person behind the key or the session.")
    projects: tuple[ProjectMember, ...] = Field((), description="The memberships of the person.")
