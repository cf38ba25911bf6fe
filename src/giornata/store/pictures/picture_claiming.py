"""The statement that leases pictures to a node.

The policy of `giornata.domain.generation.model_routing` names the bases that the node may draw with, the best first.
One branch for each of them reads the head of ix_pictures_queue_base. The head of the highest priority, and among
those that of the best base, decides the batch key, and ix_pictures_queue_batch gives the pictures of that key. So a
claim costs a few index probes however long the queue is. Pictures that the node may not have are passed over inside
the branches.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from giornata.control.ports.node_queries.picture_store import PicturesWanted
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.routing import ENDLESS_BYTES
from giornata.store.pictures.picture_orders import COLUMNS, QUEUED
from giornata.store.schema import picture_failures, pictures


class PictureQueryKey(NamedTuple):
    """The key that decides the text of a claim's statement: `bases` counts the bases to choose from."""

    most: int
    bases: int
    one_project: bool
    one_batch: bool
    passes_over: bool = False


def picture_query(wanted: PicturesWanted) -> tuple[PictureQueryKey, Mapping[str, Any]]:
    """Return the key and the values of a claim's statement."""
    bases = () if wanted.batch_key else wanted.bases
    values: dict[str, Any] = {"machine": wanted.machine_id, "failed_since": wanted.failed_since_ms}
    values["vram"] = ENDLESS_BYTES if wanted.vram_bytes is None else wanted.vram_bytes
    values |= {f"base_{number}": base for number, base in enumerate(bases)}
    if wanted.project_id is not None:
        values["project"] = wanted.project_id
    if wanted.batch_key is not None:
        values["batch"] = wanted.batch_key
    if wanted.passed_over:
        values["passed_over"] = wanted.passed_over
    key = PictureQueryKey(
        most=wanted.most,
        bases=len(bases),
        one_project=wanted.project_id is not None,
        one_batch=wanted.batch_key is not None,
        passes_over=bool(wanted.passed_over),
    )
    return key, values


@functools.lru_cache(maxsize=256)
def take_statement(key: PictureQueryKey) -> sa.Update:
    """Return the statement that picks and leases pictures. Takes the values of `picture_query`, and `new_lease`."""
    best = _best(key, lock=True).limit(1).cte("best")
    some = (
        sa.select(pictures.c.order_id, pictures.c.number, pictures.c.priority, pictures.c.turn, pictures.c.together)
        .where(pictures.c.batch_key == sa.select(best.c.batch_key).scalar_subquery(), *_may_have(key))
        .order_by(pictures.c.priority.desc(), pictures.c.turn)
        .limit(sa.literal_column(str(key.most)))
        .with_for_update(skip_locked=True)
        .cte("some")
    )
    chosen = _within_bounds(some)
    place = sa.tuple_(pictures.c.order_id, pictures.c.number)
    return (
        sa.update(pictures)
        .where(place.in_(chosen), QUEUED)
        .values(state=PictureState.LEASED, lease=sa.bindparam("new_lease", required=False))
        .returning(*COLUMNS)
    )


def _within_bounds(some: sa.CTE) -> sa.Select[Any]:
    """Select the first rows that are not more than any of them allows."""
    order = (some.c.priority.desc(), some.c.turn, some.c.order_id, some.c.number)
    numbered = sa.select(
        some.c.order_id,
        some.c.number,
        sa.func.row_number().over(order_by=order).label("nth"),
        sa.func.min(some.c.together).over(order_by=order, rows=(None, 0)).label("bound"),
    ).subquery("numbered")
    return sa.select(numbered.c.order_id, numbered.c.number).where(numbered.c.nth <= numbered.c.bound)


@functools.lru_cache(maxsize=64)
def first_statement(key: PictureQueryKey) -> sa.Select[Any]:
    """Select the priority of the first picture for the node. Locks nothing."""
    best = _best(key, lock=False).limit(1).subquery("best")
    return sa.select(best.c.priority)


def _best(key: PictureQueryKey, *, lock: bool) -> sa.Select[Any]:
    """Select the heads of the branches, the best first."""
    if key.one_batch:
        branches = [_branch(key, pictures.c.batch_key == _text("batch"), place=0)]
    else:
        of_bases = [pictures.c.base_key == _text(f"base_{number}") for number in range(key.bases)]
        branches = [_branch(key, condition, place=place) for place, condition in enumerate(of_bases)]
    locked = [branch.with_for_update(skip_locked=True) if lock else branch for branch in branches]
    ctes = [branch.cte(f"head_{number}") for number, branch in enumerate(locked)]
    heads = sa.union_all(*(sa.select(cte) for cte in ctes)).subquery("heads")
    return sa.select(heads.c.batch_key, heads.c.priority).order_by(
        heads.c.priority.desc(), heads.c.place, heads.c.turn
    )


def _branch(key: PictureQueryKey, condition: sa.ColumnElement[bool], *, place: int) -> sa.Select[Any]:
    nth: sa.Label[int] = sa.literal_column(str(place)).label("place")
    return (
        sa.select(pictures.c.batch_key, pictures.c.priority, pictures.c.turn, nth)
        .where(condition, *_may_have(key))
        .order_by(pictures.c.priority.desc(), pictures.c.turn)
        # In the text: a planner that sees a parameter prepares for a tenth of the table.
        .limit(sa.literal_column("1"))
    )


def _may_have(key: PictureQueryKey) -> list[sa.ColumnElement[bool]]:
    """Return the conditions under which a node may have a picture. The only place that says so."""
    failed_here = sa.exists().where(
        picture_failures.c.order_id == pictures.c.order_id,
        picture_failures.c.number == pictures.c.number,
        picture_failures.c.machine_id == _text("machine"),
        picture_failures.c.at_ms >= _number("failed_since"),
    )
    conditions = [
        QUEUED,
        pictures.c.min_vram_bytes <= _number("vram"),
        # Only a picture that was tried is looked up among the failures.
        sa.or_(pictures.c.tries + pictures.c.fruitless == sa.literal_column("0"), ~failed_here),
    ]
    if key.passes_over:
        orders: sa.BindParameter[Any] = sa.bindparam("passed_over", expanding=True, required=False, value=[""])
        conditions.append(pictures.c.order_id.not_in(orders))
    return [*conditions, pictures.c.project_id == _text("project")] if key.one_project else conditions


def _text(name: str) -> sa.BindParameter[str]:
    return sa.bindparam(name, required=False, type_=sa.String())


def _number(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, required=False, type_=sa.BigInteger())
