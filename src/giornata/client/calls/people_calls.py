"""The HTTP calls of people: accounts, members, invitations, keys, and signing in."""

from collections.abc import Iterator, Sequence

import httpx

from giornata.client.calls.operator_calls import OperatorCalls, quoted
from giornata.client.connection import Connection
from giornata.client.retry import Backoff
from giornata.client.trust import trusted
from giornata.protocol.account.notifications import Notifications, SetNotifications
from giornata.protocol.account.people import (
    CSRF_HEADER,
    PROJECT_HEADER,
    AcceptInvitation,
    ChangeUser,
    CreatedInvitation,
    CreateInvitation,
    CreateUser,
    InvitationPage,
    Me,
    MemberPage,
    ProjectInvitation,
    ProjectMember,
    Role,
    SetMember,
    SignedIn,
    SignIn,
    User,
    UserPage,
)
from giornata.protocol.account.sign_in import LinkedIdentities
from giornata.protocol.model import Reply
from giornata.protocol.project.admin import CreatedKey, CreateKey, Key, KeyPage, RotateKey, Scope


class PeopleCalls(OperatorCalls):
    """The part of `giornata.client.client.Client` that is about people and keys."""

    def me(self) -> Me:
        """Return what this key may do, and the person behind the key."""
        return self._get("/v1/me", Me)

    def identities(self) -> LinkedIdentities:
        """Return your accounts at OpenID providers. Raises Forbidden for a key that no login made."""
        return self._get("/v1/me/identities", LinkedIdentities)

    def unlink_identity(self, identity_id: str) -> None:
        """Unlink one of them. Raises NotFound, and Conflict for your last way to sign in."""
        path = f"/v1/me/identities/{quoted(identity_id)}"
        self._connection.call("DELETE", path, Reply, repeatable=False)

    def notifications(self) -> Notifications:
        """Return what you are told by mail of your jobs in the project. Raises Forbidden for a key of no login."""
        return self._get("/v1/me/notifications", Notifications)

    def set_notifications(self, wanted: SetNotifications) -> Notifications:
        """Be told by mail of your jobs in the project. Raises InvalidInput where the server sends no mail."""
        return self._connection.call("PUT", "/v1/me/notifications", Notifications, body=wanted)

    def users(self) -> Iterator[User]:
        """Yield all accounts, newest first (root admin only)."""
        return self._pages("/v1/users", UserPage)

    def create_user(self, user: CreateUser) -> User:
        """Make an account (root admin only). Raises Conflict when the address is taken."""
        return self._connection.call("POST", "/v1/users", User, body=user, repeatable=False)

    def change_user(self, user_id: str, change: ChangeUser) -> User:
        """Make a person an operator, or deactivate the account (root admin only). Raises NotFound."""
        return self._connection.call("PATCH", f"/v1/users/{quoted(user_id)}", User, body=change)

    def members(self, project_id: str) -> tuple[ProjectMember, ...]:
        """Return the members of a project, by address. Raises NotFound."""
        return self._get(f"{_members(project_id)}", MemberPage).items

    def set_member(self, project_id: str, user_id: str, role: Role) -> ProjectMember:
        """Give a member another role. Raises NotFound, and Conflict for the last owner."""
        path = f"{_members(project_id)}/{quoted(user_id)}"
        return self._connection.call("PUT", path, ProjectMember, body=SetMember(role=role))

    def remove_member(self, project_id: str, user_id: str) -> ProjectMember:
        """Remove a member with the keys that this person made in the project. Raises NotFound, Conflict."""
        path = f"{_members(project_id)}/{quoted(user_id)}"
        return self._connection.call("DELETE", path, ProjectMember, repeatable=False)

    def invitations(self) -> Iterator[ProjectInvitation]:
        """Yield the invitations of the project, newest first."""
        return self._pages("/v1/invitations", InvitationPage)

    def create_invitation(self, invitation: CreateInvitation) -> CreatedInvitation:
        """Make an invitation. Its `secret` is not shown again."""
        path = "/v1/invitations"
        return self._connection.call("POST", path, CreatedInvitation, body=invitation, repeatable=False)

    def revoke_invitation(self, invitation_id: str) -> ProjectInvitation:
        """Refuse the invitation from now on. Raises NotFound."""
        return self._connection.call("DELETE", f"/v1/invitations/{quoted(invitation_id)}", ProjectInvitation)

    def keys(self) -> Iterator[Key]:
        """Yield the project's API keys without their secrets."""
        return self._pages("/v1/keys", KeyPage)

    def create_key(
        self,
        *,
        scope: Scope = Scope.MEMBER,
        name: str = "key",
        project_id: str | None = None,
        fleet: str | None = None,
        max_price_micro_usd_per_hour: int | None = None,
        scopes: Sequence[Scope] | None = None,
        expires_in_s: int | None = None,
    ) -> CreatedKey:
        """A new key. Keep its `secret`: it is not shown again. `scopes` go before `scope`; for the rest see
        `CreateKey`.
        """
        limits: dict[str, object] = {
            "fleet": fleet,
            "max_price_micro_usd_per_hour": max_price_micro_usd_per_hour,
            "scopes": None if scopes is None else tuple(scopes),
            "expires_in_s": expires_in_s,
        }
        # A server of before does not know them.
        given = {name: value for name, value in limits.items() if value is not None}
        body = CreateKey.model_validate({"scope": scope, "name": name, "project_id": project_id, **given})
        return self._connection.call("POST", "/v1/keys", CreatedKey, body=body, repeatable=False)

    def revoke_key(self, key_id: str) -> Key:
        """The key is refused from now on."""
        return self._connection.call("DELETE", f"/v1/keys/{quoted(key_id)}", Key)

    def rotate_key(self, key_id: str, *, overlap_s: int = 86_400) -> CreatedKey:
        """Give a key a new `secret`; the one of before stays valid for `overlap_s`. Raises NotFound, Conflict."""
        path, body = f"/v1/keys/{quoted(key_id)}/rotate", RotateKey(overlap_s=overlap_s)
        return self._connection.call("POST", path, CreatedKey, body=body, repeatable=False)


def personal_key(url: str, person: SignIn, *, key: CreateKey) -> tuple[Me, CreatedKey]:
    """Sign in, or accept an invitation; make a key of the person's whole reach in the project; and sign out.

    Without an invitation it is the project of `key`, else the one that the person joined first. Raises
    Unauthenticated, SignInDelayed, and NotFound for an invitation that is of no use.
    """
    with httpx.Client(verify=trusted()) as client:
        connection = Connection(url, None, http=client, backoff=Backoff())
        path = "/v1/invitations/accept" if isinstance(person, AcceptInvitation) else "/v1/session"
        opened = connection.call("POST", path, SignedIn, body=person, repeatable=False)
        headers = {CSRF_HEADER: opened.csrf_token}
        if project_id := opened.project_id or key.project_id:
            headers[PROJECT_HEADER] = project_id
        me = connection.call("GET", "/v1/me", Me, headers=headers)
        wanted = key.model_copy(update={"scopes": me.scopes, "project_id": me.project_id, "login": True})
        body = CreateKey.model_validate(wanted.model_dump(exclude_none=True))
        made = connection.call("POST", "/v1/keys", CreatedKey, body=body, headers=headers, repeatable=False)
        connection.call("DELETE", "/v1/session", Reply, headers=headers, repeatable=False)
        return me, made


def _members(project_id: str) -> str:
    return f"/v1/projects/{quoted(project_id)}/members"
