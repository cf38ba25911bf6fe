"""The parts of a platform over HTTP that every lease needs: renewal, orders, clocks and the report of the end.

`giornata.agent.attempt.control_plane` adds what a job needs,
and `giornata.agent.attempt.picture_platform` what pictures need.
"""

import collections
from collections.abc import Sequence

from giornata.agent.attempt.attempt import TICK_S
from giornata.agent.attempt.events import AttemptOutcome, Finished, Lost, Released
from giornata.agent.attempt.heartbeat import HeartbeatThread
from giornata.agent.attempt.lease import LeaseCalls, LocalLease
from giornata.agent.attempt.platform import AttemptState
from giornata.agent.attempt.report import OutcomeReport, explained
from giornata.agent.claiming import AgentDeps
from giornata.agent.engines.engine_process import TAIL_LINES
from giornata.agent.transfer.fetching import PICTURE_ROLE, Fetching
from giornata.domain.generation.picture import fails_at_once
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pictures import LeaseFile
from giornata.protocol.node.pipe import PhaseMessage, Progress
from giornata.protocol.node.work import AnyLease, Heartbeat

STOP_UPLOADS_S = 5.0
HANGS_AFTER_S = 60.0


class LeasedPlatform:
    """Keeps one lease and reports how its attempt ends: a part of `giornata.agent.attempt.platform.Platform`.

    `granted_at_s` is when the claim of the lease was first sent, by the node's monotonic clock.
    """

    def __init__(self, lease: AnyLease, *, granted_at_s: float, state: AttemptState, deps: AgentDeps) -> None:
        self._leased, self._state, self._deps = lease, state, deps
        now_s, rng, node = deps.monotonic_s, deps.rng, deps.node
        self._now_s, self._phase, self._first_step = now_s, "", True
        self._damaged: tuple[str, ...] | None = None
        self._stderr: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._held = LocalLease(
            lease,
            granted_at_s=granted_at_s,
            monotonic_s=now_s,
            on_lost=lambda why: state.events.put(Lost(why=why)),
        )
        self._own_calls = LeaseCalls(self._held, rng=rng, monotonic_s=now_s, sleep=self._sleep)
        self._calls = LeaseCalls(self._held, rng=rng, monotonic_s=now_s)
        self._heartbeat = HeartbeatThread(
            node=node,
            held=self._held,
            snapshot=self._snapshot,
            is_alive=lambda: now_s() - state.ticked_at_s < deps.settings.hello_s + HANGS_AFTER_S,
            ordered=state.commands.receive,
            monotonic_s=now_s,
            rng=rng,
            is_ending=self.is_ending,
        )
        self._fetching = Fetching(
            node=node,
            calls=self._own_calls,
            storage=deps.storage,
            cache=deps.cache,
            models=deps.models,
            monotonic_s=now_s,
            patience_s=deps.settings.transfer_patience_s,
            check=self.check,
        )

    # ---- see Platform ----

    def open(self) -> None:
        """Beat once, so that a lease that is lost already is known before anything is done; start the heartbeats."""
        self._heartbeat.start(after_s=self._heartbeat.beat())

    def close(self) -> None:
        """End the heartbeats; nothing more is written under the lease."""
        self._heartbeat.stop()
        self._held.lose("the attempt has ended")

    def check(self) -> None:
        """Raise LeaseLost when the lease is lost, and Leaving when the attempt has to end."""
        self._held.check()
        self._state.check()

    def why_lost(self) -> str | None:
        """Return the reason why the lease is lost, or None."""
        return self._held.why_lost()

    def is_ending(self) -> bool:
        """Return True while a report is under way that may end the lease, and from then on if it did."""
        return False

    def phase(self, message: PhaseMessage) -> None:
        """Beat soon when the phase is new."""
        if message.name != self._phase:
            self._phase = message.name
            self._heartbeat.nudge()

    def step(self, _: Progress) -> None:
        """Beat soon after the first step."""
        if self._first_step:
            self._first_step = False
            self._heartbeat.nudge()

    def stderr_line(self, text: str) -> None:
        """Keep the line: it may explain a crash."""
        self._stderr.append(text)

    def out_of_time(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Give back work whose results have not arrived: another attempt does it."""
        if isinstance(outcome, Finished):
            message = "the node was told to leave before the results were uploaded"
            return Released(reason=Reason.PREEMPTED, message=message)
        return outcome

    def report(self, outcome: AttemptOutcome, *, tail: Sequence[str]) -> AttemptOutcome:
        """Report the outcome, with the reason that the engine's lines give for a crash."""
        report = OutcomeReport(self._deps.node, self._own_calls, self._state.progress)
        return report.send(explained(outcome, tuple(self._stderr), self._leased), tail=tail, until=self._report_by)

    # ---- models ----

    def blames_damage(self, reason: Reason, message: str) -> str | None:
        """Return what to say instead when a failure may come from a model file that is damaged on this disk. None for
        any other failure. The damaged file is removed, so that the next lease fetches it again.
        """
        if not (fails_at_once(reason) or reason is Reason.NODE_DOWNLOAD):
            return None
        if self._damaged is None:
            self._damaged = tuple(each.name for each in self._leased.files if self._is_damaged(each))
        return f"{', '.join(self._damaged)} was damaged on this node: {message}" if self._damaged else None

    def _is_damaged(self, file: LeaseFile) -> bool:
        return file.role != PICTURE_ROLE and self._deps.models.discard_if_damaged(file.download.sha256)

    # ---- clocks ----

    def _report_by(self) -> float | None:
        commands = self._state.commands
        return commands.leave_by() if commands.leave else None

    def _sleep(self, timeout_s: float) -> None:
        """Sleep between tries, but not beyond the loss of the lease or an order."""
        commands = self._state.commands
        known, wake_at_s = commands.wanted(), self._now_s() + timeout_s
        while (rest_s := wake_at_s - self._now_s()) > 0 and commands.wanted() is known:
            self._state.tick()
            if self._held.why_lost() is not None:
                return
            self._held.wait(min(TICK_S, rest_s))

    def _snapshot(self) -> Heartbeat:
        engine = self._deps.engines.current
        pid, held = (engine.pid, engine.held) if engine is not None and engine.is_alive() else (None, ())
        return self._state.progress.heartbeat(engine_pid=pid, held_models=held)
