"""A project's secrets: set, listed by name, deleted, handed to the node that does a job which names one.

The sealed text names its project, so that a row which was moved in the database cannot be opened.
"""

import json
import re

from giornata.control.access.permissions import require_admin
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.user_store import SecretRecord
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Fault, InvalidInput, NotFound, Unavailable
from giornata.protocol.project.secrets import NAME_PATTERN, Secret, SecretPage, SetSecret

# Nothing that JSON would write in another way: what an engine says is searched for the value (agent.engine_process).
PRINTABLE = re.compile(r"""[^"\\\x00-\x20\x7f-\U0010ffff]+""")


def set_secret(ctx: Context, caller: Caller, name: str, request: SetSecret) -> Secret:
    """Keep a value under this name, in the place of the one before.

    Raises Forbidden for a caller that is no admin, InvalidInput, and Unavailable where nothing can be sealed.
    """
    require_admin(caller)
    faults = name_faults(name)
    value = request.value.get_secret_value()
    if PRINTABLE.fullmatch(value) is None:
        hint = "leave out spaces and line ends"
        message = "is not one line of visible ASCII characters without quotes"
        faults.append(Fault(where="value", message=message, hint=hint))
    if faults:
        raise InvalidInput(faults)
    now_ms = ctx.clock.now_ms()
    sealed = ctx.sealer.seal(json.dumps([caller.project_id, name, value]))
    record = SecretRecord(
        project_id=caller.project_id,
        name=name,
        sealed=sealed,
        created_at_ms=now_ms,
        changed_at_ms=now_ms,
        created_by=caller.maker,
    )
    with ctx.store.begin() as tx:
        tx.secrets.put(record)
        record_call(tx, caller, AuditVerb.SECRET_SET, name, at_ms=now_ms)
        kept = tx.secrets.get(caller.project_id, name)
    return _reply(kept or record)


def list_secrets(ctx: Context, caller: Caller) -> SecretPage:
    """Return the names of the project's secrets. Raises Forbidden for a caller that is no admin."""
    require_admin(caller)
    with ctx.store.read() as tx:
        return SecretPage(items=tuple(map(_reply, tx.secrets.of_project(caller.project_id))))


def delete_secret(ctx: Context, caller: Caller, name: str) -> Secret:
    """Forget a value. Raises Forbidden for a caller that is no admin, and NotFound."""
    require_admin(caller)
    if faults := name_faults(name):
        raise InvalidInput(faults)
    with ctx.store.begin() as tx:
        record = tx.secrets.get(caller.project_id, name)
        if record is None or not tx.secrets.drop(caller.project_id, name):
            raise NotFound(f"this project has no secret {name}")
        record_call(tx, caller, AuditVerb.SECRET_DELETE, name, at_ms=ctx.clock.now_ms())
    return _reply(record)


def secret_value(tx: Transaction, ctx: Context, project_id: str, name: str, *, where: str) -> str:
    """Return the secret's value for a node. Raises InvalidInput, whose fault names the secret and stands at `where`,
    when the secret is gone or cannot be unsealed: no job starts without its secret.
    """
    record = tx.secrets.get(project_id, name)
    if record is None:
        message, hint = f"this project has no secret {name}", f"keep it first: giornata secrets set {name}"
        raise InvalidInput([Fault(where=where, message=message, hint=hint)])
    try:
        owner, called, value = json.loads(ctx.sealer.unseal(record.sealed))
    except Unavailable:
        owner, called, value = "", "", ""
    if (owner, called) != (project_id, name):
        message = f"the secret {name} cannot be opened: it was not sealed with this server's secrets_key"
        hint = f"start the server with the key of before, or set it again: giornata secrets set {name}; then retry"
        raise InvalidInput([Fault(where=where, message=message, hint=hint)])
    return str(value)


def name_faults(name: str) -> list[Fault]:
    """Return the fault of a text that cannot name a secret; nothing for one that can."""
    if re.fullmatch(NAME_PATTERN, name):
        return []
    hint = "letters, digits, - and _, beginning with a letter; 64 at most"
    return [Fault(where="name", message="is not the name of a secret", hint=hint)]


def _reply(record: SecretRecord) -> Secret:
    return Secret(
        name=record.name,
        created_at=instant(record.created_at_ms),
        changed_at=instant(record.changed_at_ms),
        created_by=record.created_by,
    )
