"""One attempt on this node, from the lease to its end.

Threads of their own beat, upload, keep the journal and read the engine; they only post events. What the attempt
does next is decided in one place: the loop in this file, which runs in the agent's thread.
"""

import collections
import contextlib
import logging
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from giornata.agent.blame import explained
from giornata.agent.calls import Calls
from giornata.agent.courier import Courier
from giornata.agent.engine_process import TAIL_LINES, EngineProcess
from giornata.agent.engines import EngineBusy
from giornata.agent.events import (
    AttemptFailed,
    CacheFound,
    Delivered,
    Event,
    Gone,
    Lost,
    Muttered,
    Said,
    Undelivered,
)
from giornata.agent.fetching import Fetching
from giornata.agent.hearing import Hearing
from giornata.agent.heart import Heart
from giornata.agent.held_lease import HeldLease
from giornata.agent.journal import Journal
from giornata.agent.orders import LEAVE_RESERVE, RELEASED, Leaving, Orders
from giornata.agent.report import Report
from giornata.agent.standing import Dropped, Ending, Finished, GivenBack, Standing
from giornata.agent.surroundings import Surroundings
from giornata.agent.watchdog import Watchdog, crash_of
from giornata.agent.workplace import Room
from giornata.domain.errors import GiornataError, InvalidInput, LeaseLost
from giornata.domain.reasons import Reason
from giornata.protocol.pipe import CacheAnswer, Start, Stop
from giornata.protocol.work import Heartbeat, Lease

log = logging.getLogger(__name__)

