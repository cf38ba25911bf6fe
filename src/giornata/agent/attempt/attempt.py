"""One attempt on this node, from its start to its end, whatever platform the job comes from.

Threads of the platform beat, upload and ship logs, and threads of the engine read its streams. They only post events.
The loop in this file decides what the attempt does next. It runs in the attempt's own thread.
"""

import logging
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from giornata.agent.attempt.commands import LEAVE_RESERVE, RELEASED, Leaving
from giornata.agent.attempt.events import (
    Abandoned,
    AttemptFailed,
    AttemptOutcome,
    CacheFound,
    EngineEnded,
    EngineMessage,
    EngineStderr,
    Event,
    Finished,
    PicturesDropped,
    Released,
    Undelivered,
)
from giornata.agent.attempt.platform import AttemptState, Platform
from giornata.agent.engines.engine_messages import EngineMessageHandler, Watchdog, crash_of
from giornata.agent.engines.engine_process import EngineProcess
from giornata.agent.engines.engines import EngineBusy, Engines
from giornata.agent.settings import AttemptSettings
from giornata.domain.errors import InvalidInput, LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import CacheAnswer, DropPictures, Start, Stop

log = logging.getLogger(__name__)

TICK_S = 0.2
ENDED_WITH_ANOTHER = AttemptFailed(
    Reason.CRASHED, "the engine was ended: another attempt in it did not stop when it was told to"
)
"""The failure of attempts whose engine was killed because of another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stopping:
    """The engine was told to stop. The attempt ends with `outcome`, at `until_s` at the latest."""

    outcome: AttemptOutcome
    until_s: float


class AttemptRunner:
    """Runs one job with one engine. Files that the engine announces get a second name in `outbox`."""

    def __init__(
        self,
        platform: Platform,
        *,
        state: AttemptState,
        outbox: Path,
        settings: AttemptSettings,
        engines: Engines,
    ) -> None:
        self._platform, self._state, self._outbox = platform, state, outbox
        self._settings, self._engines = settings, engines
        self._now_s, self._commands, self._events = state.monotonic_s, state.commands, state.events
        self._undelivered: AttemptFailed | None = None
        self._engine: EngineProcess | None = None
        self._came_to_others = False
        self.needs_engine = True
        self._cache_pool = ThreadPoolExecutor(1, thread_name_prefix="cache")

    def run(self) -> AttemptOutcome:
        """Run the attempt to its end, and return the outcome. Afterwards only the warm engine is left running."""
        try:
            self._platform.open()
            outcome = self._work()
            self.needs_engine = False
            if isinstance(outcome, Abandoned):
                return outcome
            tail = [] if self._engine is None else list(self._engine.tail)
            return self._platform.report(outcome, tail=tail)
        finally:
            self.needs_engine = False
            self._platform.close()
            self._cache_pool.shutdown(wait=False, cancel_futures=True)

    @property
    def told_to_leave(self) -> bool:
        """True when the node shall go: a signal, or the server's order."""
        return self._commands.leave

    @property
    def pictures_left(self) -> int | None:
        """The pictures that the engine has still to draw; None for a job."""
        return self._state.progress.pictures_left

    # ---- before the engine ----

    def _work(self) -> AttemptOutcome:
        try:
            self._platform.check()
            start = self._platform.prepare()
            if start.resume is not None:
                self._state.progress.step = start.resume.step
            engine = self._engine = self._ready(start.kind)
            self._platform.check()
        except LeaseLost as error:
            return Abandoned(why=str(error))
        except Leaving as order:
            return order.outcome
        except EngineBusy as busy:
            return Released(reason=Reason.RELEASED, message=f"the engine for {start.kind}: {busy}")
        except AttemptFailed as failure:
            return failure
        return self._conduct(engine, start)

    def _ready(self, kind: str) -> EngineProcess:
        self._platform.check()
        self._state.progress.phase = "starting"
        try:
            return self._engines.ready(kind)
        except InvalidInput as error:
            raise AttemptFailed(Reason.CRASHED, f"the engine did not start: {error}") from error

    # ---- while the engine works ----

    def _conduct(self, engine: EngineProcess, start: Start) -> AttemptOutcome:
        watchdog = Watchdog(
            engine=engine,
            alive_s=self._settings.alive_s,
            stall_s=self._settings.stall_s,
            monotonic_s=self._now_s,
            moved_at_s=self._now_s(),
        )
        handler = EngineMessageHandler(
            attempt_id=start.attempt,
            outbox=self._outbox,
            progress=self._state.progress,
            platform=self._platform,
            watchdog=watchdog,
            find_cache=self._find_cache,
            post=self._events.put,
        )
        engine.attach(start.attempt, self._events.put)
        self._came_to_others = bool(engine.at_work)
        try:
            engine.send(start)
            outcome = self._listen(engine, handler)
            self.needs_engine = False
            return self._settle(outcome)
        finally:
            engine.detach(start.attempt)

    def _listen(self, engine: EngineProcess, handler: EngineMessageHandler) -> AttemptOutcome:
        """Handle events until the engine's part is over."""
        stopping: _Stopping | None = None
        while True:
            outcome = self._handle(self._next_event(), engine, handler, stopping)
            if outcome is not None:
                return outcome
            stopping = self._stopping(engine, handler, stopping)
            if stopping is None and (complaint := handler.watchdog.complaint()) is not None:
                if handler.heard or complaint.reason is not Reason.TOO_SLOW or len(engine.at_work) <= 1:
                    engine.kill(complaint)
                    return complaint.among(engine.at_work)
                stopping = self._stand_back(engine, handler)
            if stopping is not None and self._now_s() >= stopping.until_s:
                engine.kill(ENDED_WITH_ANOTHER)
                return stopping.outcome

    def _handle(
        self, event: Event | None, engine: EngineProcess, handler: EngineMessageHandler, stopping: _Stopping | None
    ) -> AttemptOutcome | None:
        match event:
            case EngineMessage():
                return handler.take(event.message, stopping=None if stopping is None else stopping.outcome)
            case EngineEnded():
                return stopping.outcome if stopping is not None else self._ended_with(event, handler)
            case CacheFound():
                handler.watchdog.moved()
                engine.send(CacheAnswer(attempt=handler.attempt_id, key=event.key, path=event.path))
            case PicturesDropped():
                engine.send(DropPictures(attempt=handler.attempt_id, pictures=event.pictures))
            case _:
                self._note(event)
        return None

    def _ended_with(self, event: EngineEnded, handler: EngineMessageHandler) -> AttemptOutcome:
        me = handler.attempt_id
        # In the second case it stood in line, and those before it have been told what ended them and the engine.
        in_line = self._came_to_others and not handler.heard and event.at_work == (me,)
        if me not in event.at_work or in_line:
            return Released(reason=Reason.RELEASED, message="the engine ended before it had the job")
        return (event.why or crash_of(event.exit_code)).among(event.at_work)

    def _note(self, event: Event | None) -> None:
        """Handle the events that mean the same whether the engine works or not."""
        match event:
            case EngineStderr():
                self._platform.stderr_line(event.line)
            case Undelivered():
                self._platform.log_line(event.message)
                if event.needed:
                    self._undelivered = AttemptFailed(event.reason, event.message)

    def _stopping(
        self, engine: EngineProcess, handler: EngineMessageHandler, now: _Stopping | None
    ) -> _Stopping | None:
        """Tell the engine to stop when there is a reason that it does not know of yet."""
        why = self._platform.why_lost()
        if why is not None and not (now is not None and isinstance(now.outcome, Abandoned)):
            engine.send(Stop(attempt=handler.attempt_id, checkpoint=False))
            return _Stopping(outcome=Abandoned(why=why), until_s=self._now_s() + self._settings.stop_grace_s)
        outcome = self._commands.news(None if now is None else now.outcome)
        if outcome is None:
            return now
        if now is None:
            engine.send(Stop(attempt=handler.attempt_id, checkpoint=True))
        return _Stopping(outcome=outcome, until_s=self._commands.stop_by(outcome))

    def _stand_back(self, engine: EngineProcess, handler: EngineMessageHandler) -> _Stopping:
        """Give back a job that the engine keeps in line for too long, without disturbing the attempts before it."""
        engine.send(Stop(attempt=handler.attempt_id, checkpoint=False))
        outcome = Released(reason=Reason.RELEASED, message="the engine found no place for it beside those at work")
        return _Stopping(outcome=outcome, until_s=self._now_s() + self._settings.stop_grace_s)

    def _find_cache(self, key: str) -> None:
        """Ask the platform in a thread of its own; the answer comes as an event. The engine waits meanwhile."""

        def find() -> None:
            path = None
            try:
                path = self._platform.find_cache(key)
            except (LeaseLost, Leaving):
                return  # the engine is told to stop, which wakes it
            except Exception:
                # The supervisor of this thread: the engine can make the thing itself, but not wait for ever.
                log.exception("cache %s", key)
            self._events.put(CacheFound(key=key, path=path))

        self._cache_pool.submit(find)

    # ---- after the engine ----

    def _settle(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Wait until what was made is delivered, as far as the outcome needs it."""
        if isinstance(outcome, Abandoned):
            return outcome
        self._state.progress.phase = "uploading"
        longest_s = self._settings.release_s if outcome is RELEASED else self._settings.fail_drain_s
        patience_s = None if isinstance(outcome, Finished) else self._now_s() + longest_s
        while not self._platform.is_idle():
            self._note(self._next_event())
            if (why := self._platform.why_lost()) is not None:
                return Abandoned(why=why)
            if self.told_to_leave:
                patience_s = self._commands.leave_by() - LEAVE_RESERVE / 4 * self._settings.grace_s
            if patience_s is not None and self._now_s() >= patience_s:
                return self._platform.out_of_time(outcome)
        while not self._events.empty():
            self._note(self._events.get())
        if isinstance(outcome, Finished) and self._undelivered is not None:
            return self._undelivered
        return outcome

    def _next_event(self) -> Event | None:
        self._state.tick()
        try:
            return self._events.get(timeout=TICK_S)
        except queue.Empty:
            return None
