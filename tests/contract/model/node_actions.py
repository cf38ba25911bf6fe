"""What can happen to the rig. Every action takes two numbers from 0 to 63, which say to whom and how."""

import hashlib
from typing import Any

from tests.contract.model.calls import DIED, CheckedCalls, Ticket, TrackedLease

from giornata.control.attempts.commit import commit_artifact, commit_checkpoint
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.reject_checkpoint import reject_checkpoint
from giornata.control.attempts.report import add_log_lines, add_notice, put_metrics
from giornata.control.storage.uploads import commit_cache, get_cache, request_attempt_uploads
from giornata.domain.errors import GiornataError, Unavailable
from giornata.domain.jobs.reasons import REPORTABLE_FAILURES, REPORTABLE_RELEASES, Reason
from giornata.protocol.node.work import (
    CommitArtifact,
    CommitCache,
    CommitCheckpoint,
    Committed,
    CompleteAttempt,
    FailAttempt,
    Heartbeat,
    HeartbeatReply,
    LogLines,
    MetricBatch,
    NoticeReport,
    ReleaseAttempt,
    StepMetrics,
)
from giornata.protocol.uploads import FileToUpload, UploadRequest
from giornata.store import schema

FAILURES = sorted(REPORTABLE_FAILURES)
RELEASES = sorted(REPORTABLE_RELEASES)
LATEST = 6


