"""What ends: jobs and datasets are deleted, retention takes what is old, and pins keep some of it.

Only where nobody else is at work: there every answer can be foretold, and what is gone is known to the checker.
"""

from tests.contract.model.actions import DAY_S, Actions
from tests.contract.model.calls import DIED
from tests.contract.model.model_rig import PROJECTS, ROOT, owner

from giornata.control.end_of_life.apply_retention import apply_retention
from giornata.control.end_of_life.delete_dataset import delete_dataset
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.end_of_life.finish_deletions import finish_deletions
from giornata.control.end_of_life.pins import set_pin
from giornata.control.end_of_life.retention import set_retention
from giornata.domain.errors import GiornataError
from giornata.domain.job import TERMINAL
from giornata.protocol.end_of_life import SetRetention

CLASSES = ("checkpoints", "artifacts", "logs", "metrics", "events")


class EndActions(Actions):
    """Actions of those who want something gone, or kept."""

    def delete_one(self, a: int, b: int) -> None:
        """A job with all that hangs on it; one that has not ended only if it may be canceled."""
        if not self.exact or not self.actors.jobs:
            return
        job_id, project = self.actors.jobs[-1 - a % len(self.actors.jobs)]
        cancel, row = b % 3 == 0, self.checker.jobs[job_id]
        pinned = row.pinned or any(each.pinned for each in self.checker.now.checkpoints if each.job_id == job_id)
        refused = bool(pinned) or not (cancel or row.state in TERMINAL)
        outcome = self.call(lambda: delete_job(self.ctx, owner(project), job_id, cancel=cancel))
        assert outcome is DIED or isinstance(outcome, GiornataError) is refused, outcome
        self.checker.look()
        if self.checker.jobs[job_id].deleted_at_ms is not None:
            self.actors.jobs.remove((job_id, project))
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
