"""The accounts at OpenID providers that are linked to a person: listed, and unlinked."""

import hashlib
from collections.abc import Sequence

from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.user_queries.people_store import UserRecord
from giornata.control.ports.user_queries.sign_in_store import IdentityRecord
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, Forbidden, NotFound
from giornata.protocol.account.sign_in import LinkedIdentities, LinkedIdentity
from giornata.protocol.project.admin import ROOT_PROJECT

ID_DIGITS = 32


def list_identities(ctx: Context, caller: Caller) -> LinkedIdentities:
    """Return the accounts of the caller's person, first linked first. Raises Forbidden without a person."""
    user_id = _require_person(caller)
    with ctx.store.read() as tx:
        user, linked = tx.users.get(user_id), tx.identities.of_user(user_id)
    items = tuple(_reply(ctx, each) for each in linked)
    return LinkedIdentities(items=items, password=user is not None and _has_password(user))


def unlink_identity(ctx: Context, caller: Caller, identity_id: str) -> None:
    """Have the provider's account sign the person in no more. Sessions and keys go on.

    Raises Forbidden without a person, NotFound, and Conflict for the last way to sign in.
    """
    user_id = _require_person(caller)
    with ctx.store.begin() as tx:
        # Two that unlink at a time take turns, so that one of them finds the last way.
        user, linked = tx.users.lock(user_id), tx.identities.of_user(user_id)
        found = next((each for each in linked if _identity_id(each) == identity_id), None)
        if user is None or found is None:
            raise NotFound(f"there is no linked account {identity_id[:64]}")
        rest = [each for each in linked if each != found]
        if not _can_sign_in(ctx, user, rest):
            raise Conflict(
                "this is your last way to sign in: link another account, or have an operator set a password"
            )
        tx.identities.remove(found.issuer, found.subject, user_id=user_id)
        now_ms, verb = ctx.clock.now_ms(), AuditVerb.IDENTITY_UNLINK
        record_call(
            tx, caller, verb, user_id, at_ms=now_ms, project_id=ROOT_PROJECT, changes={"identity": identity_id}
        )


def _require_person(caller: Caller) -> str:
    if not caller.acts_as_person or caller.user_id is None:
        raise Forbidden("this takes a person: sign in, or use the key of giornata login")
    return caller.user_id


def _can_sign_in(ctx: Context, user: UserRecord, linked: Sequence[IdentityRecord]) -> bool:
    return _has_password(user) or any(each.issuer == ctx.identity_provider.issuer for each in linked)


def _has_password(user: UserRecord) -> bool:
    return bool(user.password_hash)


def _identity_id(identity: IdentityRecord) -> str:
    """Return a name for addresses. The provider's own may hold any character."""
    named = f"{identity.issuer}\0{identity.subject}"
    return f"identity_{hashlib.sha256(named.encode()).hexdigest()[:ID_DIGITS]}"


def _reply(ctx: Context, identity: IdentityRecord) -> LinkedIdentity:
    return LinkedIdentity(
        id=_identity_id(identity),
        issuer=identity.issuer,
        subject=identity.subject,
        linked_at=instant(identity.created_at_ms),
        signs_in=identity.issuer == ctx.identity_provider.issuer,
    )