TICK_S = 0.2
STOP_COURIER_S = 5.0
HANGS_AFTER_S = 60.0
DEAF = AttemptFailed(Reason.CRASHED, "the engine was ended: another attempt in it did not stop when it was told to")
"""What those learn who were in an engine with one that did not stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stopping:
    """The engine was told to stop: how the attempt ends then, and when patience ends."""

    ending: Ending
    until_s: float


class Attempt:
    """Runs one lease. `granted_at_s` is when its claim was first sent, by the node's monotonic clock."""

    def __init__(self, lease: Lease, *, granted_at_s: float, room: Room, around: Surroundings) -> None:
        self._lease, self._room, self._around = lease, room, around
        self._settings, self._now_s = around.settings, around.monotonic_s
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._standing = Standing()
        self._ticked_at_s = self._now_s()
        self._orders = Orders(
            departure=around.departure,
            monotonic_s=self._now_s,
            grace_s=self._settings.grace_s,
            release_s=self._settings.release_s,
        )
        self._undelivered: AttemptFailed | None = None
        self._muttered: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._engine: EngineProcess | None = None
        self._came_to_others = False
        self.needs_engine = True
        self._held = HeldLease(
            lease,
            granted_at_s=granted_at_s,
            monotonic_s=self._now_s,
            on_lost=lambda why: self._events.put(Lost(why=why)),
        )
        self._own_calls = Calls(self._held, rng=around.rng, monotonic_s=self._now_s, sleep=self._doze)
        calls = Calls(self._held, rng=around.rng, monotonic_s=self._now_s)
        self._heart = Heart(
            node=around.node,
            held=self._held,
            snapshot=self._beat,
            lively=lambda: self._now_s() - self._ticked_at_s < self._settings.hello_s + HANGS_AFTER_S,
            ordered=self._orders.hear,
            monotonic_s=self._now_s,
            rng=around.rng,
        )
        self._journal = Journal(around.node, calls)
        self._courier = Courier(
            node=around.node,
            calls=calls,
            storage=around.storage,
            post=self._events.put,
            monotonic_s=self._now_s,
            patience_s=self._settings.transfer_patience_s,
            deliver_points=self._journal.deliver_points,
        )
        self._fetching = Fetching(
            node=around.node,
            calls=self._own_calls,
            storage=around.storage,
            cache=around.cache,
            monotonic_s=self._now_s,
            patience_s=self._settings.transfer_patience_s,
            check=self._check,
        )
        self._cache_pool = ThreadPoolExecutor(1, thread_name_prefix="cache")

    def run(self) -> Ending:
        """Do all of it. Returns how it ended; nothing of it is left running but the warm engine."""
        try:
            # Whoever has lost the lease already learns it before anything is done.
            self._heart.start(after_s=self._heart.beat())
            self._journal.start()
            self._courier.start()
            ending = self._work()
            self.needs_engine = False
            if not isinstance(ending, Dropped):
                ending = self._report(ending)
            return ending
        finally:
            self.needs_engine = False
            self._close()

    @property
    def told_to_leave(self) -> bool:
        """Whether the node shall go: a signal, or the server's order."""
        return self._orders.leave

    # ---- before the engine ----

    def _work(self) -> Ending:
        try:
            start = self._prepare()
            engine = self._engine = self._ready()
            self._check()
        except LeaseLost as error:
            return Dropped(why=str(error))
        except Leaving as order:
            return order.ending
        except EngineBusy as busy:
            return GivenBack(reason=Reason.RELEASED, message=f"the engine for {self._lease.kind}: {busy}")
        except AttemptFailed as failure:
            return failure
        return self._conduct(engine, start)

    def _prepare(self) -> Start:
        self._check()
        lease, room = self._lease, self._room
        inputs = self._fetching.inputs(lease.inputs, room)
        resume = self._fetching.resume_point(lease.checkpoints, room)
        if resume is not None:
            self._standing.step = self._standing.committed_step = resume.step
        return Start(
            attempt=lease.attempt_id,
            job=lease.job_id,
            kind=lease.kind,
            spec=lease.spec,
            directory=room.work,
            inputs=inputs,
            resume=resume,
            mtbi_s=lease.mtbi_s,
            max_at_risk_s=lease.max_at_risk_s,
            hub_token=lease.hub_token,
            wandb_api_key=lease.wandb_api_key,
            joint_key=lease.joint_key,
        )

    def _ready(self) -> EngineProcess:
        self._check()
        self._standing.phase = "starting"
        try:
            return self._around.engines.ready(self._lease.kind)
        except InvalidInput as error:
            raise AttemptFailed(Reason.CRASHED, f"no engine: {error}") from error

    def _check(self) -> None:
        """Raise LeaseLost or Leaving when it makes no sense to go on. Asked by several threads."""
        self._ticked_at_s = self._now_s()
        self._held.check()
        if (ending := self._orders.wanted()) is not None:
            raise Leaving(ending)

    # ---- while the engine works ----

    def _conduct(self, engine: EngineProcess, start: Start) -> Ending:
        watchdog = Watchdog(
            engine=engine,
            alive_s=self._settings.alive_s,
            stall_s=self._settings.stall_s,
            monotonic_s=self._now_s,
            moved_at_s=self._now_s(),
        )
        hearing = Hearing(
            attempt_id=start.attempt,
            outbox=self._room.outbox,
            standing=self._standing,
            courier=self._courier,
            journal=self._journal,
            watchdog=watchdog,
            nudge=self._heart.nudge,
            find_cache=self._find_cache,
            post=self._events.put,
        )
        engine.attach(start.attempt, self._events.put)
        self._came_to_others = bool(engine.at_work)
        try:
            engine.send(start)
            ending = self._listen(engine, hearing, watchdog)
            self.needs_engine = False
            return self._settle(ending)
        finally:
            engine.detach(start.attempt)

    def _listen(self, engine: EngineProcess, hearing: Hearing, watchdog: Watchdog) -> Ending:
        """Turn until the engine's part is over."""
        stopping: _Stopping | None = None
        while True:
            ending = self._heard(self._next_event(), engine, hearing, stopping)
            if ending is not None:
                return ending
            stopping = self._stopping(engine, stopping)
            if stopping is None and (complaint := watchdog.complaint()) is not None:
                if hearing.heard or complaint.reason is not Reason.TOO_SLOW or len(engine.at_work) <= 1:
                    engine.kill(complaint)
                    return complaint.among(engine.at_work)
                stopping = self._stand_back(engine)
            if stopping is not None and self._now_s() >= stopping.until_s:
                engine.kill(DEAF)
                return stopping.ending

    def _heard(
        self, event: Event | None, engine: EngineProcess, hearing: Hearing, stopping: _Stopping | None
    ) -> Ending | None:
        match event:
            case Said():
                return hearing.take(event.message, stopping=None if stopping is None else stopping.ending)
            case Gone():
                return stopping.ending if stopping is not None else self._ended_with(event, hearing)
            case CacheFound():
                hearing.watchdog.moved()
                engine.send(CacheAnswer(attempt=self._lease.attempt_id, key=event.key, path=event.path))
            case _:
                self._note(event)
        return None

    def _ended_with(self, event: Gone, hearing: Hearing) -> Ending:
        me = self._lease.attempt_id
        # In the second case it stood in line, and those before it have been told what ended them and the engine.
        in_line = self._came_to_others and not hearing.heard and event.at_work == (me,)
        if me not in event.at_work or in_line:
            return GivenBack(reason=Reason.RELEASED, message="the engine ended before it had the job")
        return (event.why or crash_of(event.exit_code)).among(event.at_work)

    def _note(self, event: Event | None) -> None:
        """Events that mean the same whether the engine works or not."""
        match event:
            case Muttered():
                self._muttered.append(event.line)
                self._journal.line(event.line)
            case Delivered(checkpoint_step=int(step)):
                self._standing.committed_step = max(step, self._standing.committed_step or 0)
            case Undelivered():
                self._journal.line(event.message)
                if event.needed:
                    self._undelivered = AttemptFailed(event.reason, event.message)

    def _stopping(self, engine: EngineProcess, now: _Stopping | None) -> _Stopping | None:
        """Tell the engine to stop when there is a reason that it does not know of yet."""
        why = self._held.why_lost()
        if why is not None and not (now is not None and isinstance(now.ending, Dropped)):
            engine.send(Stop(attempt=self._lease.attempt_id, checkpoint=False))
            return _Stopping(ending=Dropped(why=why), until_s=self._now_s() + self._settings.stop_grace_s)
        ending = self._orders.news(None if now is None else now.ending)
        if ending is None:
            return now
        if now is None:
            engine.send(Stop(attempt=self._lease.attempt_id, checkpoint=True))
        return _Stopping(ending=ending, until_s=self._orders.stop_by(ending))

    def _stand_back(self, engine: EngineProcess) -> _Stopping:
        """Leave those at work alone that this one waits for: the engine has not said a word of it for too long."""
        engine.send(Stop(attempt=self._lease.attempt_id, checkpoint=False))
        ending = GivenBack(reason=Reason.RELEASED, message="the engine found no place for it beside those at work")
        return _Stopping(ending=ending, until_s=self._now_s() + self._settings.stop_grace_s)

    def _find_cache(self, key: str) -> None:
        """Ask the platform in a thread of its own; the answer comes as an event. The engine waits meanwhile."""

        def find() -> None:
            path = None
            try:
                path = self._fetching.cached(key, self._room)
            except (LeaseLost, Leaving):
                return  # the engine is told to stop, which wakes it
            except Exception:
                # The supervisor of this thread: the engine can make the thing itself, but not wait for ever.
                log.exception("cache %s", key)
            self._events.put(CacheFound(key=key, path=path))

        self._cache_pool.submit(find)

    # ---- after the engine ----

    def _settle(self, ending: Ending) -> Ending:
        """Wait until what was made is delivered, as far as the ending needs it."""
        if isinstance(ending, Dropped):
            return ending
        self._standing.phase = "uploading"
        longest_s = self._settings.release_s if ending is RELEASED else self._settings.fail_drain_s
        patience_s = None if isinstance(ending, Finished) else self._now_s() + longest_s
        while not self._courier.is_idle():
            self._note(self._next_event())
            if (why := self._held.why_lost()) is not None:
                return Dropped(why=why)
            if self.told_to_leave:
                patience_s = self._orders.leave_by() - LEAVE_RESERVE / 4 * self._settings.grace_s
            if patience_s is not None and self._now_s() >= patience_s:
                return self._out_of_patience(ending)
        while not self._events.empty():
            self._note(self._events.get())
        if isinstance(ending, Finished) and self._undelivered is not None:
            return self._undelivered
        return ending

    def _out_of_patience(self, ending: Ending) -> Ending:
        if isinstance(ending, Finished):
            message = "the node was told to leave before the results were uploaded"
            return GivenBack(reason=Reason.PREEMPTED, message=message)
        return ending

    def _report(self, ending: Ending) -> Ending:
        self._journal.stop()
        self._journal.flush()
        if isinstance(ending, Finished):
            # No attempt comes after this one: what has not arrived by its end never does.
            with contextlib.suppress(GiornataError):
                self._own_calls.persist(lambda _: self._journal.deliver_points(), until=self._report_by)
        tail = list(self._engine.tail) if self._engine is not None else []
        ending = explained(ending, tuple(self._muttered), self._lease)
        report = Report(self._around.node, self._own_calls, self._standing)
        return report.send(ending, tail=tail, until=self._report_by)

    def _report_by(self) -> float | None:
        return self._orders.leave_by() if self.told_to_leave else None

    def _close(self) -> None:
        self._heart.stop()
        self._journal.stop()
        self._held.lose("the attempt has ended")
        self._courier.stop(wait_s=STOP_COURIER_S)
        self._cache_pool.shutdown(wait=False, cancel_futures=True)

    # ---- clocks and the heart ----

    def _next_event(self) -> Event | None:
        self._ticked_at_s = self._now_s()
        try:
            return self._events.get(timeout=TICK_S)
        except queue.Empty:
            return None

    def _doze(self, timeout_s: float) -> None:
        """Sleep between tries, but not beyond the loss of the lease or an order."""
        known, wake_at_s = self._orders.wanted(), self._now_s() + timeout_s
        while (rest_s := wake_at_s - self._now_s()) > 0 and self._orders.wanted() is known:
            self._ticked_at_s = self._now_s()
            if self._held.why_lost() is not None:
                return
            self._held.wait(min(TICK_S, rest_s))

    def _beat(self) -> Heartbeat:
        engine = self._around.engines.current
        pid, held = (engine.pid, engine.held) if engine is not None and engine.is_alive() else (None, ())
        return self._standing.beat(engine_pid=pid, held_models=held)
