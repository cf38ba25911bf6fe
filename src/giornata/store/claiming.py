"""The statement that hands out jobs.

The order is that of `domain.routing.rank`. Each kind has one arm that reads the head of ix_jobs_queue, and one for
each model that the node holds that reads the head of ix_jobs_queue_model; the best of these heads is the best of the
queue: the first by rank is either a job of a held model, and then the head of that model's arm, or none, and then no
other job can stand before it in its kind's arm. So a claim costs a few index probes however long the queue is.

A claim for a companion, which names a joint key, has one arm for each kind, which reads the head of
ix_jobs_queue_joint: jobs of one key are on one model, so held models decide nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import sqlalchemy as sa

from giornata.control.ports.work_rows import Wanted
from giornata.domain.routing import AFFINITY_WINDOW_MS
from giornata.store.schema import bans, jobs

Text = str | sa.BindParameter[str]
# Affinity is a preference: a node that holds absurdly many models has the first of them looked at.
MOST_ARMS = 64
# A constant in the text, because a planner cannot prove that a parameter matches a partial index.
QUEUED = jobs.c.state == sa.literal_column("'queued'")


class Form(NamedTuple):
    """How many kinds and models a claim names, whether it is bound to a project, whether it is for a companion."""

    kinds: int
    models: int
    one_project: bool
    companion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The form of a claim, and the values for its names.

    Claims of one form share one statement, that is made once: building it costs more than running it.
    """

    form: Form
    values: Mapping[str, str]


def shape_of(wanted: Wanted) -> Shape:
    """Of a claim. Kinds and models are counted once."""
    kinds, models = dict.fromkeys(wanted.kinds), dict.fromkeys(filter(None, wanted.held_models))
    companion = wanted.joint_key is not None
    if companion:
        models.clear()
    values = {"machine": wanted.machine_id}
    values |= {f"kind_{number}": kind for number, kind in enumerate(kinds)}
    values |= {f"model_{number}": model for number, model in enumerate(models)}
    if wanted.project_id is not None:
        values["project"] = wanted.project_id
    if wanted.joint_key is not None:
        values["joint"] = wanted.joint_key
    form = Form(len(kinds), len(models), one_project=wanted.project_id is not None, companion=companion)
    return Shape(form=form, values=values)


def eligible(machine_id: Text, project_id: Text | None) -> list[sa.ColumnElement[bool]]:
    """What makes a queued job one that this machine may have. The only place that says so."""
    banned = sa.exists().where(bans.c.job_id == jobs.c.id, bans.c.machine_id == machine_id)
    pinned = jobs.c.only_machine_id.is_(None) | (jobs.c.only_machine_id == machine_id)
    return [~banned, pinned, *in_project(project_id)]


def in_project(project_id: Text | None) -> list[sa.ColumnElement[bool]]:
    """The project filter; empty for a node that serves all of them."""
    return [] if project_id is None else [jobs.c.project_id == project_id]


def of_key(joint_key: Text | None) -> list[sa.ColumnElement[bool]]:
    """The filter of a claim for a companion; empty for any other."""
    return [] if joint_key is None else [jobs.c.joint_key == joint_key]


def first_of_queue(form: Form) -> sa.Select[Any]:
    """The id of the job to hand out, its row locked; rows that others are just taking are passed over.

    Takes the values of a `Shape`.
    """
    conditions = eligible(_value("machine"), _value("project") if form.one_project else None)
    return _ranked(form, conditions, each=1).limit(1)


def first_ones_of_queue(form: Form, *, each: int) -> sa.Select[Any]:
    """As `first_of_queue`, for any machine: ids in the order in which they are to be handed out.

    The first `each` jobs of the queue are among them; one that a held model brings up stands there twice. In an
    arm the order is that of the rank but for the models, so the first ones by rank are heads of their arms.
    """
    conditions = in_project(_value("project") if form.one_project else None)
    return _ranked(form, conditions, each=each)


def _ranked(form: Form, conditions: Sequence[sa.ColumnElement[bool]], *, each: int) -> sa.Select[Any]:
    conditions = [*of_key(_value("joint") if form.companion else None), *conditions]
    kinds: list[Text] = [_value(f"kind_{number}") for number in range(form.kinds)]
    held: list[Text] = [_value(f"model_{number}") for number in range(form.models)]
    models = [(kind, model) for model, kind in product(held, kinds)][: max(0, MOST_ARMS - form.kinds)]
    arms = [_arm(kind, conditions, each=each) for kind in kinds]
    arms += [_arm(kind, conditions, model, each=each) for kind, model in models]
    heads = _together([arm.with_for_update(skip_locked=True) for arm in arms])
    return sa.select(heads.c.id).order_by(
        heads.c.interrupted.desc(),
        heads.c.priority.desc(),
        heads.c.created_at_ms // AFFINITY_WINDOW_MS,
        heads.c.held.desc(),
        heads.c.created_at_ms,
        heads.c.id,
    )


def any_queued(kinds: Sequence[str], conditions: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """One id, if a job of these kinds that fits is queued. Walks the queue's index; locks nothing."""
    heads = _together([_arm(kind, conditions) for kind in dict.fromkeys(kinds)])
    return sa.select(heads.c.id).limit(1)


def _value(name: str) -> sa.BindParameter[str]:
    # Not required, so that the statement can be explained without values.
    return sa.bindparam(name, required=False)


def _arm(
    kind: Text, conditions: Sequence[sa.ColumnElement[bool]], model: Text | None = None, *, each: int = 1
) -> sa.Select[Any]:
    held: sa.Label[int] = sa.literal_column("0" if model is None else "1").label("held")
    of_model = [] if model is None else [jobs.c.model_key == model]
    return (
        sa.select(jobs.c.id, jobs.c.interrupted, jobs.c.priority, jobs.c.created_at_ms, held)
        .where(QUEUED, jobs.c.kind == kind, *of_model, *conditions)
        .order_by(jobs.c.interrupted.desc(), jobs.c.priority.desc(), jobs.c.created_at_ms, jobs.c.id)
        # In the text: a planner that sees a parameter prepares for a tenth of the table.
        .limit(sa.literal_column(str(each)))
    )


def _together(arms: Sequence[sa.Select[Any]]) -> sa.Subquery:
    ctes = [arm.cte(f"arm_{number}") for number, arm in enumerate(arms)]
    return sa.union_all(*(sa.select(cte) for cte in ctes)).subquery("heads")
