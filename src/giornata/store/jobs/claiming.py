"""The statement that hands out jobs.

The order is that of `domain.jobs.routing.rank`. Each kind has one branch that reads the head of ix_jobs_queue, one
that reads the head of ix_jobs_pinned for the jobs of this very machine, and one for each model that the node holds
that reads the head of ix_jobs_queue_model; the best of these heads is the best of the queue: the first by rank is
either a job of this machine, or a job of a held model, and then the head of that branch, or neither, and then no
other job can stand before it in its kind's branch. So a claim costs a few index probes however long the queue is.

A claim for a companion, which names a joint key, has one branch for each kind, which reads the head of
ix_jobs_queue_joint: jobs of one key are on one model, so held models decide nothing; and what is for one machine
shares no batch.
"""

import functools
import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from giornata.control.ports.node_queries.work_rows import Taking, Wanted
from giornata.domain.jobs.routing import AFFINITY_WINDOW, ENDLESS_BYTES
from giornata.protocol.specs import AUDIT_KIND
from giornata.store.database.rows import among
from giornata.store.schema import bans, jobs

Text = str | sa.ColumnElement[str]
Bytes = int | sa.ColumnElement[int]
# Affinity is a preference: a node that holds absurdly many models has the first of them looked at.
MAX_BRANCHES = 64
# A constant in the text, because a planner cannot prove that a parameter matches a partial index.
QUEUED = jobs.c.state == sa.literal_column("'queued'")
FOR_ANYONE = sa.and_(QUEUED, jobs.c.only_machine_id.is_(None))
PINNED = sa.and_(QUEUED, jobs.c.only_machine_id.is_not(None))
# Jobs for one machine come first, and audits come last.
OF_THIS_MACHINE = sa.case(
    (jobs.c.kind == sa.literal_column(f"'{AUDIT_KIND}'"), sa.literal_column("-1")), else_=sa.literal_column("1")
)
ANYBODYS: sa.ColumnElement[int] = sa.literal_column("0")


class ClaimQueryKey(NamedTuple):
    """The key that decides the text of a claim's statement.

    `kinds` and `models` count what the claim names. `one_project`: it is bound to a project. `companion`: it asks for
    a job that joins a running batch. `passes_over`: jobs of some projects are passed over.
    """

    kinds: int
    models: int
    one_project: bool
    companion: bool
    passes_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimQuery:
    """A claim's statement, by its key, and the values of its parameters.

    Claims with equal keys share one statement. It is built once, because building costs more than running.
    """

    key: ClaimQueryKey
    values: Mapping[str, Any]


def claim_query(wanted: Wanted) -> ClaimQuery:
    """Return the statement and the values of a claim. A kind or model that is named twice counts once."""
    kinds, models = dict.fromkeys(wanted.kinds), dict.fromkeys(filter(None, wanted.held_models))
    companion = wanted.joint_key is not None
    if companion:
        models.clear()
    values: dict[str, Any] = {"machine": wanted.machine_id, "vram": memory_of(wanted)}
    values |= {f"kind_{number}": kind for number, kind in enumerate(kinds)}
    values |= {f"model_{number}": model for number, model in enumerate(models)}
    if wanted.project_id is not None:
        values["project"] = wanted.project_id
    if wanted.joint_key is not None:
        values["joint"] = wanted.joint_key
    if wanted.passed_over:
        values["passed_over"] = wanted.passed_over
    key = ClaimQueryKey(
        len(kinds),
        len(models),
        one_project=wanted.project_id is not None,
        companion=companion,
        passes_over=bool(wanted.passed_over),
    )
    return ClaimQuery(key=key, values=values)


def memory_of(wanted: Wanted) -> int:
    """Return the GPU memory to compare with what jobs need, in bytes; see `ENDLESS_BYTES`."""
    return ENDLESS_BYTES if wanted.vram_bytes is None else wanted.vram_bytes


