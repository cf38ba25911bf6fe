"""The admin key that the operator's settings name, such as one from a Secret of Kubernetes."""

import logging

from giornata.control.context import Foundations
from giornata.control.create_key import key_of, secret_hash
from giornata.control.install import GIVEN_KEY_NAME
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.admin import ROOT_PROJECT, Scope

log = logging.getLogger("giornata.rights")


def put_admin_key(ctx: Foundations, secret: str) -> None:
    """Let this key govern the installation, and revoke the key that the settings named before. May be repeated.

    Keys that were made by `install` or by `create_key` stay as they are. A key that was revoked stays revoked, and an
    error is logged. Raises InvalidInput for a key that was made for something else.
    """
    now_ms = ctx.clock.now_ms()
    wanted = key_of(ctx, secret, project_id=ROOT_PROJECT, scope=Scope.ADMIN, name=GIVEN_KEY_NAME)
    with ctx.store.begin() as tx:
        admins = [tx.keys.get(each, project_id=ROOT_PROJECT) for each in tx.keys.lock_admins(ROOT_PROJECT)]
        known = tx.keys.by_secret(secret_hash(secret))
        if known is not None and known.revoked_at_ms is not None:
            log.error("admin_key names the key %s, which was revoked and stays so; give another key", known.id)
            return
        if known is not None and (known.project_id, known.scope) != (ROOT_PROJECT, Scope.ADMIN):
            message = f"is the key {known.id} of scope {known.scope} of the project {known.project_id}"
            hint = "give a key that is used for nothing else"
            raise InvalidInput([Fault(where="admin_key", message=message, hint=hint)])
        if known is None:
            tx.keys.add(wanted)
        for each in admins:
            if each is not None and each.name == GIVEN_KEY_NAME and each.secret_sha256 != wanted.secret_sha256:
                tx.keys.revoke(each.id, at_ms=now_ms)
                log.info("the admin key %s was revoked: the settings name another key", each.id)
    ctx.memory.forget_callers()
