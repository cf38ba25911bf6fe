"""Give rows of the audit log their places in the chains.

Rows are inserted without a number, so that writers of one project do not wait for one another. Here they get numbers
and hashes, in the order of their ids, in one transaction that no other server shares. A row that commits late gets a
later number: no row is ever missed, and no number is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from giornata.control.context import Foundations
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.audit_log_store import AuditLog, AuditLogRow
from giornata.domain.accounts.audit_log import HASH_FIELD, ChainLink, linked
from giornata.domain.errors import Unavailable

AT_ONCE = 500
ANY_NUMBER = 2**63 - 1
LOOP_NAME = "audit-log"


def exported_row(row: AuditLogRow) -> dict[str, Any]:
    """Return the row as it is hashed and exported, with what it has of number and hashes."""
    return {
        "project_id": row.project_id,
        "number": row.number,
        "at_ms": row.at_ms,
        "actor_kind": str(row.actor_kind),
        "actor": row.actor,
        "key_id": row.key_id,
        "address": row.address,
        "request_id": row.request_id,
        "verb": str(row.verb),
        "target": row.target,
        "changes": row.changes,
        "previous_sha256": row.previous_sha256,
        HASH_FIELD: row.sha256,
    }


def all_chained(log: AuditLog, project_id: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a chain from its first one, as they are exported."""
    after = 0
    while rows := log.chained(project_id, after=after, up_to=ANY_NUMBER, limit=AT_ONCE):
        yield from map(exported_row, rows)
        after = rows[-1].number or 0


def chain_rows(ctx: Foundations) -> int:
    """Chain all rows that wait; return how many. A loop calls it again and again.

    Raises Unavailable when another server chained some of them at the same time; the next call goes on.
    """
    with ctx.store.only_here(LOOP_NAME) as ours:
        if not ours:
            return 0
        total = 0
        while True:
            with ctx.store.read() as tx:
                if not tx.audit_log.unchained(limit=1):
                    return total
            with ctx.store.begin() as tx:
                total += _chain_some(tx)


def _chain_some(tx: Transaction) -> int:
    rows = tx.audit_log.unchained(limit=AT_ONCE)
    if not rows:
        return 0
    heads = dict(tx.audit_log.lock_heads(sorted({row.project_id for row in rows})))
    chained = _linked(rows, heads)
    if tx.audit_log.chain(chained) != len(rows):
        raise Unavailable("another server is extending the audit log; try again in a moment")
    tx.audit_log.put_heads(heads)
    return len(rows)


def _linked(rows: Sequence[AuditLogRow], heads: dict[str, ChainLink]) -> list[Mapping[str, Any]]:
    """Return the numbers and hashes of the rows, and move the heads of their chains."""
    chained: list[Mapping[str, Any]] = []
    for row in rows:
        done = linked(exported_row(row), heads.get(row.project_id, ChainLink()))
        heads[row.project_id] = ChainLink(number=done["number"], sha256=done[HASH_FIELD])
        chained.append({"id": row.id, **{name: done[name] for name in ("number", "previous_sha256", HASH_FIELD)}})
    return chained