def eligible(machine_id: Text, vram_bytes: Bytes, project_id: Text | None) -> list[sa.ColumnElement[bool]]:
    """Return the conditions under which this machine may have a queued job. The only place that says so."""
    ban = sa.select(bans.c.job_id).where(bans.c.job_id == jobs.c.id, bans.c.machine_id == machine_id)
    # The machine may be a column of the enclosing statement.
    banned = ban.correlate_except(bans).exists()
    return [for_machine(machine_id), ~banned, *large_enough(vram_bytes), *in_project(project_id)]


def for_machine(machine_id: Text) -> sa.ColumnElement[bool]:
    """Return the filter that leaves out jobs for another machine only."""
    return sa.or_(jobs.c.only_machine_id.is_(None), jobs.c.only_machine_id == machine_id)


def large_enough(vram_bytes: Bytes) -> list[sa.ColumnElement[bool]]:
    """Return the filter that leaves out jobs that need more GPU memory than there is."""
    return [jobs.c.min_vram_bytes <= vram_bytes]


def in_project(project_id: Text | None) -> list[sa.ColumnElement[bool]]:
    """Return the project filter; empty for a node that serves all of them."""
    return [] if project_id is None else [jobs.c.project_id == project_id]


def of_key(joint_key: Text | None) -> list[sa.ColumnElement[bool]]:
    """Return the filter of a claim for a companion; empty for any other."""
    return [] if joint_key is None else [jobs.c.joint_key == joint_key]


def not_passed_over(key: ClaimQueryKey) -> list[sa.ColumnElement[bool]]:
    """Return the filter of projects that run as many jobs as they may; empty where there are none.

    It is for jobs for any machine: those for one machine are the platform's own.
    """
    if not key.passes_over:
        return []
    return [jobs.c.project_id.not_in(sa.bindparam("passed_over", expanding=True, required=False, value=[""]))]


def first_of_queue(key: ClaimQueryKey, *, lock: bool = True) -> sa.Select[Any]:
    """Select the id of the job to hand out, its row locked; rows that others are just taking are passed over.

    Takes the values of a `ClaimQuery`.
    """
    conditions = eligible(parameter("machine"), vram_parameter(), parameter("project") if key.one_project else None)
    return _ranked(key, conditions, pinned=not key.companion, each=1, lock=lock).limit(1)


def first_ones_of_queue(key: ClaimQueryKey, *, each: int) -> sa.Select[Any]:
    """Select ids like `first_of_queue`, for any machine with this much memory, in the order of handing out, each with
    its project.

    Jobs for one machine only are not among them.
    The first `each` jobs of the queue are among them; one that a held model brings up stands there twice. In a
    branch the order is that of the rank but for the models, so the first ones by rank are heads of their branches.
    """
    conditions = [*large_enough(vram_parameter()), *in_project(parameter("project") if key.one_project else None)]
    return _ranked(key, conditions, pinned=False, each=each, with_project=True)


def _ranked(
    key: ClaimQueryKey,
    conditions: Sequence[sa.ColumnElement[bool]],
    *,
    pinned: bool,
    each: int,
    lock: bool = True,
    with_project: bool = False,
) -> sa.Select[Any]:
    conditions = [*of_key(parameter("joint") if key.companion else None), *conditions]
    kinds = kinds_of(key)
    held: list[Text] = [parameter(f"model_{number}") for number in range(key.models)]
    for_anyone = [FOR_ANYONE, *not_passed_over(key), *conditions]
    branches = [_branch(kind, for_anyone, each=each) for kind in kinds]
    if pinned:
        branches += [
            _branch(kind, [*_only(parameter("machine")), *conditions], pinned=True, each=each) for kind in kinds
        ]
    models = [(kind, model) for model, kind in itertools.product(held, kinds)][: max(0, MAX_BRANCHES - len(branches))]
    branches += [
        _branch(kind, [*for_anyone, jobs.c.model_key == model], held=True, each=each) for kind, model in models
    ]
    heads = _together([branch.with_for_update(skip_locked=True) if lock else branch for branch in branches])
    columns = (heads.c.id, heads.c.project_id) if with_project else (heads.c.id,)
    return sa.select(*columns).order_by(
        heads.c.pinned.desc(),
        heads.c.interrupted.desc(),
        heads.c.priority.desc(),
        heads.c.turn // AFFINITY_WINDOW,
        heads.c.held.desc(),
        heads.c.turn,
        heads.c.id,
    )


