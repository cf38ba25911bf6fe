"""Queries for people: accounts, memberships, invitations, sessions, and sign-ins that failed."""

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from giornata.control.ports.user_queries import people_store
from giornata.control.ports.user_queries.people_store import (
    FailedSignIns,
    InvitationRecord,
    LiveSession,
    MemberRecord,
    MembershipRecord,
    SessionRecord,
    UserRecord,
)
from giornata.control.ports.user_queries.user_store import Before
from giornata.protocol.account.people import Role
from giornata.store.database.rows import Queries, among, columns, insert_for, insert_unless_there, record_of
from giornata.store.schema import failed_sign_ins, invitations, memberships, sessions, users

_Query = sa.Select[tuple[object, ...]]
USER_COLUMNS = columns(users, UserRecord)
INVITATION_COLUMNS = columns(invitations, InvitationRecord)
SESSION_COLUMNS = columns(sessions, SessionRecord)
LIVE = (
    sa.select(*(sessions.c[name] for name in ("id", "expires_at_ms", "last_used_at_ms")))
    .add_columns(users.c.operator, memberships.c.project_id, memberships.c.role)
    .join(users, users.c.id == sessions.c.user_id)
    .outerjoin(memberships, memberships.c.user_id == users.c.id)
    .where(sessions.c.revoked_at_ms.is_(None), users.c.deactivated_at_ms.is_(None))
)
MEMBERS = sa.select(*memberships.c, users.c.email, users.c.name).join(users, users.c.id == memberships.c.user_id)


class Users(Queries, people_store.Users):
    def add(self, user: UserRecord) -> bool:
        row = insert_unless_there(self._dialect_name, users, **asdict(user))
        return self._connection.execute(row).first() is not None

    def get(self, user_id: str) -> UserRecord | None:
        return self._one(sa.select(*USER_COLUMNS).where(users.c.id == user_id))

    def lock(self, user_id: str) -> UserRecord | None:
        return self._one(sa.select(*USER_COLUMNS).where(users.c.id == user_id).with_for_update())

    def by_email(self, email: str) -> UserRecord | None:
        return self._one(sa.select(*USER_COLUMNS).where(users.c.email == email))

    def page(self, *, before: Before, limit: int) -> list[UserRecord]:
        query = _newest(sa.select(*USER_COLUMNS), users, before, limit)
        return [record_of(UserRecord, row) for row in self._connection.execute(query)]

    def set_operator(self, user_id: str, *, operator: bool) -> None:
        self._set(user_id, operator=operator)

    def set_deactivated(self, user_id: str, at_ms: int | None) -> None:
        self._set(user_id, deactivated_at_ms=at_ms)

    def set_password(self, user_id: str, password_hash: str) -> None:
        self._set(user_id, password_hash=password_hash)

    def _set(self, user_id: str, **values: object) -> None:
        self._connection.execute(sa.update(users).where(users.c.id == user_id).values(values))

    def _one(self, query: sa.Select[tuple[object, ...]]) -> UserRecord | None:
        row = self._connection.execute(query).first()
        return None if row is None else record_of(UserRecord, row)


class Memberships(Queries, people_store.Memberships):
    def role(self, user_id: str, project_id: str) -> str | None:
        return self._connection.scalar(sa.select(memberships.c.role).where(_of(user_id, project_id)))

    def put(self, member: MembershipRecord) -> None:
        statement = insert_for(self._dialect_name, memberships).values(**asdict(member))
        keys = ["project_id", "user_id"]
        self._connection.execute(statement.on_conflict_do_update(index_elements=keys, set_={"role": member.role}))

    def drop(self, user_id: str, project_id: str) -> bool:
        return self._connection.execute(sa.delete(memberships).where(_of(user_id, project_id))).rowcount == 1

    def lock_owners(self, project_id: str) -> Sequence[str]:
        active = sa.select(users.c.id).where(users.c.deactivated_at_ms.is_(None))
        query = (
            sa.select(memberships.c.user_id)
            .where(memberships.c.project_id == project_id, memberships.c.role == Role.OWNER)
            .where(memberships.c.user_id.in_(active))
            .order_by(memberships.c.user_id)  # everybody locks in one order
            .with_for_update()
        )
        return list(self._connection.scalars(query))

    def of_project(self, project_id: str) -> list[MemberRecord]:
        query = MEMBERS.where(memberships.c.project_id == project_id).order_by(users.c.email)
        return [record_of(MemberRecord, row) for row in self._connection.execute(query)]

    def of_user(self, user_id: str) -> list[MemberRecord]:
        query = MEMBERS.where(memberships.c.user_id == user_id)
        query = query.order_by(memberships.c.created_at_ms, memberships.c.project_id)
        return [record_of(MemberRecord, row) for row in self._connection.execute(query)]


