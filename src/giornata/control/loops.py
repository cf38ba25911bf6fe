"""The loops that the server runs by itself: lapse leases, lift bans, expire jobs, replace bad machines,
move slow jobs, settle audits, collect garbage, finish deletions, apply retention.

Each loop has a thread of its own, catches its own errors, counts them and goes on. Every loop may run on every
server: the store lets one at a time do it, but for loops that each server has to run.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from giornata.control.access.permissions import require_root_admin
from giornata.control.attempts.auditing.settle_audits import settle_audits
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.lift_bans import lift_bans
from giornata.control.audit_log.chain import LOOP_NAME, chain_rows
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.end_of_life.apply_retention import apply_retention
from giornata.control.end_of_life.finish_deletions import finish_deletions
from giornata.control.fleets.reap import reap
from giornata.control.fleets.stragglers import move_stragglers
from giornata.control.jobs.settle_sweep import settle_sweeps
from giornata.control.jobs.stop_job import expire_deadlines
from giornata.control.pictures.settle_order import settle_orders
from giornata.control.projects.fleet_time import EVERY_S, sum_fleet_time
from giornata.control.projects.fleet_time import LOOP_NAME as FLEET_TIME
from giornata.control.projects.set_budget import settle_budgets
from giornata.control.quotas.request_limits import exchange_counts
from giornata.control.storage.collect import collect
from giornata.domain.errors import Unavailable
from giornata.protocol.node.fleets import ServerLoop, ServerLoopPage

log = logging.getLogger("giornata.loops")

LONGEST_PAUSE_S = 60.0
LONGEST_DONE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One task that runs every `every_s` seconds. `run` says what it did; a true value is worth a line in the log.

    A server whose `vital` loop is late is not ready. A loop `on_each_server` takes no turns with those of others.
    """

    name: str
    every_s: float
    run: Callable[[Context], object]
    vital: bool = True
    on_each_server: bool = False


DEFAULT_SCHEDULE: tuple[Loop, ...] = (
    Loop(name="lapse", every_s=1.0, run=lapse_leases),
    Loop(name="orders", every_s=1.0, run=settle_orders),
    Loop(name="sweeps", every_s=2.0, run=settle_sweeps),
    Loop(name="bans", every_s=2.0, run=lift_bans),
    Loop(name="expire", every_s=5.0, run=expire_deadlines),
    Loop(name="reap", every_s=10.0, run=reap),
    Loop(name="stragglers", every_s=30.0, run=move_stragglers),
    Loop(name="budgets", every_s=2.0, run=settle_budgets),
    Loop(name="audits", every_s=5.0, run=settle_audits, vital=False),
    Loop(name="collect", every_s=600.0, run=collect),
    Loop(name="deletions", every_s=30.0, run=finish_deletions, vital=False),
    Loop(name="retention", every_s=3600.0, run=apply_retention, vital=False),
)


def _chain_audit_log(ctx: Context) -> None:
    """Chain the audit log, and say nothing of it: what a loop says wakes the nodes that wait for work."""
    chain_rows(ctx)


# A server whose audit log is late still serves jobs.
AUDIT_LOG_LOOP = Loop(name=LOOP_NAME, every_s=1.0, run=_chain_audit_log, vital=False)

FLEET_TIME_LOOP = Loop(name=FLEET_TIME, every_s=EVERY_S, run=sum_fleet_time, vital=False)
"""Apart from the schedule, as the audit log's: the simulator plays the loops that decide something."""

