"""The rig under test: the real store and the real use cases on a clock, a storage and a death of the test's own."""

from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from tests.contract.model.memory_blobs import MemoryBlobs
from tests.contract.model.sudden_death import SuddenDeath
from tests.contract.model.written import WrittenTables
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock
from tests.fixtures.users import have

from giornata.control.access.install import install
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.policy import Policy
from giornata.control.ports.user_queries.records import ProjectRecord
from giornata.control.storage.datasets import create_dataset
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.audits import AuditPolicy
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.node.joint import joint_key_of
from giornata.protocol.node.work import NodeInfo
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.protocol.specs import AUDIT_KIND
from giornata.protocol.uploads import CreateDataset, DatasetItem
from giornata.store import schema
from giornata.store.database.database import Database

PROJECTS = (ROOT_PROJECT, "ann", "bob")
ENDING = "eve"
"""The project in which things come to the end of their life while threads are at work."""
KINDS = ("train", "x-own")
TAKEN = (*KINDS, AUDIT_KIND)  # by the operator's nodes
NEVER_TRIED = ORDER_KINDS | {SWEEP_KIND}  # jobs that no node has as such
NOT_ASKED_FOR = NEVER_TRIED | {AUDIT_KIND}  # whoever waits for jobs does not wait for these
# Ends are reached sooner than in life, so that a schedule sees more of them.
ROOT = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")
LIAR = "machine-2"  # the only machine whose results are wrong at times
# Machines are of many owners, so that any third one may decide about two others.
POLICY = Policy(
    max_fruitless=4,
    max_crashed_machines=2,
    min_pictures=1,
    max_log_lines_per_job=5,
    audits=AuditPolicy(rented_fleets=frozenset({"local"})),
)
PRICES = (0, 1, 360_000, 777_777)  # micro-dollars an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where a node lives; its processes come and go. Two places may share a machine.

    `machine` is the id by which the server knows it: of a project's own it ends with the project, which no node says.
    """

    number: int
    machine: str
    project: str = ROOT_PROJECT
    kinds: tuple[str, ...] = TAKEN

    @property
    def caller(self) -> Caller:
        return Caller(project_id=self.project, scopes=Scope.NODE.reach, key_id=f"key_node_{self.project}")

    def process(self, incarnation: int) -> NodeInfo:
        """The node's n-th process."""
        return NodeInfo(
            node_id=f"node_{self.number:04d}x{incarnation:06d}",
            machine_id=self.machine.partition("@")[0],
            name=f"node-{self.number}",
            price_micro_usd_per_hour=PRICES[self.number % len(PRICES)],
        )


PLACES = (
    NodePlace(number=0, machine="machine-0"),
    NodePlace(number=1, machine="machine-1"),
    NodePlace(number=2, machine="machine-1", kinds=("x-own",)),
    NodePlace(number=3, machine="machine-2"),
    NodePlace(number=4, machine="machine-3@ann", project="ann", kinds=KINDS),
    NodePlace(number=5, machine="machine-3@bob", project="bob", kinds=("train",)),
)


@cache
def key_of(kind: str, model: str) -> str | None:
    """The joint key of this model's jobs here, which are alike in all that it depends on."""
    return joint_key_of(kind, {"model": model, "dataset": "ds_any"})


def owner(project_id: str) -> Caller:
    """Who submits for a project."""
    return Caller(project_id=project_id, scopes=Scope.MEMBER.reach, key_id=f"key_{project_id}")


