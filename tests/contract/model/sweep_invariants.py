"""What holds of sweeps and their jobs: the rule of their budget is written down a second time on purpose."""

import json
from dataclasses import dataclass
from typing import Any

from tests.contract.model.model_rig import Row, RowSnapshot
from tests.contract.model.replay import ENDS
from tests.contract.model.shares import costs_of

from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.sweep import SWEEP_KIND


@dataclass(slots=True)
class SweepStory:
    """One sweep, folded from its events alone. It is at work from the beginning, and no node has it."""

    job_id: str
    state: str = ""

    def tell(self, event: Any) -> None:
        """One more event. Fails for one that cannot follow those before."""
        assert self.state in {"", "running", "paused"}, f"{event.type} after {self}"
        assert (self.state == "") is (event.type == "job.submitted"), f"{event.type} of {self}"
        assert event.attempt_number is None, f"{event.type} of {self} by an attempt"
        if event.type in ENDS:
            self.state = event.type.removeprefix("job.")
        elif event.type in {"job.submitted", "job.paused", "job.resumed"}:
            was, self.state = self.state, "paused" if event.type == "job.paused" else "running"
            assert was != self.state, f"{event.type} of a sweep that was {was}"
        else:
            assert event.type == "budget.warning", f"{event.type} of a sweep"


def check_sweeps(before: RowSnapshot, seen: RowSnapshot) -> None:
    """Raises AssertionError when jobs outlive their sweep, or were let go without room in its budget."""
    sweeps = {row.id: row for row in seen.jobs if row.kind == SWEEP_KIND}
    was = {row.id: row for row in before.jobs}
    jobs: dict[str, list[Row]] = {sweep_id: [] for sweep_id in sweeps}
    for row in seen.jobs:
        if row.parent_id is not None:
            jobs[row.parent_id].append(row)
    for sweep in sweeps.values():
        _check_end(sweep, jobs[sweep.id])
        if sweep.state not in TERMINAL and sweep.budget_micro_usd is not None:
            let_go = [
                row for row in jobs[sweep.id] if row.state in {"queued", "running"} and _waited(was.get(row.id))
            ]
            if let_go:
                _check_room(sweep, jobs[sweep.id], let_go, seen)


def _check_end(sweep: Row, jobs: list[Row]) -> None:
    assert sweep.attempt_count == 0, f"a node has {sweep}"
    assert jobs, f"{sweep} has no jobs"
    if sweep.state in TERMINAL:
        left = [row for row in jobs if row.state not in TERMINAL]
        assert not left, f"{sweep} has ended, and its jobs go on: {left}"
    if sweep.deleted_at_ms is not None:
        left = [row for row in jobs if row.deleted_at_ms is None]
        assert not left, f"{sweep} was deleted, and its jobs were not: {left}"


def _waited(row: Row | None) -> bool:
    """Whether the job was held back a moment ago, or was not there."""
    return row is None or row.paused_by == "sweep"


def _check_room(sweep: Row, jobs: list[Row], let_go: list[Row], seen: RowSnapshot) -> None:
    """What is spent, and what the jobs that go on may still cost, fits into the budget.

    While nobody knows what a job costs, it is let go alone.
    """
    spent = costs_of(seen, {row.id for row in jobs})
    done = [spent[row.id] for row in jobs if row.state == "succeeded"]
    expected = _expected(sweep)
    going = [row for row in jobs if row.state not in TERMINAL and row.paused_by != "sweep"]
    said = f"{let_go} were let go beside {going} of {sweep}; spent {spent}"
    assert sum(spent.values()) < sweep.budget_micro_usd, said
    likely = {row.id: max(done, default=None) if expected[row.id] is None else expected[row.id] for row in going}
    if all(cost is None for cost in likely.values()):
        assert len(going) == len(let_go) == 1, said
        return
    # All have as many steps, so one costs as much as another, and a quarter more is set aside.
    still = sum(max(0, -(-cost * 5 // 4) - spent[job_id]) for job_id, cost in likely.items() if cost is not None)
    assert sum(spent.values()) + still <= sweep.budget_micro_usd, said


def _expected(sweep: Row) -> dict[str, int | None]:
    """What was expected of each job when the sweep was submitted, in micro-dollars; None: nobody knew."""
    spec: Any = json.loads(sweep.spec) if isinstance(sweep.spec, str) else sweep.spec
    return {each["job"]: each["likely_cost_micro_usd"] for each in spec["jobs"]}
