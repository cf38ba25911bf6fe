"""The readings of an operator's monitoring: gauges of the installation, and a check of the object storage."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from giornata.control.access.permissions import require_root_admin
from giornata.control.budgets.budgets import BEGINNING_MS, SETTLES_MS, project_spent
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.memory.process_cache import EndedAttempts
from giornata.control.ports.node_queries.gauges import EndedTotals, Gauges
from giornata.control.ports.store import Transaction
from giornata.control.projects.fleet_time import last_day
from giornata.domain.billing.budget import Budget
from giornata.domain.errors import GiornataError, Unavailable

KEPT_MS = 10_000
DAY_MS = 86_400_000
PROBE = b"giornata"


class StorageCheck:
    """Write a small object and delete it. The result holds for KEPT_MS, however often it is asked for.

    A probe that a killed server left behind belongs to nothing, and the collector takes it.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._lock = ctx, threading.Lock()
        self._found: tuple[int, GiornataError | None] | None = None

    def __call__(self) -> None:
        """Check the storage. Raises Unavailable with what is wrong."""
        with self._lock:  # one probe at a time: storage that hangs holds one thread per caller, and gets one request
            now_ms = self._ctx.clock.now_ms()
            if self._found is None or not 0 <= now_ms - self._found[0] < KEPT_MS:
                self._found = (now_ms, self._probed())
            trouble = self._found[1]
        if trouble is not None:
            raise Unavailable(str(trouble), public=trouble.public)

    def _probed(self) -> GiornataError | None:
        key = f"readiness/{self._ctx.names.new('probe')}"
        try:
            self._ctx.blobs.write(key, [PROBE])
            self._ctx.blobs.delete(key)
        except GiornataError as error:
            return error
        return None


def read_gauges(ctx: Context) -> Gauges:
    """Count jobs, nodes and ended attempts, of all projects together. Raises Unavailable."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        gauges = tx.gauges.now(seen_since_ms=now_ms - round(ctx.policy.node_gone_after_s * 1000))
        ended = _attempts_ended(tx, ctx, at_ms=now_ms)
        spent = project_spent(tx, ctx, None, at_ms=now_ms)
        time = last_day(tx, at_ms=now_ms)
    return replace(gauges, ended=ended, spend_micro_usd=spent.total_micro_usd, fleet_time=time)


def read_installation(ctx: Context, caller: Caller) -> Gauges:
    """Return `read_gauges` to an operator, as of now or of a few seconds ago. Raises Forbidden, Unavailable.

    One thread reads them; others that ask meanwhile wait for what it finds.
    """
    require_root_admin(caller)
    with ctx.memory.gauges_lock:
        at_ms = ctx.clock.now_ms()
        known = ctx.memory.gauges(at_ms=at_ms, kept_ms=KEPT_MS)
        if known is None:
            known = read_gauges(ctx)
            ctx.memory.remember_gauges(known, at_ms=at_ms)
        return known


def read_budgets(ctx: Context, caller: Caller) -> Sequence[tuple[str, Budget]] | None:
    """Return (project, budget) to an operator, the most used up first, as the loop `budgets` of this server last saw
    them; None when it has not run. Raises Forbidden.
    """
    require_root_admin(caller)
    return ctx.memory.project_budgets


def read_last_day(ctx: Context, caller: Caller) -> EndedTotals:
    """Return the sums over attempts of all projects that ended in the last 24 hours, to an operator.

    Raises Forbidden, Unavailable.
    """
    require_root_admin(caller)
    with ctx.store.read() as tx:
        return tx.gauges.attempts_ended(from_ms=ctx.clock.now_ms() - DAY_MS, before_ms=None)


def _attempts_ended(tx: Transaction, ctx: Context, *, at_ms: int) -> EndedTotals:
    """Return the sums over ended attempts. After the first time only new ones are read: leases of pictures end by the
    million."""
    known, before_ms = ctx.memory.ended_attempts, at_ms - SETTLES_MS
    if known is None or known.before_ms > at_ms:  # the clock was set back
        known = EndedAttempts(before_ms=BEGINNING_MS, totals=EndedTotals())
    if known.before_ms + SETTLES_MS <= before_ms:
        more = tx.gauges.attempts_ended(from_ms=known.before_ms, before_ms=before_ms)
        known = EndedAttempts(before_ms=before_ms, totals=known.totals.plus(more))
        ctx.memory.ended_attempts = known
    return known.totals.plus(tx.gauges.attempts_ended(from_ms=known.before_ms, before_ms=None))