class NodeActions(CheckedCalls):
    """What nodes send once they have a lease."""

    def beat(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            self.beat_of(held, b)

    def beat_of(self, held: TrackedLease, b: int) -> None:
        """Of this one."""
        beat = Heartbeat(step=2 * b, phase="train", metrics={"loss": 0.5} if b % 4 == 0 else {})
        late = self.late(held)
        outcome = self.write(held, lambda: heartbeat(self.ctx, held.attempt_id, beat), again=b % 3 == 0)
        assert late is not Reason.TOO_SLOW or not isinstance(outcome, HeartbeatReply), f"{held} goes on for ever"

    def metrics(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            batch = MetricBatch(points=(StepMetrics(step=b, values={"loss": b / 64}),))
            self.write(held, lambda: put_metrics(self.ctx, held.attempt_id, batch), again=True)

    def log(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            lines = LogLines(first=b % 8, lines=("one", "two"))
            self.write(held, lambda: add_log_lines(self.ctx, held.attempt_id, lines), again=True)

    def notice(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            report = NoticeReport(notice_id=f"notice-{b % 8}", name="something", data={"number": b})
            self.write(held, lambda: add_notice(self.ctx, held.attempt_id, report), again=True)

    def commit(self, a: int, b: int) -> None:
        """Ask for a place, send the bytes, commit. Equal work makes equal bytes, but not always."""
        if held := self.some(a, b):
            step = 10 * (1 + a // 8)
            data = f"{held.job_id} {step}{' other' if b >= 56 else ''}".encode()
            upload_id = self._sent(held, data)
            if upload_id is not DIED:
                if b % 4 == 1:
                    self.dying = a // 2  # a commit has more places to die at than anything else
                self._commit_step(held, step, data, upload_id, honest=True, again=b % 2 == 0)

    def commit_late(self, a: int, b: int) -> None:
        """A place that was asked for earlier, perhaps with nothing in it, or by somebody who is dead by now."""
        if self.actors.tickets:
            its = self.actors.tickets[-1 - a % min(len(self.actors.tickets), LATEST)]
            self._commit_step(its.held, 10 * (1 + b % 8), its.data, its.ticket.upload_id, honest=False, again=False)

    def upload(self, a: int, b: int) -> None:
        """Only ask."""
        if held := self.some(a, b):
            self._sent(held, f"bytes {b % 8}".encode(), arrives=False)

    def put_late(self, a: int, b: int) -> None:
        """Bytes arrive at a URL that is still good, whoever has the job now; on their first way in they may spoil."""
        if self.actors.tickets:
            its = self.actors.tickets[-1 - a % min(len(self.actors.tickets), LATEST)]
            if its.ticket.put and its.ticket.put.expires_at.timestamp() * 1000 > self.rig.clock.now_ms():
                spoiled = b % 4 == 0 and _key(its) not in self.rig.blobs.objects
                self.rig.blobs.put(_key(its), b"spoiled" if spoiled else its.data)

    def reject(self, a: int, b: int) -> None:
        """Believed only if storage has really lost the bytes: nodes may err, or lie."""
        if held := self.some(a, b):
            step = 10 * (1 + b % 8)
            was = self._saved(held, step)
            outcome = self.write(held, lambda: self._rejected(held, step), must=False, again=b % 2 == 0)
            if was is None or outcome is not None:
                return
            self.checker.look()
            now = self._saved(held, step)
            kept = self.rig.blobs.objects.get(self._place_of(was))
            if kept is not None and kept.sha256 == was.sha256:
                assert now.rejected == was.rejected, f"{was} is good, and was rejected"
            elif kept is None and was.doubted_by != held.number and not self.muted(held.place):
                assert now.rejected, f"{was} is gone, and was not rejected"

    def lose(self, a: int, b: int) -> None:
        """Storage loses one of the latest objects, or has other bytes in its place."""
        latest = schema.blobs.select().order_by(schema.blobs.c.created_at_ms.desc(), schema.blobs.c.key).limit(LATEST)
        with self.rig.store.read() as tx:
            there = tx.connection.execute(latest).all()
        row = there[a % len(there)]
        self.rig.harmed.add((row.project_id, row.sha256))
        if b % 2:
            self.rig.blobs.put(row.key, b"~" * (row.size_bytes - b % 3 // 2))
        else:
            self.rig.blobs.delete(row.key)

    def lose_and_send_again(self, a: int, b: int) -> None:
        """Storage loses a checkpoint, and an attempt that has the very same bytes sends them."""
        if held := self.some(a, b):
            with self.rig.store.read() as tx:
                saved = tx.checkpoints.usable(held.job_id)
            for row in saved[a % 2 : a % 2 + 1]:
                data = f"{held.job_id} {row.step}".encode()
                if named(data)["sha256"] != row.blob.sha256:
                    return
                self.rig.harmed.add((held.project, row.blob.sha256))
                self.rig.blobs.delete(row.blob.key)
                upload_id = self._sent(held, data)
                if upload_id is not DIED:
                    self._commit_step(held, row.step, data, upload_id, honest=True, again=b % 2 == 0)

    def artifact(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            name = f"{a % 3}.safetensors"
            data = f"{held.job_id} {name}{held.attempt_id if b >= 40 else ''}".encode()
            self._artifact_of(held, name, data, again=b % 2 == 0)

    def _artifact_of(self, held: TrackedLease, name: str, data: bytes, *, again: bool = False) -> None:
        upload_id = self._sent(held, data)
        if upload_id is DIED:
            return
        commit = CommitArtifact(name=name, upload_id=upload_id, **named(data))
        outcome = self.write(held, lambda: commit_artifact(self.ctx, held.attempt_id, commit), again=again)
        if outcome is not None and outcome is not DIED and not isinstance(outcome, GiornataError):
            held.artifacts.add(name)
        self._stands(held, data, upload_id, outcome)

    def cache(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            data, key = f"cached {b % 4}".encode(), f"key-{a % 2}"
            upload_id = self._sent(held, data)
            if upload_id is DIED:
                return
            commit = CommitCache(upload_id=upload_id, **named(data))
            self.write(held, lambda: commit_cache(self.ctx, held.attempt_id, key, commit), again=True)
            self.write(held, lambda: get_cache(self.ctx, held.attempt_id, key))

    def complete(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            lies = b % 8 == 0
            names = (*sorted(held.artifacts), *(["never committed"] if lies else []))
            report = CompleteAttempt(step=100, artifacts=names)
            self.write(
                held,
                lambda: complete(self.ctx, held.attempt_id, report),
                must=not lies,
                end=Reason.SUCCEEDED,
                again=b % 2 == 0,
            )

    def fail(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            report = FailAttempt(reason=FAILURES[b % len(FAILURES)], message="it went wrong", step=b)
            self.write(held, lambda: fail(self.ctx, held.attempt_id, report), end=report.reason, again=b % 3 == 0)

    def crash(self, a: int, b: int) -> None:
        """The one failure that leaves it open whose fault it was."""
        if held := self.some(a, b):
            self.crash_of(held, b)

    def crash_of(self, held: TrackedLease, b: int) -> None:
        """Of this one."""
        report = FailAttempt(reason=Reason.CRASHED, message="Segmentation fault", exit_code=-11)
        self.write(held, lambda: fail(self.ctx, held.attempt_id, report), end=report.reason, again=b % 3 == 0)

    def release(self, a: int, b: int) -> None:
        if held := self.some(a, b):
            report = ReleaseAttempt(reason=RELEASES[b % len(RELEASES)], step=b)
            self.write(held, lambda: release(self.ctx, held.attempt_id, report), end=report.reason, again=b % 3 == 0)

    def again(self, a: int, b: int) -> None:
        """A write that was sent before arrives once more, now that the world has moved on."""
        if self.actors.calls:
            self.call(self.actors.calls[-1 - a % min(len(self.actors.calls), 1 + b)])

    def some(self, a: int, b: int) -> TrackedLease | None:
        """Mostly one of the latest leases, and one that is good if that is known; sometimes an old one."""
        held = self.actors.held
        if self.exact and b % 4:
            attempts = self.checker.attempts
            held = [it for it in held[-4 * LATEST :] if attempts[it.attempt_id].ended_at_ms is None] or held
        reach = len(held) if b % 5 == 0 else min(len(held), LATEST)
        return held[-1 - a % reach] if held else None

    def _commit_step(
        self, held: TrackedLease, step: int, data: bytes, upload_id: str | None, *, honest: bool, again: bool
    ) -> None:
        commit = CommitCheckpoint(step=step, upload_id=upload_id, **named(data))
        must = honest and not self._contradicts(held, commit)
        action = lambda: commit_checkpoint(self.ctx, held.attempt_id, commit)  # noqa: E731
        outcome = self.write(held, action, must=must, again=again)
        if honest:
            self._stands(held, data, upload_id, outcome)

    def _stands(self, held: TrackedLease, data: bytes, upload_id: str | None, outcome: Any) -> None:
        """What was sent and committed can be fetched, whatever storage has lost before."""
        if not (self.exact and upload_id and isinstance(outcome, Committed)):
            return
        self.checker.look()
        of = (held.project, outcome.sha256)
        (key,) = [row.key for row in self.checker.now.blobs if (row.project_id, row.sha256) == of]
        kept = self.rig.blobs.objects.get(key)
        assert kept is not None, f"{outcome} was committed, and is not there"
        assert kept.data == data

    def _rejected(self, held: TrackedLease, step: int) -> None:
        try:
            reject_checkpoint(self.ctx, held.attempt_id, step, "no")
        except Unavailable:  # too many at once read, or bytes were replaced meanwhile
            if self.exact:
                raise

    def _saved(self, held: TrackedLease, step: int) -> Any:
        """The checkpoint's row; None when there is none, or when it is no use to foretell anything."""
        if not self.exact:
            return None
        rows = self.checker.now.checkpoints
        return next((row for row in rows if (row.job_id, row.step) == (held.job_id, step)), None)

    def _place_of(self, checkpoint: Any) -> str:
        of = (checkpoint.project_id, checkpoint.sha256)
        return next(row.key for row in self.checker.now.blobs if (row.project_id, row.sha256) == of)

    def _contradicts(self, held: TrackedLease, commit: CommitCheckpoint) -> bool:
        """Whether this very attempt has committed other bytes for the step."""
        standing = [
            row
            for row in self.checker.now.checkpoints
            if (row.job_id, row.step) == (held.job_id, commit.step) and row.attempt_number >= held.number
        ]
        return any(row.sha256 != commit.sha256 and not row.rejected for row in standing)

    def _sent(self, held: TrackedLease, data: bytes, *, arrives: bool = True) -> Any:
        """The id of an upload with the bytes in it; None when there is none, or need not be one; or DIED."""
        request = UploadRequest(files=(FileToUpload(**named(data)),))
        reply: Any = self.write(held, lambda: request_attempt_uploads(self.ctx, held.attempt_id, request))
        if self.exact:
            self.checker.look()
        if reply is DIED:
            return DIED
        if reply is None or isinstance(reply, GiornataError):
            return None
        its = Ticket(held=held, ticket=reply.items[0], data=data)
        if its.ticket.exists:
            return None
        self.actors.tickets.append(its)
        if arrives:
            self.rig.blobs.put(_key(its), data)
        return its.ticket.upload_id


def _key(its: Ticket) -> str:
    assert its.ticket.put is not None
    return its.ticket.put.url.removeprefix("memory:///")


def named(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