class Invitations(Queries, people_store.Invitations):
    def add(self, invitation: InvitationRecord) -> None:
        self._connection.execute(sa.insert(invitations).values(**asdict(invitation)))

    def get(self, invitation_id: str, *, project_id: str | None) -> InvitationRecord | None:
        query = sa.select(*INVITATION_COLUMNS).where(invitations.c.id == invitation_id)
        return self._one(query if project_id is None else query.where(invitations.c.project_id == project_id))

    def by_secret(self, secret_sha256: str) -> InvitationRecord | None:
        return self._one(sa.select(*INVITATION_COLUMNS).where(invitations.c.secret_sha256 == secret_sha256))

    def page(self, *, project_id: str, before: Before, limit: int) -> list[InvitationRecord]:
        query = sa.select(*INVITATION_COLUMNS).where(invitations.c.project_id == project_id)
        rows = self._connection.execute(_newest(query, invitations, before, limit))
        return [record_of(InvitationRecord, row) for row in rows]

    def accept(self, invitation_id: str, *, user_id: str, at_ms: int) -> bool:
        good = (invitations.c.id == invitation_id) & _open() & (invitations.c.expires_at_ms > at_ms)
        values = {"accepted_at_ms": at_ms, "accepted_by": user_id}
        return self._connection.execute(sa.update(invitations).where(good).values(values)).rowcount == 1

    def revoke(self, invitation_id: str, *, at_ms: int) -> None:
        this = (invitations.c.id == invitation_id) & _open()
        self._connection.execute(sa.update(invitations).where(this).values(revoked_at_ms=at_ms))

    def revoke_of(self, user_id: str, *, project_id: str | None, at_ms: int) -> None:
        of_it = (invitations.c.user_id == user_id) & _open()
        of_it = of_it if project_id is None else of_it & (invitations.c.project_id == project_id)
        self._connection.execute(sa.update(invitations).where(of_it).values(revoked_at_ms=at_ms))

    def _one(self, query: sa.Select[tuple[object, ...]]) -> InvitationRecord | None:
        row = self._connection.execute(query).first()
        return None if row is None else record_of(InvitationRecord, row)


class Sessions(Queries, people_store.Sessions):
    def add(self, session: SessionRecord) -> None:
        self._connection.execute(sa.insert(sessions).values(**asdict(session)))

    def by_secret(self, secret_sha256: str) -> SessionRecord | None:
        return self._one(sessions.c.secret_sha256 == secret_sha256)

    def get(self, session_id: str) -> SessionRecord | None:
        return self._one(sessions.c.id == session_id)

    def live(self, session_ids: Sequence[str]) -> Sequence[LiveSession]:
        query = LIVE.where(among(self._dialect_name, sessions.c.id, "wanted"))
        found: dict[str, LiveSession] = {}
        for row in self._connection.execute(query, {"wanted": list(session_ids)}):
            roles = {} if row.role is None else {row.project_id: row.role}
            known = found.get(row.id)
            found[row.id] = LiveSession(
                id=row.id,
                expires_at_ms=row.expires_at_ms,
                last_used_at_ms=row.last_used_at_ms,
                operator=row.operator,
                roles=roles if known is None else {**known.roles, **roles},
            )
        return list(found.values())

    def page(self, *, user_id: str, live_at_ms: int, before: Before, limit: int) -> list[SessionRecord]:
        query = sa.select(*SESSION_COLUMNS).where(sessions.c.user_id == user_id, sessions.c.revoked_at_ms.is_(None))
        query = query.where(sessions.c.expires_at_ms > live_at_ms)
        rows = self._connection.execute(_newest(query, sessions, before, limit))
        return [record_of(SessionRecord, row) for row in rows]

    def revoke(self, session_id: str, *, user_id: str, at_ms: int) -> bool:
        this = (sessions.c.id == session_id) & (sessions.c.user_id == user_id)
        ended = sa.func.coalesce(sessions.c.revoked_at_ms, at_ms)
        return self._connection.execute(sa.update(sessions).where(this).values(revoked_at_ms=ended)).rowcount == 1

    def revoke_all(self, user_id: str, *, at_ms: int, but: str | None = None) -> None:
        live = (sessions.c.user_id == user_id) & sessions.c.revoked_at_ms.is_(None)
        live = live if but is None else live & (sessions.c.id != but)
        self._connection.execute(sa.update(sessions).where(live).values(revoked_at_ms=at_ms))

    def used(self, session_ids: Sequence[str], *, at_ms: int, unless_since_ms: int) -> None:
        # Two servers that note several at once lock the rows in one order.
        stale = sa.select(sessions.c.id).where(among(self._dialect_name, sessions.c.id, "wanted"))
        stale = stale.where(sessions.c.last_used_at_ms < unless_since_ms).order_by(sessions.c.id).with_for_update()
        statement = sa.update(sessions).where(sessions.c.id.in_(stale)).values(last_used_at_ms=at_ms)
        self._connection.execute(statement, {"wanted": list(session_ids)})

    def forget(self, *, ended_before_ms: int, limit: int) -> int:
        ended = (sessions.c.expires_at_ms < ended_before_ms) | (sessions.c.revoked_at_ms < ended_before_ms)
        some = sa.select(sessions.c.id).where(ended).limit(limit).with_for_update(skip_locked=True)
        return self._connection.execute(sa.delete(sessions).where(sessions.c.id.in_(some))).rowcount

    def _one(self, condition: sa.ColumnElement[bool]) -> SessionRecord | None:
        row = self._connection.execute(sa.select(*SESSION_COLUMNS).where(condition)).first()
        return None if row is None else record_of(SessionRecord, row)