class ModelRig:
    """`reset` makes everything new but the database's tables."""

    def __init__(self, store: Database, death: SuddenDeath, written: WrittenTables) -> None:
        self.store, self.death, self.written = store, death, written

    def reset(self) -> None:
        """Empty tables, an installation, projects, and a dataset in each."""
        self.clock = ManualClock()
        self.harmed: set[tuple[str, str]] = set()  # project and sha256 of bytes that storage lost at some time
        self.retained: set[str] = set()  # projects that keep something for a day
        self.is_set_back = False  # somebody set the clock back: what was old enough before need not be now
        self.blobs = MemoryBlobs(self.clock)
        self.ctx = Context(
            store=self.store,
            blobs=self.blobs,
            clock=self.clock,
            names=CountedIds(),
            pictures=FinePictures(),
            policy=POLICY,
        )
        with self.store.begin() as tx:
            for table in reversed(schema.metadata.sorted_tables):
                tx.connection.execute(sa.delete(table))
        install(self.ctx)
        with self.store.begin() as tx:
            for name in PROJECTS[1:]:
                tx.projects.add(ProjectRecord(id=name, name=name, created_at_ms=self.clock.now_ms()))
        self.datasets = {name: self.new_dataset(name) for name in PROJECTS}

    def open_ending(self) -> None:
        """Make the project ENDING, with a dataset."""
        with self.store.begin() as tx:
            tx.projects.add(ProjectRecord(id=ENDING, name=ENDING, created_at_ms=self.clock.now_ms()))
        self.ending_datasets = [self.new_ending_dataset(0)]
        self.datasets[ENDING] = self.ending_datasets[0]

    def new_ending_dataset(self, number: int) -> str:
        """The id of a dataset of two pictures, one of which the others have as well.

        Raises InvalidInput when somebody deletes them meanwhile.
        """
        pictures = (b"a picture", f"picture {number}".encode())
        items = [
            DatasetItem(sha256=have(self.ctx, owner(ENDING), data), name=f"{n}.png")
            for n, data in enumerate(pictures)
        ]
        return create_dataset(self.ctx, owner(ENDING), CreateDataset(items=tuple(items))).id

    def ceilings(self) -> dict[str, int]:
        """How many jobs each project may run that has such a limit, as the table says."""
        limited = sa.select(schema.projects.c.id, schema.projects.c.max_running_jobs)
        with self.store.read() as tx:
            rows = tx.connection.execute(limited.where(schema.projects.c.max_running_jobs.is_not(None))).all()
        return {row.id: row.max_running_jobs for row in rows}

    def new_dataset(self, project: str) -> str:
        """The id of the project's dataset, which is there from now on."""
        item = DatasetItem(sha256=have(self.ctx, owner(project), b"a picture"), name="0.png")
        return create_dataset(self.ctx, owner(project), CreateDataset(items=(item,))).id


Row = Any  # a row of a table, its columns as attributes


@dataclass(slots=True)
class RowSnapshot:
    """Every row of every table that work changes; `events` holds those since the snapshot before."""

    tables: dict[str, list[Row]]
    events: list[Row]

    def __getattr__(self, name: str) -> list[Row]:
        return self.tables[name]


def _table(table: sa.Table) -> tuple[str, Any]:
    names = [column.name for column in table.columns]
    order = ", ".join(column.name for column in table.primary_key)
    listed = ", ".join(f'"{name}"' for name in names)
    return f"SELECT {listed} FROM {table.name} ORDER BY {order}", namedtuple(table.name, names)  # noqa: S608


WATCHED = {
    table.name: _table(table)
    for table in schema.metadata.sorted_tables
    if table.name not in {"installation", "projects", "keys", "datasets", "deletions", "events"}
}
EVENTS, Event = _table(schema.events)


@contextmanager
def opened_rig(store: Database) -> Iterator[ModelRig]:
    """A rig on an open store, with everything that watches it."""
    death, written = SuddenDeath(), WrittenTables(frozenset({*WATCHED, "events"}))
    with death.watching(), written.watching():
        yield ModelRig(store, death, written)


def snapshot(rig: ModelRig, *, events_after: int, known: Mapping[str, list[Row]]) -> RowSnapshot:
    """What the database holds now. JSON columns come as the driver gives them: this is done after every operation.

    `known` are tables that nobody wrote to since they were read: they are not read again.
    """
    asked = {name: it for name, it in WATCHED.items() if name not in known}
    queries = [query for query, _ in asked.values()]
    queries.append(EVENTS.replace(" ORDER", f" WHERE id > {events_after} ORDER"))
    with rig.store.read() as tx:
        driver: Any = tx.connection.connection.driver_connection
        # One trip to PostgreSQL for all of them.
        with driver.pipeline() if tx.dialect_name == "postgresql" else nullcontext():
            cursors = [driver.execute(query) for query in queries]
        *found, events = [cursor.fetchall() for cursor in cursors]
    rows = zip(asked.items(), found, strict=True)
    tables = {name: list(map(row._make, of_table)) for (name, (_, row)), of_table in rows}
    return RowSnapshot(tables={**known, **tables}, events=list(map(Event._make, events)))
