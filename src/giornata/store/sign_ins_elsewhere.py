"""Queries for accounts at OpenID providers, and for sign-ins of devices."""

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from giornata.control.ports.user_queries import sign_in_store
from giornata.control.ports.user_queries.sign_in_store import DeviceSignInRecord, DeviceState, IdentityRecord
from giornata.store.database.rows import Queries, columns, insert_unless_there, record_of
from giornata.store.schema import device_sign_ins, user_identities

DEVICE_COLUMNS = columns(device_sign_ins, DeviceSignInRecord)
IDENTITY_COLUMNS = columns(user_identities, IdentityRecord)


class DeviceSignIns(Queries, sign_in_store.DeviceSignIns):
    def add(self, device: DeviceSignInRecord) -> bool:
        row = insert_unless_there(self._dialect_name, device_sign_ins, **asdict(device))
        return self._connection.execute(row).first() is not None

    def by_user_code(self, user_code_sha256: str, *, at_ms: int) -> DeviceSignInRecord | None:
        waits = (device_sign_ins.c.state == DeviceState.PENDING) & (device_sign_ins.c.expires_at_ms > at_ms)
        return self._one(sa.select(*DEVICE_COLUMNS).where(_coded(user_code_sha256), waits))

    def lock(self, device_code_sha256: str) -> DeviceSignInRecord | None:
        this = device_sign_ins.c.device_code_sha256 == device_code_sha256
        return self._one(sa.select(*DEVICE_COLUMNS).where(this).with_for_update())

    def approve(self, device_id: str, *, user_id: str, project_id: str, scope: str, at_ms: int) -> bool:
        values = {"state": DeviceState.APPROVED, "user_id": user_id, "project_id": project_id, "scope": scope}
        return self._decide(device_id, values, at_ms)

    def deny(self, device_id: str, *, user_id: str, at_ms: int) -> bool:
        return self._decide(device_id, {"state": DeviceState.DENIED, "user_id": user_id}, at_ms)

    def polled(self, device_id: str, *, at_ms: int, interval_s: int) -> None:
        values = {"polled_at_ms": at_ms, "interval_s": interval_s}
        self._connection.execute(sa.update(device_sign_ins).where(device_sign_ins.c.id == device_id).values(values))

    def take(self, device_id: str) -> bool:
        approved = (device_sign_ins.c.id == device_id) & (device_sign_ins.c.state == DeviceState.APPROVED)
        taken = sa.update(device_sign_ins).where(approved).values(state=DeviceState.TAKEN)
        return self._connection.execute(taken).rowcount == 1

    def waiting(self, address: str, *, at_ms: int) -> int:
        from_it = (device_sign_ins.c.address == address) & (device_sign_ins.c.expires_at_ms > at_ms)
        query = sa.select(sa.func.count()).select_from(device_sign_ins).where(from_it)
        return self._connection.execute(query).scalar_one()

    def forget(self, *, expired_before_ms: int, limit: int) -> int:
        old = sa.select(device_sign_ins.c.id).where(device_sign_ins.c.expires_at_ms < expired_before_ms)
        old = old.limit(limit).with_for_update(skip_locked=True)
        return self._connection.execute(sa.delete(device_sign_ins).where(device_sign_ins.c.id.in_(old))).rowcount

    def _decide(self, device_id: str, values: dict[str, str], at_ms: int) -> bool:
        waits = (device_sign_ins.c.state == DeviceState.PENDING) & (device_sign_ins.c.expires_at_ms > at_ms)
        decided = sa.update(device_sign_ins).where(device_sign_ins.c.id == device_id, waits).values(values)
        return self._connection.execute(decided).rowcount == 1

    def _one(self, query: sa.Select[tuple[object, ...]]) -> DeviceSignInRecord | None:
        row = self._connection.execute(query).first()
        return None if row is None else record_of(DeviceSignInRecord, row)


class UserIdentities(Queries, sign_in_store.UserIdentities):
    def user_of(self, issuer: str, subject: str) -> str | None:
        this = (user_identities.c.issuer == issuer) & (user_identities.c.subject == subject)
        return self._connection.scalar(sa.select(user_identities.c.user_id).where(this))

    def add(self, issuer: str, subject: str, *, user_id: str, at_ms: int) -> bool:
        values = {"issuer": issuer, "subject": subject, "user_id": user_id, "created_at_ms": at_ms}
        row = insert_unless_there(self._dialect_name, user_identities, **values)
        return self._connection.execute(row).first() is not None

    def of_user(self, user_id: str) -> Sequence[IdentityRecord]:
        query = sa.select(*IDENTITY_COLUMNS).where(user_identities.c.user_id == user_id)
        query = query.order_by(user_identities.c.created_at_ms, user_identities.c.issuer, user_identities.c.subject)
        return [record_of(IdentityRecord, row) for row in self._connection.execute(query)]

    def remove(self, issuer: str, subject: str, *, user_id: str) -> bool:
        this = (user_identities.c.issuer == issuer) & (user_identities.c.subject == subject)
        gone = sa.delete(user_identities).where(this, user_identities.c.user_id == user_id)
        return self._connection.execute(gone).rowcount == 1


def _coded(user_code_sha256: str) -> sa.ColumnElement[bool]:
    return device_sign_ins.c.user_code_sha256 == user_code_sha256