def any_queued(
    kinds: Sequence[Text],
    conditions: Sequence[sa.ColumnElement[bool]],
    *,
    machine_id: Text | None,
    for_anyone: Sequence[sa.ColumnElement[bool]] = (),
) -> sa.Select[Any]:
    """Select one id, if a job of these kinds, each named once, that fits is queued. Walks the queue's index; locks
    nothing.

    With a machine's id it looks at the jobs for that machine too. The conditions `for_anyone` are for the others.
    """
    branches = [_branch(kind, [FOR_ANYONE, *for_anyone, *conditions]) for kind in kinds]
    if machine_id is not None:
        branches += [_branch(kind, [*_only(machine_id), *conditions], pinned=True) for kind in kinds]
    return sa.select(_together(branches).c.id).limit(1)


def kinds_of(key: ClaimQueryKey) -> list[Text]:
    """Return the kinds that a claim names, as values of its `ClaimQuery`."""
    return [parameter(f"kind_{number}") for number in range(key.kinds)]


def _only(machine_id: Text) -> list[sa.ColumnElement[bool]]:
    return [PINNED, jobs.c.only_machine_id == machine_id]


def parameter(name: str) -> sa.BindParameter[str]:
    """Return one of the values of a `ClaimQuery`, by its name."""
    # Not required, so that the statement can be explained without values.
    return sa.bindparam(name, required=False, type_=sa.String())


def vram_parameter() -> sa.BindParameter[int]:
    """Return the parameter that says how much GPU memory there is."""
    return sa.bindparam("vram", required=False, type_=sa.BigInteger())


def _branch(
    kind: Text,
    conditions: Sequence[sa.ColumnElement[bool]],
    *,
    held: bool = False,
    pinned: bool = False,
    each: int = 1,
) -> sa.Select[Any]:
    said = [
        sa.literal_column(str(int(held))).label("held"),
        (OF_THIS_MACHINE if pinned else ANYBODYS).label("pinned"),
    ]
    return (
        sa.select(jobs.c.id, jobs.c.interrupted, jobs.c.priority, jobs.c.turn, jobs.c.project_id, *said)
        .where(jobs.c.kind == kind, *conditions)
        .order_by(jobs.c.interrupted.desc(), jobs.c.priority.desc(), jobs.c.turn, jobs.c.id)
        # In the text: a planner that sees a parameter prepares for a tenth of the table.
        .limit(sa.literal_column(str(each)))
    )


def _together(branches: Sequence[sa.Select[Any]]) -> sa.Subquery:
    ctes = [branch.cte(f"branch_{number}") for number, branch in enumerate(branches)]
    return sa.union_all(*(sa.select(cte) for cte in ctes)).subquery("heads")


