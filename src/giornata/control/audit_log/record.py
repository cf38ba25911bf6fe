"""Write rows of the audit log, in the transaction of the change that they tell of.

A row holds ids, numbers and words of this program, and names where they are what a thing is known by: those of
secrets, models and fleets. It holds no secret, no token, no prompt, no caption, and no address of mail.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from giornata.control.caller import NO_REQUEST, Caller, RequestOrigin
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.audit_log_store import NewAuditRow
from giornata.domain.accounts.audit_log import ActorKind, AuditVerb

MOST_ADDRESS_CHARS = 64
MOST_TARGET_CHARS = 512
NONE: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditActor:
    """The one who makes a change, and from where. `key_id` is the id of the key or of the session."""

    kind: ActorKind
    id: str = ""
    key_id: str = ""
    origin: RequestOrigin = NO_REQUEST


SYSTEM = AuditActor(kind=ActorKind.SYSTEM)


def actor_of(caller: Caller) -> AuditActor:
    """Return the person behind the caller, or else the key."""
    kind = ActorKind.KEY if caller.user_id is None else ActorKind.USER
    if caller.is_root_admin:
        kind = ActorKind.OPERATOR
    return AuditActor(kind=kind, id=caller.user_id or caller.key_id, key_id=caller.key_id, origin=caller.origin)


def audit_row(
    actor: AuditActor, verb: AuditVerb, target: str, *, at_ms: int, project_id: str, changes: Mapping[str, Any] = NONE
) -> NewAuditRow:
    """Return a row. `changes` are values of JSON: text, whole numbers, true, false, null, lists and objects."""
    return NewAuditRow(
        project_id=project_id,
        at_ms=at_ms,
        actor_kind=actor.kind,
        actor=actor.id,
        key_id=actor.key_id,
        address=actor.origin.address[:MOST_ADDRESS_CHARS],
        request_id=actor.origin.request_id,
        verb=verb,
        target=target[:MOST_TARGET_CHARS],
        changes=changes,
    )


def record(
    tx: Transaction,
    actor: AuditActor,
    verb: AuditVerb,
    target: str,
    *,
    at_ms: int,
    project_id: str,
    changes: Mapping[str, Any] = NONE,
) -> None:
    """Insert a row for a change of this transaction: both are committed, or neither is."""
    tx.audit_log.add_each([audit_row(actor, verb, target, at_ms=at_ms, project_id=project_id, changes=changes)])


def record_call(
    tx: Transaction,
    caller: Caller,
    verb: AuditVerb,
    target: str,
    *,
    at_ms: int,
    project_id: str | None = None,
    changes: Mapping[str, Any] = NONE,
) -> None:
    """Insert a row for a change that the caller makes in the own project, or in `project_id`."""
    owner = caller.project_id if project_id is None else project_id
    record(tx, actor_of(caller), verb, target, at_ms=at_ms, project_id=owner, changes=changes)
