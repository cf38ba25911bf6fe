"""The queries for people: accounts, memberships, invitations, sessions, and sign-ins that failed.

Instants are epoch milliseconds of the server's clock. Pages are newest first; `before` is the (created_at_ms, id) of
the last row of the page before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from giornata.control.ports.user_queries.user_store import Before


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A person with a local account. `email` is in lower case."""

    id: str
    email: str
    name: str
    password_hash: str = field(repr=False)
    operator: bool
    created_at_ms: int
    created_by: str | None
    deactivated_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRecord:
    """A person's role in a project."""

    project_id: str
    user_id: str
    role: str
    created_at_ms: int
    created_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord(MembershipRecord):
    """A membership with the person's own words."""

    email: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvitationRecord:
    """An invitation as stored: the sha256 of its secret. `user_id` is the person behind its maker."""

    id: str
    project_id: str
    role: str
    secret_sha256: str
    created_at_ms: int
    created_by: str | None
    user_id: str | None
    expires_at_ms: int
    accepted_at_ms: int | None = None
    accepted_by: str | None = None
    revoked_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session as stored: the sha256 of its secret."""

    id: str
    user_id: str
    secret_sha256: str
    created_at_ms: int
    expires_at_ms: int
    last_used_at_ms: int
    address: str
    agent: str
    revoked_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSession:
    """A session that nobody revoked, of an active person: what the person is, and the role in each project."""

    id: str
    expires_at_ms: int
    last_used_at_ms: int
    operator: bool
    roles: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSignIns:
    """The failures of one account from one address since the latest success. No attempt is taken before
    `closed_until_ms`.
    """

    failures: int
    closed_until_ms: int


class Users(Protocol):
    """Queries for the accounts of people."""

    def add(self, user: UserRecord) -> bool:
        """Insert the person; False when the address is taken."""

    def get(self, user_id: str) -> UserRecord | None:
        """Return the person, active or not; None when there is none of this id."""

    def lock(self, user_id: str) -> UserRecord | None:
        """Return the person, whose row and memberships stay locked until this transaction ends."""

    def by_email(self, email: str) -> UserRecord | None:
        """Return the person with exactly this address, active or not; None when there is none."""

    def page(self, *, before: Before, limit: int) -> list[UserRecord]:
        """Return at most `limit` people that were added before `before`, newest first."""

    def set_operator(self, user_id: str, *, operator: bool) -> None:
        """Make the person an operator of the installation, or end that."""

    def set_deactivated(self, user_id: str, at_ms: int | None) -> None:
        """Deactivate the person at this instant (epoch milliseconds); None activates the person again."""

    def set_password(self, user_id: str, password_hash: str) -> None:
        """Replace the hash of the person's password."""


class Memberships(Protocol):
    """Queries for the roles of people in projects."""

    def role(self, user_id: str, project_id: str) -> str | None:
        """Return the person's role in the project; None without a membership."""

    def put(self, member: MembershipRecord) -> None:
        """Insert the membership, or change the role of the one that is there."""

    def drop(self, user_id: str, project_id: str) -> bool:
        """Delete the membership; False when there is none."""

    def lock_owners(self, project_id: str) -> Sequence[str]:
        """Return the ids of the project's active owners; nobody else changes the role of one meanwhile."""

    def of_project(self, project_id: str) -> list[MemberRecord]:
        """Return all members, by address."""

    def of_user(self, user_id: str) -> list[MemberRecord]:
        """Return the person's memberships, oldest first."""


class Invitations(Protocol):
    """Queries for invitations, by the hash of their secret."""

    def add(self, invitation: InvitationRecord) -> None:
        """Insert a new invitation, whose id and secret are unused."""

    def get(self, invitation_id: str, *, project_id: str | None) -> InvitationRecord | None:
        """Return the invitation, open or not; None when there is none. `project_id` None: of any project."""

    def by_secret(self, secret_sha256: str) -> InvitationRecord | None:
        """Return the invitation whose secret has this hash, open or not; None when there is none."""

    def page(self, *, project_id: str, before: Before, limit: int) -> list[InvitationRecord]:
        """Return at most `limit` invitations of the project that were made before `before`, newest first."""

    def accept(self, invitation_id: str, *, user_id: str, at_ms: int) -> bool:
        """Use the invitation up; False when it was used, was revoked, or has expired."""

    def revoke(self, invitation_id: str, *, at_ms: int) -> None:
        """Revoke an invitation that was neither used nor revoked."""

    def revoke_of(self, user_id: str, *, project_id: str | None, at_ms: int) -> None:
        """Revoke the open invitations behind which this person stands, in one project or in all."""


class Sessions(Protocol):
    """Queries for sessions, by the hash of their secret."""

    def add(self, session: SessionRecord) -> None:
        """Insert a new session, whose id and secret are unused."""

    def by_secret(self, secret_sha256: str) -> SessionRecord | None:
        """Return the session whose secret has this hash, ended or not; None when there is none."""

    def get(self, session_id: str) -> SessionRecord | None:
        """Return the session, ended or not; None when there is none of this id."""

    def live(self, session_ids: Sequence[str]) -> Sequence[LiveSession]:
        """Return those that nobody revoked and whose people are active, expired or not. One statement."""

    def page(self, *, user_id: str, live_at_ms: int, before: Before, limit: int) -> list[SessionRecord]:
        """Return the person's sessions that have not ended at this instant."""

    def revoke(self, session_id: str, *, user_id: str, at_ms: int) -> bool:
        """Revoke one session of the person; False when there is none."""

    def revoke_all(self, user_id: str, *, at_ms: int, but: str | None = None) -> None:
        """Revoke the person's sessions, apart from the one with the id `but`."""

    def used(self, session_ids: Sequence[str], *, at_ms: int, unless_since_ms: int) -> None:
        """Note the use of each, unless one was noted at or after `unless_since_ms`. One statement."""

    def forget(self, *, ended_before_ms: int, limit: int) -> int:
        """Delete sessions that ended before this instant; return their number."""


class SignIns(Protocol):
    """Queries that count sign-ins which failed, by account and address."""

    def lock(self, account_sha256: str, address: str, *, at_ms: int) -> FailedSignIns:
        """Return the failures; nobody else counts one for the same account and address meanwhile."""

    def note(self, account_sha256: str, address: str, failed: FailedSignIns, *, at_ms: int) -> None:
        """Write the failures, the latest of which was at `at_ms`. `lock` must have returned them."""

    def clear(self, account_sha256: str, address: str) -> None:
        """Forget the failures of this account from this address."""

    def forget(self, *, latest_before_ms: int, limit: int) -> int:
        """Delete counts whose latest failure was before this instant; return their number."""
