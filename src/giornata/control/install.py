"""The first start of an installation."""

from giornata.control.context import Foundations
from giornata.control.create_key import draw_key
from giornata.control.ports.records import ProjectRecord
from giornata.control.ports.user_store import UserTransaction
from giornata.domain.errors import Unavailable
from giornata.protocol.admin import ROOT_PROJECT, Scope


def install(ctx: Foundations) -> str | None:
    """Write the installation's signing key, the operator's project and an admin key, once.

    Returns that key's secret, which is stored nowhere; None when the installation has its rows already. Of servers
    that start together one gets the secret.
    """
    now_ms = ctx.clock.now_ms()
    secret, key = draw_key(ctx, project_id=ROOT_PROJECT, scope=Scope.ADMIN, name="first admin key")
    with ctx.store.begin() as tx:
        if not tx.projects.install(signing_key=ctx.names.secret(), at_ms=now_ms):
            return None
        tx.projects.add(ProjectRecord(id=ROOT_PROJECT, name=ROOT_PROJECT, created_at_ms=now_ms))
        tx.keys.add(key)
    return secret


def signing_key(ctx: Foundations) -> bytes:
    """What URLs and attempt tokens are signed with; read once in the life of a process. Raises Unavailable."""
    if ctx.memory.signing_key is None:
        with ctx.store.read() as tx:
            return signing_key_in(tx, ctx)
    return ctx.memory.signing_key


def signing_key_in(tx: UserTransaction, ctx: Foundations) -> bytes:
    """As `signing_key`, within a transaction that is there already."""
    if ctx.memory.signing_key is None:
        ctx.memory.signing_key = read_signing_key(tx)
    return ctx.memory.signing_key


def read_signing_key(tx: UserTransaction) -> bytes:
    """From the database, whatever is remembered. Raises Unavailable before `install`."""
    key = tx.projects.signing_key()
    if key is None:
        raise Unavailable("the installation has no signing key yet: `install` has not run on this database")
    return key.encode()
