"""Links that sign the operator of this machine in, once each. `giornata up` prints one.

A link is kept by its hash in the memory of the process that made it, and ends with the process.
"""

import threading

from giornata.control.access.keys import secret_hash
from giornata.control.access.signing_in.sessions import OpenedSession, Visitor, open_session
from giornata.control.access.users import new_user
from giornata.control.audit_log.record import SYSTEM, record
from giornata.control.context import Context
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Unauthenticated
from giornata.protocol.project.admin import ROOT_PROJECT

LINK_MS = 24 * 3600 * 1000
OPERATOR_EMAIL = "operator@localhost"
REFUSAL = "this link was used, or is too old; restart the server for another one, or sign in with a password"


class SignInLinks:
    """The links of one process that were not used yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends_ms: dict[str, int] = {}

    def make(self, ctx: Context) -> str:
        """Return the secret of a new link, good for a day."""
        secret = ctx.names.secret()
        with self._lock:
            self._ends_ms[secret_hash(secret)] = ctx.clock.now_ms() + LINK_MS
        return secret

    def enter(self, ctx: Context, secret: str, visitor: Visitor, *, earlier: str | None) -> OpenedSession:
        """Open a session for the operator of this machine; the session of the secret `earlier` ends. The first link
        makes the account, with a random password that is not kept. Raises Unauthenticated. Slow: for a thread.
        """
        with self._lock:
            ends_ms = self._ends_ms.pop(secret_hash(secret), 0)
        if ctx.clock.now_ms() >= ends_ms:
            raise Unauthenticated(REFUSAL)
        user_id = _operator(ctx)
        with ctx.store.begin() as tx:
            return open_session(ctx, tx, user_id, visitor, earlier=earlier)


def _operator(ctx: Context) -> str:
    """Return the id of the account of this machine's operator, which is made when it is missing."""
    with ctx.store.read() as tx:
        known = tx.users.by_email(OPERATOR_EMAIL)
    if known is not None:
        return known.id
    nobody_knows = ctx.passwords.hash(ctx.names.secret())
    user = new_user(ctx, OPERATOR_EMAIL, "Operator", nobody_knows, created_by=None)
    with ctx.store.begin() as tx:
        if tx.users.add(user):
            tx.users.set_operator(user.id, operator=True)
            record(tx, SYSTEM, AuditVerb.USER_CREATE, user.id, at_ms=user.created_at_ms, project_id=ROOT_PROJECT)
            return user.id
        found = tx.users.by_email(OPERATOR_EMAIL)
    if found is None:
        raise Unauthenticated(REFUSAL)
    return found.id
