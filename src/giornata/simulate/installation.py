"""The real control plane in a temporary file: store, use cases, projects, a dataset, jobs."""

import hashlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from giornata.control.access.install import install
from giornata.control.caller import Caller
from giornata.control.context import Context, GovernedFleet
from giornata.control.jobs.submission.submit import submit
from giornata.control.policy import Policy
from giornata.control.ports.clock import Clock
from giornata.control.ports.pictures import Inspection
from giornata.control.ports.user_queries.records import BlobRecord, DatasetRecord, ItemRecord
from giornata.control.projects.projects import create_project
from giornata.domain.jobs.job import TERMINAL
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.project.admin import ROOT_PROJECT, CreateProject, Scope
from giornata.protocol.specs import CANARY_KIND
from giornata.simulate.blobs import ModeledBlobs
from giornata.store.database.database import Database
from giornata.store.database.dialects import parse_url, sqlite_reader, sqlite_writer
from giornata.store.database.migrate import migrate
from giornata.store.schema import jobs

NODE_CALLER = Caller(project_id=ROOT_PROJECT, scopes=Scope.NODE.reach, key_id="key_simulated_node")
ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_simulated_admin")
PICTURES = 8
DATASET_ID = "ds_" + hashlib.sha256(b"modeled").hexdigest()[:32]

PLAIN_SPEC = {
    "dataset": DATASET_ID,
    "instance_prompt": "a photo of sks dog",
    "pretrained_model_name_or_path": "stabilityai/stable-diffusion-xl-base-1.0",
}


class CountedNames:
    """Names in the order in which they were asked for: the same run gives the same names."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: str) -> str:
        """Return the prefix with the next number, such as `job_000000001`."""
        return f"{prefix}_{next(self._numbers):09d}"

    def secret(self) -> str:
        """Return a numbered text that stands for a secret, so that runs repeat."""
        return f"simulated{next(self._numbers):034d}"

    def seed(self) -> int:
        """Return the next number as a seed."""
        return next(self._numbers)


class NoPictures:
    """Implements `giornata.control.ports.pictures.Pictures` without any uploaded picture."""

    def preview(self, path: Path) -> bytes | None:
        raise NotImplementedError(f"{path}: the simulator has no pictures")

    def inspect(self, files: Sequence[tuple[str, Path]]) -> Sequence[Inspection]:
        if files:
            raise NotImplementedError(f"{len(files)} pictures: the simulator has none")
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An installed control plane, and the blob that stands for every checkpoint and result."""

    ctx: Context
    store: Database
    projects: tuple[str, ...]

    def submit(self, project_id: str, spec: Mapping[str, Any], *, name: str, **columns: Any) -> str:
        """Queue a training job by the use case; its id. Raises InvalidInput."""
        caller = Caller(project_id=project_id, scopes=Scope.MEMBER.reach, key_id="key_simulated_user")
        full = {**PLAIN_SPEC, **spec}
        job, _ = submit(self.ctx, caller, SubmitJob(kind="train", spec=full, name=name, **columns), None)
        return job.id

    def rows(self, query: sa.Select[Any]) -> list[Any]:
        """Return all rows that a query finds."""
        with self.store.read() as tx:
            return list(tx.connection.execute(query))


@contextmanager
def installed(
    clock: Clock,
    *,
    policy: Policy,
    fleets: Mapping[str, GovernedFleet],
    projects: int = 1,
) -> Iterator[Installation]:
    """A fresh installation in a temporary folder, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="giornata-simulate-") as folder:
        store = _fast_store(f"sqlite:///{folder}/giornata.db")
        try:
            ctx = Context(
                store=store,
                blobs=ModeledBlobs(),
                clock=clock,
                names=CountedNames(),
                pictures=NoPictures(),
                policy=policy,
                fleets=fleets,
            )
            install(ctx)
            names = tuple(f"project-{number + 1}" for number in range(projects))
            for project_id in names:
                create_project(ctx, ADMIN, CreateProject(id=project_id))
                _furnish(ctx, project_id)
            yield Installation(ctx=ctx, store=store, projects=names)
        finally:
            store.close()


def blob_of(project_id: str) -> BlobRecord:
    """The bytes that stand for every checkpoint and every result of a project."""
    sha256 = hashlib.sha256(f"modeled {project_id}".encode()).hexdigest()
    return BlobRecord(sha256=sha256, size_bytes=66_000_000, key=f"{project_id}/modeled", inspection=None)


def _furnish(ctx: Context, project_id: str) -> None:
    pictures = [
        BlobRecord(
            sha256=hashlib.sha256(f"{project_id} picture {number}".encode()).hexdigest(),
            size_bytes=3_750_000,
            key=f"{project_id}/picture-{number}",
            inspection=None,
        )
        for number in range(PICTURES)
    ]
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        for blob in [*pictures, blob_of(project_id)]:
            tx.uploads.add_blob(project_id, blob, at_ms=now_ms)
        record = DatasetRecord(
            id=DATASET_ID,
            project_id=project_id,
            labels={},
            notes=[],
            picture_count=PICTURES,
            size_bytes=sum(blob.size_bytes for blob in pictures),
            created_at_ms=now_ms,
        )
        items = [
            ItemRecord(sha256=blob.sha256, name=f"{number}.jpg", caption=None, repeats=1)
            for number, blob in enumerate(pictures)
        ]
        tx.datasets.add(record, items)


def _fast_store(url: str) -> Database:
    """The real store, opened for speed: what a power cut would lose is lost anyway when the simulation ends."""
    migrate(url)
    parsed = parse_url(url)
    writer = sqlite_writer(parsed)

    @sa.event.listens_for(writer, "connect")
    def _hurry(connection: Any, _record: object) -> None:
        for statement in ("synchronous = OFF", "cache_size = -262144", "wal_autocheckpoint = 20000"):
            connection.execute(f"PRAGMA {statement}")

    return Database(writer=writer, reader=sqlite_reader(parsed))


@dataclass(frozen=True, slots=True)
class Counts:
    """The jobs that wait, and the jobs that are being worked on."""

    queued: int
    at_work: int


# Only those that are not done: there may be a hundred thousand that are.
_OPEN = (
    sa.select(jobs.c.state, sa.func.count())
    .where(jobs.c.state.not_in(sorted(TERMINAL)), jobs.c.kind != CANARY_KIND)
    .group_by(jobs.c.state)
)


def counts_of(installation: Installation) -> Counts:
    """Count the open jobs in the store."""
    by_state = dict(installation.rows(_OPEN))
    running = by_state.pop("running", 0)
    return Counts(queued=sum(by_state.values()), at_work=running)
