"""Sweeps: training jobs that differ in some fields of one spec, under one budget."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from giornata.domain.errors import Fault
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.sweep import MOST_SWEPT
from giornata.protocol.jobs import Artifact, Job, MicroUsd, MinVram
from giornata.protocol.model import Label, Message, Reply
from giornata.protocol.specs import TrainSpec, canonical_names

Change = dict[str, Any]


class SubmitSweep(Message):
    """`POST /v1/sweeps`: the common part of the specs, and either a grid or a list of changes."""

    spec: dict[str, Any] = Field(description="Fields that all jobs have, as for a job of kind `train`.")
    grid: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict, max_length=8, description="Values by field: a job for each combination of them."
    )
    changes: tuple[Change, ...] = Field(
        (), max_length=MOST_SWEPT, description="Instead of a grid: a job for each, with these fields changed."
    )
    name: Label | None = Field(
        None, description="Name of the sweep for people. Its jobs are called NAME 1, NAME 2 and so on."
    )
    priority: int = Field(0, ge=-100, le=100, description="Priority. Jobs with a higher number start first.")
    labels: dict[str, str] = Field(
        default_factory=dict, max_length=32, description="Labels of the sweep and of its jobs."
    )
    deadline_s: int | None = Field(
        None,
        ge=1,
        le=30 * 86_400,
        description="Seconds from now after which all jobs that have not ended expire. Default: never.",
    )
    budget_micro_usd: MicroUsd | None = Field(
        None, description="Maximum cost of all jobs together. A job begins only when there is room for it."
    )
    min_vram_bytes: MinVram = None


class SweepMember(Message):
    """A job of a sweep in the spec of its parent, with the fields in which it differs."""

    job: Annotated[str, StringConstraints(pattern=r"^job_[0-9a-z]{1,60}$")]
    changes: Change
    likely_cost_micro_usd: Annotated[int, Field(ge=0)] | None = None


class SweepSpec(Message):
    """The spec of a job of kind `sweep`: the common part, and the jobs in their order."""

    spec: dict[str, Any]
    jobs: tuple[SweepMember, ...] = Field(min_length=1, max_length=MOST_SWEPT)


class SweptJobReply(Reply):
    """A job of a sweep, or one of jobs that are compared, and what came of it."""

    number: int = Field(description="Number of the job in the sweep or the comparison, from 1.")
    job_id: str
    name: str
    state: JobState
    changes: dict[str, Any] = Field(
        description="Fields in which the job differs from the sweep's spec, or from other jobs."
    )
    waiting_because: str | None = None
    step: int = 0
    total_steps: int | None = None
    loss: float | None = Field(None, description="Mean training loss over the last tenth of the steps so far.")
    validation_loss: float | None = Field(None, description="Last loss on held-out pictures, once the job has ended.")
    cost_micro_usd: int = 0
    imported_cost_micro_usd: int | None = Field(
        None, description="Cost in micro-dollars in the installation that the job came from."
    )
    likely_cost_micro_usd: int | None = Field(
        None, description="Expected cost in micro-dollars, as of the submission."
    )
    error: str | None = None
    sheet: Artifact | None = Field(None, description="The latest sheet of sample images.")


class Comparison(Reply):
    """Training jobs side by side, in the order in which they were named."""

    differs: tuple[str, ...] = Field(
        description="Fields in which the specs of the jobs differ, but for `output_name`."
    )
    jobs: tuple[SweptJobReply, ...]


class Sweep(Reply):
    """A sweep with a row for each of its jobs, in their order. `job` is the parent, of kind `sweep`."""

    job: Job
    differs: tuple[str, ...] = Field(description="Fields in which jobs of the sweep differ.")
    jobs: tuple[SweptJobReply, ...]


def changes_of(request: SubmitSweep) -> tuple[list[Change], list[Fault]]:
    """Return the changes that the request asks for, with the fields' own names, and every fault of them.

    A grid's last field changes fastest.
    """
    if bool(request.grid) == bool(request.changes):
        said = "is given together with grid" if request.grid else "and grid are both missing"
        hint = 'such as "grid": {"rank": [8, 16]}, or "changes": [{"rank": 8}, {"rank": 16}]'
        return [], [Fault(where="changes", message=said, hint=hint)]
    if request.changes:
        return _named(request.changes)
    faults = [
        Fault(where=f"grid.{field}", message="has no values", hint="give at least one")
        for field, values in request.grid.items()
        if not values
    ]
    count = 1
    for values in request.grid.values():
        count *= len(values)
    if count > MOST_SWEPT:
        message = f"has {count} combinations; a sweep has at most {MOST_SWEPT} jobs"
        faults.append(Fault(where="grid", message=message, hint="leave values out, or divide it into several sweeps"))
    if faults:
        return [], faults
    return _named([dict(zip(request.grid, values, strict=True)) for values in product(*request.grid.values())])


def _named(given: Sequence[Change]) -> tuple[list[Change], list[Fault]]:
    found, faults = list[Change](), list[Fault]()
    for number, change in enumerate(given):
        named, wrong = canonical_names(TrainSpec, change)
        faults += [Fault(where=_place(number, each.where), message=each.message, hint=each.hint) for each in wrong]
        for other, earlier in enumerate(found):
            if named == earlier:
                message = f"is the same as changes.{other}"
                faults.append(Fault(where=f"changes.{number}", message=message, hint="leave one of them out"))
                break
        found.append(named)
    return found, faults


def _place(number: int, where: str) -> str:
    return f"changes.{number}.{where.removeprefix('spec.')}"


def swept_fault(request: SubmitSweep, number: int, fault: Fault, change: Mapping[str, Any]) -> Fault:
    """Return a fault of one job's spec at its place in the request: in the grid or the change, or in what all jobs
    have."""
    field = fault.where.removeprefix("spec.")
    if field.split(".")[0] not in change:
        return fault
    where = f"grid.{field}" if request.grid else _place(number, fault.where)
    return replace(fault, where=where)