REQUEST_COUNTS_LOOP = Loop(name="request-counts", every_s=1.0, run=exchange_counts, vital=False, on_each_server=True)
"""On PostgreSQL only: SQLite has one server. A server that is late with it counts requests alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStatus:
    """The state of a loop. `last_success_age_s` counts from the start of the process before the first success.

    `last_done` is what it last changed, in words or as a number; turns that changed nothing are passed over.
    """

    name: str
    every_s: float
    vital: bool = True
    runs: int = 0
    errors: int = 0
    errors_in_a_row: int = 0
    last_success_age_s: float = 0.0
    last_error: str = ""
    last_done: str = ""
    last_done_age_s: float | None = None

    @property
    def late(self) -> bool:
        """True when the loop has not succeeded for so long that an operator should look."""
        return self.last_success_age_s > 3 * self.every_s + LONGEST_PAUSE_S


class Loops:
    """Runs the schedule until `stop`. `after_work` is called when a loop changed something."""

    def __init__(
        self,
        ctx: Context,
        schedule: Sequence[Loop] = DEFAULT_SCHEDULE,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        after_work: Callable[[], None] = lambda: None,
    ) -> None:
        self._ctx, self._schedule, self._monotonic_s, self._after_work = ctx, tuple(schedule), monotonic_s, after_work
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._status = {
            loop.name: LoopStatus(name=loop.name, every_s=loop.every_s, vital=loop.vital) for loop in self._schedule
        }
        self._succeeded_at_s = dict.fromkeys(self._status, monotonic_s())
        self._done_at_s: dict[str, float] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start one thread for each loop."""
        for loop in self._schedule:
            thread = threading.Thread(target=self._keep_running, args=(loop,), name=f"loop-{loop.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Let every loop finish its turn; return True when all did within `timeout_s`. May be repeated."""
        self._stopping.set()
        ends_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def status(self) -> tuple[LoopStatus, ...]:
        """Return the present state of each loop."""
        now_s = self._monotonic_s()
        with self._lock:
            return tuple(
                replace(
                    status,
                    last_success_age_s=now_s - self._succeeded_at_s[name],
                    last_done_age_s=now_s - self._done_at_s[name] if name in self._done_at_s else None,
                )
                for name, status in self._status.items()
            )

    def run_once(self, loop: Loop) -> bool:
        """Run one turn of one loop; return True when it went well."""
        try:
            with nullcontext(True) if loop.on_each_server else self._ctx.store.only_here(f"loop-{loop.name}") as mine:
                done = loop.run(self._ctx) if mine else None
            if done:
                log.info("loop %s: %s", loop.name, done)
                self._note_done(loop, str(done))
                self._after_work()
        except Exception as error:  # the supervisor of loops
            # A provider or a database that is away is no defect: no need to see where it was noticed.
            trace = not isinstance(error, Unavailable)
            log.error("loop %s failed, and will be tried again: %s", loop.name, error, exc_info=trace)
            self._note(loop, f"{type(error).__name__}: {error}")
            return False
        self._note(loop, None)
        return True

    def _note_done(self, loop: Loop, done: str) -> None:
        with self._lock:
            self._done_at_s[loop.name] = self._monotonic_s()
            self._status[loop.name] = replace(self._status[loop.name], last_done=done[:LONGEST_DONE])

    def _note(self, loop: Loop, error: str | None) -> None:
        with self._lock:
            old = self._status[loop.name]
            if error is None:
                self._succeeded_at_s[loop.name] = self._monotonic_s()
                self._status[loop.name] = replace(old, runs=old.runs + 1, errors_in_a_row=0)
                return
            self._status[loop.name] = replace(
                old,
                runs=old.runs + 1,
                errors=old.errors + 1,
                errors_in_a_row=old.errors_in_a_row + 1,
                last_error=error,
            )

    def _keep_running(self, loop: Loop) -> None:
        while not self._stopping.is_set():
            self.run_once(loop)
            self._stopping.wait(pause_s(loop, errors_in_a_row=self._status[loop.name].errors_in_a_row))


def read_loops(caller: Caller, loops: Sequence[LoopStatus]) -> ServerLoopPage:
    """Return the loops of this server with what each did last, those in trouble first. Raises Forbidden."""
    require_root_admin(caller)
    shown = sorted(map(_shown, loops), key=lambda each: (not each.late, not each.in_trouble, each.name))
    return ServerLoopPage(items=tuple(shown))


def _shown(status: LoopStatus) -> ServerLoop:
    has_succeeded = status.runs > status.errors
    return ServerLoop(
        name=status.name,
        every_s=status.every_s,
        in_trouble=status.late or status.errors_in_a_row > 0,
        late=status.late,
        vital=status.vital,
        runs=status.runs,
        errors=status.errors,
        errors_in_a_row=status.errors_in_a_row,
        last_success_age_s=round(status.last_success_age_s, 3) if has_succeeded else None,
        last_done=status.last_done,
        last_done_age_s=None if status.last_done_age_s is None else round(status.last_done_age_s, 3),
        last_error=status.last_error,
    )


def pause_s(loop: Loop, *, errors_in_a_row: int) -> float:
    """Return the seconds until the next turn. A failing loop comes back sooner than a slow one would, and ever more
    rarely.

    After n errors: 2^(n-1) seconds, at most a minute, but never more often than the loop's own pace.
    """
    if not errors_in_a_row:
        return loop.every_s
    return max(min(loop.every_s, 1.0), min(2.0 ** min(errors_in_a_row - 1, 10), LONGEST_PAUSE_S))
