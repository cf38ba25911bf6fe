"""The ancestor's orchestrator, as a small model: the baseline, and the one place with a second scheduler.

Written anew from the description of what its code does; numbers in brackets are those of its known defects
(docs/explanation/defects.md). Two of its settings were never published and are assumed: FAILED_ATTEMPTS and
FAILURES_PER_WORKER, the latter as its successor's example has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from giornata.domain.jobs.reasons import Reason
from giornata.simulate.agenda import Agenda
from giornata.simulate.draws import rng
from giornata.simulate.installation import Counts
from giornata.simulate.plane import ClaimRequest, Grant, HeartbeatAnswer, Nothing, ServerAway, SimulatedProgress

MAX_HEARTBEAT_AGE_MS = 60_000
FAILURES_PER_WORKER = 5
FAILED_ATTEMPTS = 3
# Between its SELECT and its UPDATE: others that read meanwhile get the same row (D1).
READ_TO_WRITE_MS = 50.0


@dataclass(slots=True)
class _Row:
    id: str
    number: int
    status: str = "pending"
    last_heartbeat_ms: float = 0.0
    claimed_ms: float = float("-inf")
    failures: int = 0
    newest_upload: int = 0  # its step
    touched_ms: float = 0.0
    attempts: int = 0


@dataclass(slots=True)
class AncestorPlane:
    """Answers the calls of `giornata.simulate.plane.SimulatedControlPlane`.

    It has no leases: it believes nodes (D2).
    """

    agenda: Agenda
    seed: int
    steps: int
    every: int
    away: bool = False
    rows: dict[str, _Row] = field(default_factory=dict)
    bans: set[tuple[str, str]] = field(default_factory=set)  # (machine, job), for ever (D24)
    failed: int = 0
    completions: int = 0
    _pending: dict[str, _Row] = field(default_factory=dict)
    _running: dict[str, _Row] = field(default_factory=dict)

    def submit(self, job_id: str) -> None:
        """A new job."""
        row = _Row(id=job_id, number=len(self.rows))
        self.rows[job_id] = self._pending[job_id] = row

    def counts(self) -> Counts:
        """Rows that wait, and rows that are shown as running, whether anybody is at them or not (D29)."""
        return Counts(queued=len(self._pending), at_work=len(self._running))

    # ---- the plane ----

    def claim(self, requests: Sequence[ClaimRequest]) -> list[Grant | Nothing]:
        self._present()
        # Polls of one instant are spread over its second.
        at_ms = {
            each.number: self.agenda.now_ms()
            + 1000 * rng(self.seed, "poll", f"{each.number} {each.request}").random()
            for each in requests
        }
        answers: dict[int, Grant | Nothing] = {}
        for each in sorted(requests, key=lambda each: at_ms[each.number]):
            answers[each.number] = self._claim(each.machine_id, at_ms[each.number])
        return [answers[each.number] for each in requests]

    def _claim(self, machine_id: str, at_ms: float) -> Grant | Nothing:
        stalled, pending = self._stalled(at_ms), self._waiting(at_ms)
        for n in range(FAILURES_PER_WORKER):
            # The n-th of the one list, else the n-th of the other (D9, D10).
            row = stalled[n] if n < len(stalled) else pending[n] if n < len(pending) else None
            if row is None:
                break
            if (machine_id, row.id) not in self.bans:
                return self._take(row, machine_id, at_ms)
        return Nothing(reason="nothing")

    def _stalled(self, at_ms: float) -> list[_Row]:
        old_ms = at_ms - MAX_HEARTBEAT_AGE_MS
        found = [row for row in self._running.values() if row.last_heartbeat_ms < old_ms]
        return sorted(found, key=lambda row: row.last_heartbeat_ms)[:FAILURES_PER_WORKER]

    def _waiting(self, at_ms: float) -> list[_Row]:
        # What was taken this very moment still reads as pending.
        fresh = [row for row in self._running.values() if 0 <= at_ms - row.claimed_ms < READ_TO_WRITE_MS]
        fresh = [row for row in fresh if row.attempts == 1]
        heads = []
        for row in self._pending.values():
            heads.append(row)
            if len(heads) >= FAILURES_PER_WORKER:
                break
        return sorted([*fresh, *heads], key=lambda row: row.number)

    def _take(self, row: _Row, machine_id: str, at_ms: float) -> Grant:
        self._pending.pop(row.id, None)
        self._running[row.id] = row
        row.status, row.claimed_ms, row.last_heartbeat_ms = "running", at_ms, at_ms
        row.attempts += 1
        return Grant(
            job_id=row.id,
            machine_id=machine_id,
            attempt_id=f"{row.id}-{row.attempts}",
            attempt=row.attempts,
            start_step=row.newest_upload,
            total_steps=self.steps,
            every=self.every,
            lease_s=MAX_HEARTBEAT_AGE_MS / 1000,
            mtbi_s=float("inf"),
            max_at_risk_s=float("inf"),
            model="sdxl",
        )

    def beat(self, beats: Sequence[SimulatedProgress]) -> list[HeartbeatAnswer]:
        self._present()
        return [self._beat(each.job_id) for each in beats]

    def _beat(self, job_id: str) -> HeartbeatAnswer:
        row = self._running.get(job_id)
        if row is None:
            return HeartbeatAnswer.LOST  # 400: the job is not running
        row.last_heartbeat_ms = self.agenda.now_ms()
        return HeartbeatAnswer.GO_ON

    def commit(self, grant: Grant, step: int) -> bool:
        """An upload: the newest by the clock is what others resume from, whatever its step (D17)."""
        self._present()
        self.rows[grant.job_id].newest_upload = step
        return True

    def complete(self, grant: Grant) -> bool:
        self._present()
        row = self.rows[grant.job_id]
        self._running.pop(row.id, None)
        self._pending.pop(row.id, None)
        row.status, row.touched_ms = "complete", self.agenda.now_ms()
        self.completions += 1
        return True

    def fail(self, grant: Grant, reason: Reason, step: int) -> bool:
        """A ban for ever; the row stays `running` until it is stale (D28). Nobody asks whose fault it is (D23)."""
        del reason, step
        self._present()
        self.bans.add((grant.machine_id, grant.job_id))
        row = self.rows[grant.job_id]
        row.failures += 1
        if row.failures >= FAILED_ATTEMPTS and row.status == "running":
            self._running.pop(row.id, None)
            row.status, row.touched_ms = "failed", self.agenda.now_ms()
            self.failed += 1
        return True

    def release(self, grant: Grant, step: int) -> bool:
        """Its nodes never give a job back."""
        raise NotImplementedError

    def _present(self) -> None:
        if self.away:
            raise ServerAway
