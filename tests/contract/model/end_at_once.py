"""The end of life while others are at work: in one project jobs, orders and datasets are deleted, kept and pinned.

Nobody retries or continues a job of this project, and no pin is undone. So what has to be there can be said whenever
all threads rest, whatever came before what.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.contract.model.actions import ACTIONS, DAY_S, Actions
from tests.contract.model.calls import DIED, TrackedLease
from tests.contract.model.model_rig import ENDING, ROOT, RowSnapshot, owner
from tests.contract.model.node_actions import LATEST

from giornata.control.end_of_life.apply_retention import apply_retention
from giornata.control.end_of_life.delete_dataset import delete_dataset
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.end_of_life.pins import set_pin
from giornata.control.end_of_life.retention import set_retention
from giornata.control.jobs.submission.submit import submit
from giornata.domain.errors import InvalidInput
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.project.end_of_life import Deletion, Pin, SetRetention

# Events are kept: what came of a job is folded from them.
CLASSES = ("checkpoints", "artifacts", "logs", "metrics", "pictures", "datasets")
DATASETS = 3
OF_JOBS = ("checkpoints", "artifacts", "job_inputs", "logs", "metrics", "pictures", "picture_orders")
WEIGHTS_THERE = {
    "submit_there": 12,
    "commit_there": 8,
    "share_there": 8,
    "delete_there": 6,
    "retain_there": 5,
    "pin_there": 5,
    "dataset_there": 3,
    "delete_dataset_there": 2,
}
ACTIONS_THERE = [name for name, weight in WEIGHTS_THERE.items() for _ in range(weight)]
# Beside all else: every second action is one of the others.
ACTIONS_THERE += ACTIONS[:: len(ACTIONS) // len(ACTIONS_THERE)]


class EndAtOnce(Actions):
    """Actions in the project ENDING."""

    def submit_there(self, a: int, b: int) -> None:
        """A job, half of them on a dataset that somebody may delete just now; or an order of pictures."""
        if b % 4 == 0:
            spec = {"model": "some/model", "prompts": ["a fox"], "num_images_per_prompt": 1 + a % 3, "height": 64}
            request = SubmitJob(kind="generate", spec={**spec, "width": 64, "num_inference_steps": 1})
        else:
            kind = "train" if b % 4 < 3 else "x-own"
            spec = self._spec(kind, ENDING, a, b)
            if kind == "train":
                spec["dataset"] = self.rig.ending_datasets[a % len(self.rig.ending_datasets)]
            request = SubmitJob(kind=kind, spec=spec, priority=3)
        made = self._asked(lambda: submit(self.ctx, owner(ENDING), request, None))
        if isinstance(made, tuple):
            self.actors.ending.append(made[0].id)

    def share_there(self, a: int, b: int) -> None:
        """An attempt commits a result that others have as well: the bytes are those of several jobs."""
        if held := self._some_there(a):
            self._artifact_of(held, f"{a % 3}.safetensors", b"%d shared" % (b % 2))

    def commit_there(self, a: int, b: int) -> None:
        """A later step than anybody has committed: an earlier one is pruned, unless it is pinned."""
        if held := self._some_there(a):
            step = next(self.actors.numbers)
            data = f"{held.job_id} {step}".encode()
            upload_id = self._sent(held, data)
            if upload_id is not DIED:
                self._commit_step(held, step, data, upload_id, honest=True, again=False)

    def delete_there(self, a: int, b: int) -> None:
        """A job or an order, maybe one that runs; but none that somebody was told is pinned."""
        if job_id := self._known(a):
            pinned = {target for target in self.actors.pins if target.partition("@")[0] == job_id}
            outcome = self.call(lambda: delete_job(self.ctx, owner(ENDING), job_id, cancel=b % 3 > 0))
            assert not (pinned and isinstance(outcome, Deletion)), f"{outcome}, and pinned were {pinned}"

    def retain_there(self, a: int, b: int) -> None:
        """The day is over for which the project keeps some of what it has."""
        days = {name: 1 for number, name in enumerate(CLASSES) if (b >> number) & 1}
        self.rig.retained.add(ENDING)
        set_retention(self.ctx, ROOT, ENDING, SetRetention(**days))
        if a % 2:
            self.rig.clock.advance_s(DAY_S + b)
        self.call(lambda: bool(apply_retention(self.ctx)))

    def pin_there(self, a: int, b: int) -> None:
        """A job, or a checkpoint that was there when all threads rested: no commit had pruned it before its pin."""
        if target := self._known(a):
            saved = [row.step for row in self.checker.now.checkpoints if row.job_id == target and not row.rejected]
            if saved and b % 3:
                target = f"{target}@{saved[-1 - b % len(saved)]}"
            outcome = self.call(lambda: set_pin(self.ctx, owner(ENDING), target, pinned=True))
            if isinstance(outcome, Pin):
                self.actors.pins.append(target)

    def dataset_there(self, a: int, b: int) -> None:
        """One of a few, which have a picture in common."""
        made = self._asked(lambda: self.rig.new_ending_dataset(a % DATASETS))
        if isinstance(made, str) and made not in self.rig.ending_datasets:
            self.rig.ending_datasets.append(made)

    def delete_dataset_there(self, a: int, b: int) -> None:
        """One that no job uses; its bytes are those of others in part."""
        dataset_id = self.rig.ending_datasets[a % len(self.rig.ending_datasets)]
        self.call(lambda: delete_dataset(self.ctx, owner(ENDING), dataset_id))

    def _asked(self, action: Callable[[], Any]) -> Any:
        """What a user is told, who may name what was deleted a moment ago."""

        def asked() -> Any:
            try:
                return action()
            except InvalidInput as refusal:
                return refusal

        return self.call(asked)

    def _known(self, a: int) -> str | None:
        """The id of a job or an order; it may be deleted by now."""
        if a % 2 and self.actors.focus is not None:
            return self.actors.focus
        seen = [row for row in self.checker.now.jobs if row.project_id == ENDING and row.deleted_at_ms is None]
        known = list(dict.fromkeys([*(row.id for row in seen), *self.actors.ending]))
        return known[-1 - a // 2 % min(len(known), LATEST)] if known else None

    def _some_there(self, a: int) -> TrackedLease | None:
        held = [it for it in self.actors.held[-4 * LATEST :] if it.project == ENDING]
        focused = [it for it in held if it.job_id == self.actors.focus]
        some = focused if a % 2 and focused else held
        return some[-1 - a // 2 % min(len(some), LATEST)] if some else None


def focus_of(seen: RowSnapshot, dice: random.Random) -> str | None:
    """A job that runs there, or of which there are checkpoints, or none."""
    saved = {row.job_id for row in seen.checkpoints}
    mine = [row for row in seen.jobs if row.project_id == ENDING and row.deleted_at_ms is None]
    some = [row.id for row in mine if row.id in saved or row.state == "running"]
    return dice.choice(some) if some else None


def check_pins(seen: RowSnapshot, pins: Iterable[str]) -> None:
    """What somebody was told is pinned is there for ever."""
    kept = {row.id for row in seen.jobs if row.pinned and row.deleted_at_ms is None}
    kept |= {f"{row.job_id}@{row.step}" for row in seen.checkpoints if row.pinned}
    lost = set(pins) - kept
    assert not lost, f"pinned, and gone: {lost}"


def check_gone(seen: RowSnapshot) -> None:
    """Nothing hangs on a deleted job. Its bytes are gone, then, as no object is without a row."""
    deleted = {row.id for row in seen.jobs if row.deleted_at_ms is not None}
    for table in OF_JOBS:
        left = [row for row in seen.tables[table] if (row.order_id if "picture" in table else row.job_id) in deleted]
        assert not left, f"{table} has rows of deleted jobs: {left}"