class SignIns(Queries, people_store.SignIns):
    def lock(self, account_sha256: str, address: str, *, at_ms: int) -> FailedSignIns:
        none = {"failures": 0, "closed_until_ms": 0, "latest_at_ms": at_ms}
        place = {"account_sha256": account_sha256, "address": address}
        statement = insert_for(self._dialect_name, failed_sign_ins).values(**place, **none)
        # An update of nothing locks the row, and returns it also when somebody has just deleted it.
        as_it_is = {"failures": failed_sign_ins.c.failures}
        statement = statement.on_conflict_do_update(index_elements=list(place), set_=as_it_is)
        counted = statement.returning(failed_sign_ins.c.failures, failed_sign_ins.c.closed_until_ms)
        row = self._connection.execute(counted).one()
        return FailedSignIns(failures=row.failures, closed_until_ms=row.closed_until_ms)

    def note(self, account_sha256: str, address: str, failed: FailedSignIns, *, at_ms: int) -> None:
        statement = sa.update(failed_sign_ins).where(_from(account_sha256, address))
        self._connection.execute(statement.values(**asdict(failed), latest_at_ms=at_ms))

    def clear(self, account_sha256: str, address: str) -> None:
        self._connection.execute(sa.delete(failed_sign_ins).where(_from(account_sha256, address)))

    def forget(self, *, latest_before_ms: int, limit: int) -> int:
        place = sa.tuple_(failed_sign_ins.c.account_sha256, failed_sign_ins.c.address)
        old = sa.select(failed_sign_ins.c.account_sha256, failed_sign_ins.c.address)
        old = old.where(failed_sign_ins.c.latest_at_ms < latest_before_ms).limit(limit)
        old = old.with_for_update(skip_locked=True)
        return self._connection.execute(sa.delete(failed_sign_ins).where(place.in_(old))).rowcount


def _newest(query: _Query, table: sa.Table, before: Before, limit: int) -> _Query:
    query = query.order_by(table.c.created_at_ms.desc(), table.c.id.desc()).limit(limit)
    return query if before is None else query.where(sa.tuple_(table.c.created_at_ms, table.c.id) < before)


def _of(user_id: str, project_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(memberships.c.project_id == project_id, memberships.c.user_id == user_id)


def _open() -> sa.ColumnElement[bool]:
    return sa.and_(invitations.c.accepted_at_ms.is_(None), invitations.c.revoked_at_ms.is_(None))


def _from(account_sha256: str, address: str) -> sa.ColumnElement[bool]:
    return sa.and_(failed_sign_ins.c.account_sha256 == account_sha256, failed_sign_ins.c.address == address)
