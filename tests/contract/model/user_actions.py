"""What users do: submit, cancel, retry, go on, look."""

from contextlib import suppress
from typing import Any

from tests.contract.model.calls import DIED, Submitted
from tests.contract.model.claim_actions import MODELS, ClaimActions
from tests.contract.model.model_rig import ENDING, PROJECTS, owner
from tests.contract.model.node_actions import named
from tests.contract.model.shares import cost_of_job

from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.retry import RETRYABLE, continue_training, retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.control.storage.uploads import complete_upload, request_uploads
from giornata.domain.errors import GiornataError, InvalidInput, KeyInFlight, NotFound, OverBudget
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.jobs import ContinueJob, SubmitJob
from giornata.protocol.specs import AUDIT_KIND
from giornata.protocol.uploads import CompleteUpload, FileToUpload, UploadRequest
from giornata.store import schema


class UserActions(ClaimActions):
    """Actions of those whose jobs they are."""

    def submit(self, a: int, b: int) -> None:
        project = PROJECTS[a % len(PROJECTS)]
        kind = "x-own" if b % 3 else "train"
        request = SubmitJob(
            kind=kind,
            spec=self._spec(kind, project, a, b),
            priority=a % 3,
            deadline_s=60 * (1 + b) if b % 7 == 0 else None,
        )
        key = f"key-{next(self.actors.numbers):07d}" if b % 2 else None
        action = lambda: submit(self.ctx, owner(project), request, key)  # noqa: E731
        outcome = self.call(action)
        if outcome is DIED:
            # It may be there or not; its sender asks until it is answered, and has a key if it is wise.
            self._find_new_jobs()
            return
        if isinstance(outcome, OverBudget):
            self.unchanged()
            return
        job, made = outcome
        assert made
        self.actors.jobs.append((job.id, project))
        if key is not None:
            it = Submitted(project=project, request=request, key=key, job_id=job.id, at_ms=self.rig.clock.now_ms())
            self.actors.submitted.append(it)

    def submit_again(self, a: int, b: int) -> None:
        """Equal requests make one job, for as long as the key is remembered."""
        submitted = list(self.actors.submitted)  # other threads take some away
        if not submitted:
            return
        it = submitted[-1 - a % len(submitted)]
        # A clock that was set back meanwhile may have had the request forgotten when it ran ahead.
        age_ms = max(self.rig.clock.now_ms(), self.actors.latest_ms) - it.at_ms
        outcome = self.call(lambda: submit(self.ctx, owner(it.project), it.request, it.key))
        if outcome is DIED:
            with suppress(ValueError):  # another thread may have died of the same
                self.actors.submitted.remove(it)  # what became of it, nobody was told
            self._find_new_jobs()
            return
        if isinstance(outcome, KeyInFlight):
            assert not self.exact  # another thread sends the very same request just now
            return
        if isinstance(outcome, OverBudget):  # its key was forgotten, or the first was refused as well
            self.unchanged()
            return
        job, made = outcome
        if self.exact and not made:
            self.unchanged()
        assert made or job.id == it.job_id or not self.exact, f"{it} made {job.id}"
        if made:
            self.actors.jobs.append((job.id, it.project))
            assert age_ms > self.ctx.policy.idempotency_kept_s * 1000 or not self.exact
            it.job_id, it.at_ms = job.id, self.rig.clock.now_ms()

    def cancel(self, a: int, b: int) -> None:
        if not self.actors.jobs:
            return
        job_id, project = self._some_job(a)
        if b % 9 == 0:
            self._stranger(project, lambda who: cancel(self.ctx, who, job_id))
            return
        was = self._state(job_id)
        outcome = self.call(lambda: cancel(self.ctx, owner(project), job_id), again=True)
        refused = was in TERMINAL and was != JobState.CANCELED
        assert outcome is DIED or not self.exact or isinstance(outcome, GiornataError) is refused, outcome

    def retry(self, a: int, b: int) -> None:
        if not self.actors.jobs:
            return
        job_id, project = self._some_job(a)
        if b % 9 == 0:
            self._stranger(project, lambda who: retry(self.ctx, who, job_id))
            return
        may = self.exact and self._may_retry(job_id)
        outcome = self.call(lambda: retry(self.ctx, owner(project), job_id), again=True)
        if outcome is DIED:
            self._find_new_jobs()
            return
        refused = not may or isinstance(outcome, OverBudget)
        assert not self.exact or isinstance(outcome, GiornataError) is refused, outcome
        if not isinstance(outcome, GiornataError) and (outcome.id, project) not in self.actors.jobs:
            self.actors.jobs.append((outcome.id, project))

    def crash_again(self, a: int, b: int) -> None:
        """A job crashes, its owner wants another try, and if the same machine has it once more, it crashes there."""
        held = self.some(a, b)
        known = [job_id for job_id, _ in self.actors.jobs]
        if held is None or held.job_id not in known:
            return
        self.crash_of(held, b)
        if self.exact:
            self.checker.look()
        self.retry(known[::-1].index(held.job_id), 1)
        if self.exact:
            self.checker.look()
        self.claim(held.place.number, 1)
        latest = self.actors.held[-1]
        if latest.job_id == held.job_id and latest.attempt_id != held.attempt_id:
            if self.exact:
                self.checker.look()
            self.crash_of(latest, b)

    def continue_one(self, a: int, b: int) -> None:
        """More training of what an ended job has trained: its last checkpoint is then read by two jobs."""
        if not self.actors.jobs:
            return
        job_id, project = self._some_job(a)
        was = self._state(job_id)
        more = ContinueJob(spec={"max_train_steps": 10 + b % 7})

        def action() -> Any:
            try:
                return continue_training(self.ctx, owner(project), job_id, more, None)[0]
            except InvalidInput as refusal:  # another kind, nothing to go on from, or bytes that storage has lost
                return refusal

        outcome = self.call(action)
        if outcome is DIED:
            self._find_new_jobs()
        elif isinstance(outcome, GiornataError):
            fine = isinstance(outcome, InvalidInput | OverBudget)
            assert was not in TERMINAL or fine or not self.exact, outcome
        else:
            assert was in TERMINAL or not self.exact
            self.actors.jobs.append((outcome.id, project))

    def look_at(self, a: int, b: int) -> None:
        """A job costs its shares of what its nodes cost."""
        if not self.actors.jobs:
            return
        job_id, project = self._some_job(a)
        job = self.call(lambda: get_job(self.ctx, owner(project), job_id))
        if job is not DIED and self.exact:
            assert job.cost_micro_usd == cost_of_job(self.checker.now, job_id)
            assert min(job.useful_s, job.lost_s) >= 0, job

    def send_pictures(self, a: int, b: int) -> None:
        """Bytes of a user that nothing refers to yet."""
        who, data = owner(PROJECTS[a % len(PROJECTS)]), f"picture {b % 6}".encode()
        file = FileToUpload(**named(data))
        reply = self.call(lambda: request_uploads(self.ctx, who, UploadRequest(files=(file,))))
        if reply is DIED or (ticket := reply.items[0]).exists:
            return
        self.rig.blobs.put(ticket.put.url.removeprefix("memory:///"), data)
        self.call(lambda: complete_upload(self.ctx, who, ticket.upload_id, CompleteUpload()), lasting=True)

    def _spec(self, kind: str, project: str, a: int, b: int) -> dict[str, Any]:
        keep = {"checkpoints_keep_latest": 1 + a % 3, "checkpoints_keep_every": 20 if b % 4 == 0 else None}
        if kind != "train":
            return {"steps": 100, **(keep if a % 2 else {})}
        return {
            **keep,
            "model": MODELS[a % 2],
            "dataset": self.rig.datasets[project],
            "instance_prompt": "sks",
            "max_train_steps": 100,
        }

    def _some_job(self, a: int) -> tuple[str, str]:
        return self.actors.jobs[-1 - a % len(self.actors.jobs)]

    def _state(self, job_id: str) -> str:
        return str(self.checker.jobs[job_id].state) if self.exact else ""

    def _may_retry(self, job_id: str) -> bool:
        """One that ended badly makes a new job; one that waits after an attempt may go back to any machine."""
        row = self.checker.jobs[job_id]
        return row.state in RETRYABLE or bool(row.suspect) or (row.state == JobState.QUEUED and bool(row.interrupted))

    def _stranger(self, project: str, action: Any) -> None:
        stranger = owner(PROJECTS[(PROJECTS.index(project) + 1) % len(PROJECTS)])
        outcome = self.call(lambda: action(stranger))
        assert outcome is DIED or isinstance(outcome, NotFound), outcome
        self.unchanged()

    def _find_new_jobs(self) -> None:
        known = {job_id for job_id, _ in (*self.actors.jobs, *self.actors.orders)}
        with self.rig.store.read() as tx:
            rows = tx.connection.execute(schema.jobs.select()).all()
        for row in rows:
            asked_for = row.kind not in {SWEEP_KIND, AUDIT_KIND} and row.project_id != ENDING
            if row.id not in known and row.deleted_at_ms is None and asked_for:
                of_its_kind = self.actors.orders if row.kind in ORDER_KINDS else self.actors.jobs
                of_its_kind.append((row.id, row.project_id))