class ClaimPlan:
    """Reads and locks the heads of the queue for all claims, once for those that want the same.

    Each list is as long as there are claims, so that the others cannot empty it for the last one; only bans can.
    """

    def __init__(
        self, connection: sa.Connection, dialect_name: str, claims: Sequence[Taking], rooms: Mapping[str, int]
    ) -> None:
        self._connection, self._dialect_name = connection, dialect_name
        self._rooms = dict(rooms)
        self._each = _power_of_two(len(claims))
        self._heads: dict[Hashable, tuple[dict[str, str], bool]] = {}
        for claim in claims:
            if (group := _group(claim)) not in self._heads:
                self._heads[group] = self._read_heads(claim)
        self._pinned, self._bans = self._read_of_machines({claim.wanted.machine_id for claim in claims})
        self.taken: set[str] = set()

    def first_for(self, claim: Taking) -> str | None:
        """Take the first job that nobody has taken yet and that is not banned for its machine; return its id.

        None for a machine that has jobs of its own: they were not looked at.
        """
        job_ids, _ = self._heads[_group(claim)]
        machine_id = claim.wanted.machine_id
        if machine_id in self._pinned:
            return None
        free = (
            job_id
            for job_id, project_id in job_ids.items()
            if job_id not in self.taken and (job_id, machine_id) not in self._bans and self._rooms.get(project_id, 1)
        )
        job_id = next(free, None)
        if job_id is not None:
            self.note_taken(job_id, job_ids[job_id])
        return job_id

    def note_taken(self, job_id: str, project_id: str) -> None:
        """Note that the job is taken. Its project may begin one less, if that is bounded."""
        self.taken.add(job_id)
        if project_id in self._rooms:
            self._rooms[project_id] = max(0, self._rooms[project_id] - 1)

    def for_one(self, claim: Taking) -> Taking:
        """Return the claim for a statement of its own, which passes over the projects that have no room left."""
        full = {project_id for project_id, room in self._rooms.items() if not room}
        if full <= set(claim.wanted.passed_over):
            return claim
        passed_over = tuple(sorted({*claim.wanted.passed_over, *full}))
        return replace(claim, wanted=replace(claim.wanted, passed_over=passed_over))

    def saw_all(self, claim: Taking) -> bool:
        """Return True when the claim's list holds all that is queued for it: there is nothing if nothing is left in
        it.
        """
        return self._heads[_group(claim)][1] and claim.wanted.machine_id not in self._pinned

    def _read_heads(self, claim: Taking) -> tuple[dict[str, str], bool]:
        """Return the projects of the first jobs by their ids, and True when there are no more."""
        query = claim_query(claim.wanted)
        found = self._connection.execute(_heads(query.key, each=self._each), {**query.values}).all()
        # Of what comes behind the first ones by rank, some may be missing.
        projects = dict(itertools.islice({row[0]: row[1] for row in found}.items(), self._each))
        return projects, len(projects) < self._each

    def _read_of_machines(self, machines: set[str]) -> tuple[set[str], set[tuple[str, str]]]:
        """Return the machines with queued jobs that nobody else may have, and the bans as (job, machine)."""
        job_ids = {job_id for found, _ in self._heads.values() for job_id in found}
        values = {"jobs": sorted(job_ids), "machines": sorted(machines)}
        found = self._connection.execute(_of_machines(self._dialect_name), values).all()
        pinned = {machine_id for job_id, machine_id in found if job_id is None}
        return pinned, {(job_id, machine_id) for job_id, machine_id in found if job_id is not None}


def _group(claim: Taking) -> Hashable:
    """Return the fields of a claim that decide which heads it looks at."""
    wanted = claim.wanted
    return (
        wanted.kinds,
        wanted.held_models,
        wanted.project_id,
        wanted.vram_bytes,
        wanted.joint_key,
        wanted.passed_over,
    )


def _power_of_two(number: int) -> int:
    """Return the next power of two, so that there are few statements to prepare."""
    return 1 << (number - 1).bit_length()


@functools.lru_cache(maxsize=256)
def _heads(key: ClaimQueryKey, *, each: int) -> sa.Select[Any]:
    return first_ones_of_queue(key, each=each)


@functools.cache
def _of_machines(dialect_name: str) -> sa.CompoundSelect[Any]:
    """Select (job, machine) of each ban among the jobs, and (NULL, machine) where jobs are for that machine only."""
    banned = sa.select(bans.c.job_id, bans.c.machine_id).where(
        among(dialect_name, bans.c.job_id, "jobs"), among(dialect_name, bans.c.machine_id, "machines")
    )
    of_its_own = among(dialect_name, jobs.c.only_machine_id, "machines")
    return sa.union_all(banned, sa.select(sa.null(), jobs.c.only_machine_id).where(PINNED, of_its_own))
