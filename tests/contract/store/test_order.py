"""The claim hands out jobs in the order of `domain.jobs.routing.rank`, whatever the queue."""

from dataclasses import dataclass, replace

import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.fixtures.store_rig import StoreRig, job_row

from giornata.control.ports.node_queries.work_rows import Taking, Wanted
from giornata.domain.jobs.reasons import Reason
from giornata.domain.jobs.routing import AFFINITY_WINDOW, Candidate, rank
from giornata.protocol.specs import AUDIT_KIND
from giornata.store import schema
from giornata.store.database.database import Database

MACHINES = (None, None, None, "machine-1", "machine-2")
KINDS = ("train", "x-a", AUDIT_KIND)
MODELS = ("", "m1", "m2", "m3")
JOINT_KEYS = ("k1", "k2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What the order and the predicate look at."""

    kind: str
    model_key: str
    interrupted: bool
    priority: int
    turn: int
    banned: bool = False
    project: str = "default"
    companion: str | None = None
    machine: str | None = None
    vram: int = 0

    @property
    def joint_key(self) -> str | None:
        """Jobs of one key are on one model."""
        return None if self.companion is None else f"{self.companion}-{self.model_key}"


QUEUED = st.builds(
    Queued,
    kind=st.sampled_from(KINDS),
    model_key=st.sampled_from(MODELS),
    interrupted=st.booleans(),
    priority=st.sampled_from([0, 0, 0, -1, 1]),
    # Around the borders of windows, and the same turn twice.
    turn=st.sampled_from([0, 1, 2, AFFINITY_WINDOW - 1, AFFINITY_WINDOW, AFFINITY_WINDOW + 1, 100_000]),
    banned=st.booleans(),
    project=st.sampled_from(["default", "a"]),
    companion=st.sampled_from([None, *JOINT_KEYS]),
    machine=st.sampled_from(MACHINES),
    vram=st.sampled_from([0, 0, 8, 9]),
)


def fill(store: Database, queue: list[Queued]) -> None:
    with store.begin() as tx:
        for table in (schema.bans, schema.jobs):
            tx.connection.execute(sa.delete(table))
        for number, queued in enumerate(queue):
            row = job_row(
                number,
                kind=queued.kind,
                model_key=queued.model_key,
                joint_key=queued.joint_key,
                interrupted=queued.interrupted,
                priority=queued.priority,
                turn=queued.turn,
                only_machine_id=queued.machine,
                min_vram_bytes=queued.vram,
                project_id=queued.project,
            )
            tx.connection.execute(sa.insert(schema.jobs).values(row))
            if queued.banned:
                tx.bans.ban(str(row["id"]), "machine-1", Reason.CRASHED, at_ms=1)


def expected(queue: list[Queued], wanted: Wanted) -> list[str]:
    candidates = [
        Candidate(
            job_id=f"job_{number:06d}",
            interrupted=queued.interrupted,
            priority=queued.priority,
            pinned=queued.machine is not None,
            audit=queued.kind == AUDIT_KIND and queued.machine is not None,
            turn=queued.turn,
            model_held=queued.machine is None and queued.model_key != "" and queued.model_key in wanted.held_models,
        )
        for number, queued in enumerate(queue)
        if queued.kind in wanted.kinds
        and not (queued.banned and wanted.machine_id == "machine-1")
        and wanted.project_id in {None, queued.project}
        and wanted.joint_key in {None, queued.joint_key}
        and queued.machine in ({None} if wanted.joint_key else {None, wanted.machine_id})
        and (wanted.vram_bytes is None or queued.vram <= wanted.vram_bytes)
    ]
    return [candidate.job_id for candidate in sorted(candidates, key=rank)]


def taken(store: Database, wanted: Wanted) -> list[str]:
    """Claim until nothing is left; every look before a claim must agree with it."""
    order: list[str] = []
    while True:
        with store.begin() as tx:
            claimable = tx.jobs.claimable(wanted)
            job = tx.jobs.take(Taking(wanted=wanted, attempt_id="att"), at_ms=1)
        assert claimable is (job is not None)
        if job is None:
            return order
        order.append(job.id)


OLD = Queued(kind="train", model_key="m3", interrupted=False, priority=0, turn=0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    queue=st.lists(QUEUED, max_size=12),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3).map(tuple),
    held=st.lists(st.sampled_from(MODELS), max_size=3).map(tuple),
    machine=st.sampled_from(["machine-1", "machine-2"]),
    project=st.sampled_from([None, "a"]),
    joint_key=st.sampled_from([None, None, *(f"{key}-{model}" for key in JOINT_KEYS for model in MODELS[:2])]),
    vram=st.sampled_from([None, 8, 9]),
)
@example(
    queue=[OLD, Queued(kind="train", model_key="m1", interrupted=False, priority=0, turn=AFFINITY_WINDOW - 1)],
    kinds=("train",),
    held=("m1",),
    machine="machine-2",
    project=None,
    joint_key=None,
    vram=None,
)
@example(
    queue=[OLD, replace(OLD, companion="k1"), replace(OLD, companion="k1", interrupted=True)],
    kinds=("x-a", "train"),
    held=("m1", "m3"),
    machine="machine-2",
    project=None,
    joint_key="k1-m3",
    vram=8,
)
@example(
    queue=[OLD, replace(OLD, interrupted=True, priority=9), replace(OLD, machine="machine-2", turn=99)],
    kinds=("train",),
    held=("m3",),
    machine="machine-2",
    project=None,
    joint_key=None,
    vram=None,
)
def test_claims_follow_rank(
    rig: StoreRig,
    queue: list[Queued],
    kinds: tuple[str, ...],
    held: tuple[str, ...],
    machine: str,
    project: str | None,
    joint_key: str | None,
    vram: int | None,
) -> None:
    if not rig.rows(schema.projects, id="a"):
        rig.add_project("a")
    wanted = Wanted(
        kinds=kinds,
        held_models=held,
        machine_id=machine,
        project_id=project,
        vram_bytes=vram,
        joint_key=joint_key,
    )
    fill(rig.store, queue)
    assert taken(rig.store, wanted) == expected(queue, wanted)
