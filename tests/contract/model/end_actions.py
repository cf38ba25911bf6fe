"""What ends: jobs and datasets are deleted, retention takes what is old, and pins keep some of it.

Only where nobody else is at work: there every answer can be foretold, and what is gone is known to the checker.
"""

from tests.contract.model.actions import DAY_S, Actions
from tests.contract.model.calls import DIED, TrackedLease
from tests.contract.model.model_rig import PROJECTS, ROOT, Row, owner

from giornata.control.end_of_life.apply_retention import apply_retention
from giornata.control.end_of_life.delete_dataset import delete_dataset
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.end_of_life.finish_deletions import finish_deletions
from giornata.control.end_of_life.pins import set_pin
from giornata.control.end_of_life.retention import set_retention
from giornata.domain.errors import GiornataError
from giornata.domain.jobs.job import TERMINAL
from giornata.protocol.project.end_of_life import Deletion, SetRetention

CLASSES = ("checkpoints", "artifacts", "logs", "metrics", "events", "pictures")
LATEST = 4


class EndActions(Actions):
    """Actions of those who want something gone, or kept."""

    def delete_one(self, a: int, b: int) -> None:
        """A job with all that hangs on it; one that has not ended only if it may be canceled."""
        if not self.exact or not self.actors.jobs:
            return
        job_id, project = self.actors.jobs[-1 - a % len(self.actors.jobs)]
        self._delete(job_id, project, cancel=b % 3 == 0)

    def delete_shared(self, a: int, b: int) -> None:
        """One of two jobs that have bytes in common: a retry starts from the checkpoints of the job before."""
        known = self.checker.jobs if self.exact else {}
        retries = [row for row in known.values() if row.retry_of is not None and row.deleted_at_ms is None]
        pairs = [(row, known[row.retry_of]) for row in retries if known[row.retry_of].deleted_at_ms is None]
        if pairs:
            row = pairs[-1 - a % len(pairs)][b % 2]
            self._delete(row.id, row.project_id, cancel=True)

    def delete_order(self, a: int, b: int) -> None:
        """An order with its pictures, while nodes may draw some of them."""
        if not self.exact or not self.actors.orders:
            return
        order_id, project = self.actors.orders[-1 - a % min(len(self.actors.orders), LATEST)]
        self._delete(order_id, project, cancel=b % 2 == 0)

    def _delete(self, job_id: str, project: str, *, cancel: bool) -> None:
        row = self.checker.jobs[job_id]
        pinned = row.pinned or any(each.pinned for each in self.checker.now.checkpoints if each.job_id == job_id)
        drawn = [each for each in self.checker.now.pictures if each.order_id == job_id and each.sha256 is not None]
        refused = bool(pinned) or not (cancel or row.state in TERMINAL)
        outcome = self.call(lambda: delete_job(self.ctx, owner(project), job_id, cancel=cancel))
        assert outcome is DIED or isinstance(outcome, GiornataError) is refused, outcome
        self.checker.look()
        if isinstance(outcome, Deletion) and outcome.finished:
            left = [f"pictures/{project}/{each.lease}/{each.sha256}" for each in drawn]
            assert self.rig.blobs.objects.keys().isdisjoint(left), f"bytes of deleted pictures are left: {left}"
        if self.checker.jobs[job_id].deleted_at_ms is not None:
            for those in (self.actors.jobs, self.actors.orders):
                those[:] = [each for each in those if each != (job_id, project)]
            self.actors.submitted[:] = [it for it in self.actors.submitted if it.job_id != job_id]

    def finish_deletions(self, a: int, b: int) -> None:
        """The loop goes on where a server died."""
        self.call(lambda: finish_deletions(self.ctx), again=True)

    def delete_dataset(self, a: int, b: int) -> None:
        """A dataset that nobody trains on. Its owner makes it again, because the rest of the schedule needs it."""
        if not self.exact:
            return
        project = PROJECTS[a % len(PROJECTS)]
        dataset_id = self.rig.datasets[project]
        busy = [
            row
            for row in self.checker.jobs.values()
            if row.kind == "train" and row.project_id == project and row.state not in TERMINAL
        ]
        outcome = self.call(lambda: delete_dataset(self.ctx, owner(project), dataset_id))
        assert outcome is DIED or isinstance(outcome, GiornataError) is bool(busy), f"{outcome!r} with {busy}"
        self.checker.look()
        assert self.rig.new_dataset(project) == dataset_id

    def retain(self, a: int, b: int) -> None:
        """A project keeps some of what it has for a day, and the day is over for some of it."""
        if not self.exact:
            return
        project = PROJECTS[a % len(PROJECTS)]
        days = {name: 1 for number, name in enumerate(CLASSES) if (b >> number) & 1}
        self.rig.retained.add(project)
        set_retention(self.ctx, ROOT, project, SetRetention(**days))
        if a % 4 == 0:
            self.rig.clock.advance_s(DAY_S + b)
        self.call(lambda: bool(apply_retention(self.ctx)))

    def keep_and_age(self, a: int, b: int) -> None:
        """A job that has ended is pinned, or one of its checkpoints; then the day of all the rest is over."""
        if not self.exact:
            return
        seen = self.checker.now
        having = {each.job_id for each in (*seen.checkpoints, *seen.artifacts)} | {
            row.order_id for row in seen.pictures
        }
        ended = [row for row in seen.jobs if row.state in TERMINAL and row.deleted_at_ms is None and row.id in having]
        if ended:
            row = ended[-1 - a % len(ended)]
            self._pin_step(row, pinned=True) if b % 3 == 0 else self._pin_job(row, pinned=True)
            self.rig.retained.add(row.project_id)
            set_retention(self.ctx, ROOT, row.project_id, SetRetention(**dict.fromkeys(CLASSES, 1)))
        self.rig.clock.advance_s(DAY_S + b)
        self.call(lambda: bool(apply_retention(self.ctx)))

    def pin_running(self, a: int, b: int) -> None:
        """The latest checkpoint of a job that goes on is pinned; in half of the cases later ones come in."""
        running = [row for row in self.checker.jobs.values() if row.state == "running"] if self.exact else []
        if not running:
            return
        row = running[-1 - a % len(running)]
        self._pin_step(row, pinned=True)
        held = next((it for it in self.actors.held if it.attempt_id == row.attempt_id), None)
        if held is not None and b % 2:
            for step in range(row.committed_step + 1, row.committed_step + 4):
                self._commit_one(held, step)

    def _commit_one(self, held: TrackedLease, step: int) -> None:
        data = f"{held.job_id} {step}".encode()
        upload_id = self._sent(held, data)
        if upload_id is not DIED:
            self._commit_step(held, step, data, upload_id, honest=True, again=False)
            self.checker.look()

    def _pin_job(self, row: Row, *, pinned: bool) -> None:
        self.call(lambda: set_pin(self.ctx, owner(row.project_id), row.id, pinned=pinned), again=True)

    def _pin_step(self, row: Row, *, pinned: bool) -> None:
        """The job's latest checkpoint, if it has one that is good."""
        steps = [each.step for each in self.checker.now.checkpoints if each.job_id == row.id and not each.rejected]
        if steps:
            target = f"{row.id}@{max(steps)}"
            self.call(lambda: set_pin(self.ctx, owner(row.project_id), target, pinned=pinned), again=True)
            self.checker.replays[row.id].pinned.add(max(steps))

    def pin(self, a: int, b: int) -> None:
        """A job, or one of its checkpoints, is pinned or is not any more."""
        if not self.exact or not self.actors.jobs:
            return
        job_id, project = self.actors.jobs[-1 - a % len(self.actors.jobs)]
        steps = [row.step for row in self.checker.now.checkpoints if row.job_id == job_id and not row.rejected]
        pinned = b % 4 != 0
        if not steps or b % 3 == 0:
            self.call(lambda: set_pin(self.ctx, owner(project), job_id, pinned=pinned), again=True)
            return
        step = steps[b % len(steps)]
        self.call(lambda: set_pin(self.ctx, owner(project), f"{job_id}@{step}", pinned=pinned), again=True)
        (self.checker.replays[job_id].pinned.add if pinned else self.checker.replays[job_id].pinned.discard)(step)
