"""The platform of a node: the control plane over HTTP, under a lease."""

import collections
import contextlib
from collections.abc import Sequence
from pathlib import Path

from giornata.agent.attempt import TICK_S
from giornata.agent.claiming import AgentDeps
from giornata.agent.engine_process import TAIL_LINES
from giornata.agent.events import AttemptOutcome, Finished, Lost, Released
from giornata.agent.fetching import Fetching
from giornata.agent.heartbeat import HeartbeatThread
from giornata.agent.lease import LeaseCalls, LocalLease
from giornata.agent.log_shipper import LogShipper
from giornata.agent.platform import AttemptState
from giornata.agent.report import OutcomeReport, explained
from giornata.agent.uploader import AttemptUploader
from giornata.agent.work_dir import JobDir
from giornata.domain.errors import GiornataError
from giornata.domain.reasons import Reason
from giornata.protocol.pipe import ArtifactWritten, CachePut, CheckpointWritten, Notice, PhaseMessage, Progress, Start
from giornata.protocol.work import Heartbeat, Lease

STOP_UPLOADS_S = 5.0
HANGS_AFTER_S = 60.0


class ControlPlane:
    """Keeps one lease, and moves the bytes of one attempt by signed URLs (`giornata.agent.platform.Platform`).

    `granted_at_s` is when the claim of the lease was first sent, by the node's monotonic clock.
    """

    def __init__(
        self, lease: Lease, *, granted_at_s: float, job_dir: JobDir, state: AttemptState, deps: AgentDeps
    ) -> None:
        self._lease, self._job_dir, self._state, self._deps = lease, job_dir, state, deps
        now_s, rng, node = deps.monotonic_s, deps.rng, deps.node
        self._now_s, self._phase, self._first_step = now_s, "", True
        self._stderr: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._held = LocalLease(
            lease,
            granted_at_s=granted_at_s,
            monotonic_s=now_s,
            on_lost=lambda why: state.events.put(Lost(why=why)),
        )
        self._own_calls = LeaseCalls(self._held, rng=rng, monotonic_s=now_s, sleep=self._sleep)
        calls = LeaseCalls(self._held, rng=rng, monotonic_s=now_s)
        self._heartbeat = HeartbeatThread(
            node=node,
            held=self._held,
            snapshot=self._snapshot,
            is_alive=lambda: now_s() - state.ticked_at_s < deps.settings.hello_s + HANGS_AFTER_S,
            ordered=state.commands.receive,
            monotonic_s=now_s,
            rng=rng,
        )
        self._log = LogShipper(node, calls)
        self._uploader = AttemptUploader(
            node=node,
            calls=calls,
            storage=deps.storage,
            post=state.events.put,
            monotonic_s=now_s,
            patience_s=deps.settings.transfer_patience_s,
            deliver_points=self._log.deliver_points,
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
        """Beat once, so that a lease that is lost already is known before anything is done; start the threads."""
        self._heartbeat.start(after_s=self._heartbeat.beat())
        self._log.start()
        self._uploader.start()

    def close(self) -> None:
        """End the threads; nothing more is written under the lease."""
        self._heartbeat.stop()
        self._log.stop()
        self._held.lose("the attempt has ended")
        self._uploader.stop(wait_s=STOP_UPLOADS_S)

    def check(self) -> None:
        """Raise LeaseLost when the lease is lost, and Leaving when the attempt has to end."""
        self._held.check()
        self._state.check()

    def prepare(self) -> Start:
        """Fetch the inputs and the newest checkpoint that arrives whole."""
        lease = self._lease
        inputs = self._fetching.inputs(lease.inputs, self._job_dir)
        return Start(
            attempt=lease.attempt_id,
            job=lease.job_id,
            kind=lease.kind,
            spec=lease.spec,
            directory=self._job_dir.work,
            inputs=inputs,
            resume=self._fetching.resume_point(lease.checkpoints, self._job_dir),
            mtbi_s=lease.mtbi_s,
            max_at_risk_s=lease.max_at_risk_s,
            hub_token=lease.hub_token,
            wandb_api_key=lease.wandb_api_key,
            joint_key=lease.joint_key,
        )

    def why_lost(self) -> str | None:
        """Return the reason why the lease is lost, or None."""
        return self._held.why_lost()

    def phase(self, message: PhaseMessage) -> None:
        """Beat soon when the phase is new."""
        if message.name != self._phase:
            self._phase = message.name
            self._heartbeat.nudge()

    def step(self, message: Progress) -> None:
        """Ship the metrics, and beat soon after the first step."""
        if message.metrics:
            self._log.metrics(message.step, message.metrics)
        if self._first_step:
            self._first_step = False
            self._heartbeat.nudge()

    def log_line(self, text: str) -> None:
        """Queue the line for the job's log on the server."""
        self._log.line(text)

    def stderr_line(self, text: str) -> None:
        """Ship the line, and keep it: it may explain a crash."""
        self._stderr.append(text)
        self._log.line(text)

    def notice(self, message: Notice) -> None:
        """Queue the notice behind the files that were announced before it."""
        self._uploader.notice(message)

    def upload(self, message: CheckpointWritten | ArtifactWritten | CachePut, path: Path) -> None:
        """Queue the file; a job is complete only with every artifact that was announced."""
        if isinstance(message, ArtifactWritten):
            self._state.progress.artifacts = (*self._state.progress.artifacts, message.name)
        self._uploader.file(message, path)

    def is_idle(self) -> bool:
        """Return True when the queue of uploads is empty."""
        return self._uploader.is_idle()

    def out_of_time(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Give back a job whose results have not arrived: another attempt resumes at the last checkpoint."""
        if isinstance(outcome, Finished):
            message = "the node was told to leave before the results were uploaded"
            return Released(reason=Reason.PREEMPTED, message=message)
        return outcome

    def find_cache(self, key: str) -> Path | None:
        """Fetch what an earlier job of the project left under the key."""
        return self._fetching.cached(key, self._job_dir)

    def report(self, outcome: AttemptOutcome, *, tail: Sequence[str]) -> AttemptOutcome:
        """Send what is left of the log, and then the outcome."""
        self._log.stop()
        self._log.flush()
        if isinstance(outcome, Finished):
            # No attempt comes after this one: what has not arrived by its end never does.
            with contextlib.suppress(GiornataError):
                self._own_calls.persist(lambda _: self._log.deliver_points(), until=self._report_by)
        report = OutcomeReport(self._deps.node, self._own_calls, self._state.progress)
        return report.send(explained(outcome, tuple(self._stderr), self._lease), tail=tail, until=self._report_by)

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
