"""Decide what becomes of pictures that a node could not draw: another node draws them, or they fail."""

from collections.abc import Sequence

from giornata.control.context import Context
from giornata.control.ports.node_queries.picture_store import PictureKey, PictureRow
from giornata.control.ports.node_queries.work_rows import AttemptRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.fence import live
from giornata.domain.generation.picture import error_words, fails_at_once, halved, is_fruitless, is_undecided
from giornata.domain.jobs.reasons import Reason
from giornata.domain.jobs.routing import memory_after_too_small
from giornata.protocol.node.pictures import FailedPicture

SEVERAL_PROJECTS = "a lease with pictures of several projects broke off"
"""Told instead of what the node says, which may be about a picture of another project."""


def take_back(ctx: Context, attempt_id: str, failed: Sequence[FailedPicture]) -> set[PictureKey]:
    """Queue pictures again that this node could not draw while others of its lease went well, or fail them.

    Return the keys of those that the lease had. Raises LeaseLost.
    """
    now_ms = ctx.clock.now_ms()
    taken: set[PictureKey] = set()
    with ctx.store.begin() as tx:
        _, attempt = live(tx, attempt_id)
        tx.picture_leases.lock_orders(attempt_id)
        for each in sorted(failed, key=lambda one: (one.order_id, one.number)):
            key, undecided = PictureKey(each.order_id, each.number), is_undecided(each.reason)
            error = error_words(each.message, each.reason)
            rows = tx.picture_leases.give_back(attempt_id, keys=[key], fruitless=not undecided, error=error)
            rows = _note_failures(tx, attempt, rows, each.reason, at_ms=now_ms)
            _give_up(tx, ctx, rows, error=error)
            taken |= {row.key for row in rows}
    return taken


def give_back_all(
    tx: Transaction, ctx: Context, attempt: AttemptRow, reason: Reason, *, message: str, at_ms: int
) -> None:
    """Give back all pictures that an ended lease had not drawn. The job of the attempt is locked.

    A crash is held against no picture and no machine: the pictures come again in leases of half the size, until the
    one that crashes is alone. So do the pictures of a lease that no node can draw; the one that is alone then fails
    at once. A picture whose leases come to nothing again and again fails as well. Each picture keeps what the node
    said.
    """
    undecided, fruitless, lasting = is_undecided(reason), is_fruitless(reason), fails_at_once(reason)
    if not (undecided or fruitless or lasting):
        tx.picture_leases.give_back(attempt.id, fruitless=False)
        return
    tx.picture_leases.lock_orders(attempt.id)
    had = tx.picture_leases.of_lease(attempt.id)
    is_told = reason is Reason.LEASE_EXPIRED or len({row.project_id for row in had}) == 1
    error = error_words(message if is_told else SEVERAL_PROJECTS, reason)
    together = None if fruitless else halved(len(had))
    rows = tx.picture_leases.give_back(attempt.id, together=together, fruitless=fruitless, error=error)
    if lasting and len(had) == 1:
        tx.picture_leases.fail([row.key for row in rows], error=error)
    if undecided and len(had) == 1:
        rows = _note_failures(tx, attempt, rows, reason, at_ms=at_ms)
    if undecided or fruitless:
        _give_up(tx, ctx, rows, error=error)


def _note_failures(
    tx: Transaction, attempt: AttemptRow, rows: Sequence[PictureRow], reason: Reason, *, at_ms: int
) -> list[PictureRow]:
    """Note that the attempt's machine could not draw these pictures, which are queued again."""
    return tx.picture_leases.note_failures(
        [row.key for row in rows],
        machine_id=attempt.machine_id,
        at_ms=at_ms,
        tries=int(is_undecided(reason)),
        min_vram_bytes=_memory(tx, attempt) if reason is Reason.NODE_TOO_SMALL else 0,
    )


def _give_up(tx: Transaction, ctx: Context, rows: Sequence[PictureRow], *, error: str) -> None:
    """Fail the pictures that were tried too often. Their orders are held."""
    policy = ctx.policy
    crashed = [row.key for row in rows if row.tries >= policy.max_crashed_machines]
    tx.picture_leases.fail(crashed, error=f"{error}: it failed alone {policy.max_crashed_machines} times")
    fruitless = [row.key for row in rows if row.key not in crashed and row.fruitless >= policy.max_fruitless]
    tx.picture_leases.fail(fruitless, error=f"{error}: {policy.max_fruitless} leases with it came to nothing")


def _memory(tx: Transaction, attempt: AttemptRow) -> int:
    """Return the memory of a node that is larger than the attempt's; 0 when that node's memory is unknown."""
    node = tx.nodes.get(attempt.node_id)
    return 0 if node is None or node.vram_bytes is None else memory_after_too_small(node.vram_bytes)
