"""Retention takes what a project keeps for a limited time, and nothing that runs, may resume, or is pinned."""

import pytest
import sqlalchemy as sa
from tests.contract.store.test_deletion import below, count, ended_job
from tests.fixtures.contexts import ManualClock
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import (
    ANN,
    ANN_ADMIN,
    BOB,
    PICTURES,
    Bytes,
    claim,
    end,
    have,
    move_in,
    new_dataset,
    new_job,
    progress,
)

from giornata.control.attempts.ending.reported_ends import release
from giornata.control.context import Context
from giornata.control.end_of_life.apply_retention import apply_retention
from giornata.control.end_of_life.pins import set_pin
from giornata.control.end_of_life.retention import preview_retention, read_retention_of, set_retention
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.retry import retry
from giornata.control.storage.datasets import get_dataset
from giornata.domain.errors import Forbidden, NotFound
from giornata.domain.files.retention import KeptClass
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import ReleaseAttempt
from giornata.protocol.project.end_of_life import SetRetention
from giornata.store.database.database import Database
from giornata.store.schema import artifacts, caches, checkpoints, datasets, events, logs, metrics, models

DAY_S = 86_400
CACHE = b"what an attempt made for later jobs"
EVERYTHING = SetRetention(**{kept.value: 1 for kept in KeptClass})


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def write_history(store: Database, ctx: Context, job_id: str) -> None:
    """A line of log and a row of metrics."""
    row = {"job_id": job_id, "attempt_number": 1, "at_ms": ctx.clock.now_ms()}
    with store.begin() as tx:
        tx.connection.execute(sa.insert(logs).values(**row, number=1, line="twelve bytes"))
        tx.connection.execute(sa.insert(metrics).values(**row, step=1, values={"loss": 0.5}))


def keep(ctx: Context, **days: int) -> None:
    set_retention(ctx, ANN_ADMIN, "ann", SetRetention(**days))


def test_retention_deletes_older_results_and_keeps_younger_ones(
    ctx: Context, store: Database, clock: ManualClock
) -> None:
    old, _ = ended_job(ctx)
    clock.advance_s(20 * DAY_S)
    young, _ = ended_job(ctx, checkpoint=b"another")
    clock.advance_s(15 * DAY_S)
    keep(ctx, checkpoints=30)
    assert "checkpoints 1" in str(apply_retention(ctx))
    assert Bytes(b"step 5").sha256 not in below(ctx, "ann")
    assert Bytes(b"another").sha256 in below(ctx, "ann")
    assert count(store, checkpoints, checkpoints.c.job_id == old) == 0
    assert count(store, checkpoints, checkpoints.c.job_id == young) == 1
    assert count(store, artifacts) == 2  # nobody said how long these are kept
    assert not apply_retention(ctx)


def test_every_class_goes_when_its_time_is_over(ctx: Context, store: Database, clock: ManualClock) -> None:
    job_id, _ = ended_job(ctx)
    write_history(store, ctx, job_id)
    others, _ = ended_job(ctx, BOB)
    set_retention(ctx, ANN_ADMIN, "ann", EVERYTHING)
    assert not apply_retention(ctx)  # they have a day
    clock.advance_s(DAY_S + 1)
    assert apply_retention(ctx)
    for table in (checkpoints, artifacts):
        assert count(store, table, table.c.project_id == "ann") == 0
        assert count(store, table, table.c.project_id == "bob") == 1
    assert count(store, datasets, datasets.c.project_id == "ann") == 0
    assert count(store, logs) == count(store, metrics) == count(store, events, events.c.job_id == job_id) == 0
    assert below(ctx, "ann") == set()
    assert get_job(ctx, ANN, job_id).state == "failed"
    assert get_job(ctx, BOB, others).state == "failed"


def test_newest_event_of_all_stays(ctx: Context, store: Database, clock: ManualClock) -> None:
    """SQLite would give its id again, and whoever reads on behind an id would miss the next event."""
    job_id, _ = ended_job(ctx)
    with store.read() as tx:
        newest = tx.connection.scalar(sa.select(sa.func.max(events.c.id)))
    keep(ctx, events=1)
    clock.advance_s(DAY_S + 1)
    assert apply_retention(ctx)
    with store.read() as tx:
        assert list(tx.connection.scalars(sa.select(events.c.id).where(events.c.job_id == job_id))) == [newest]


@pytest.mark.parametrize("interrupted", [False, True])
def test_job_that_has_not_ended_loses_nothing(ctx: Context, clock: ManualClock, *, interrupted: bool) -> None:
    job = new_job(ctx)
    lease = claim(ctx)
    progress(ctx, lease, step=5, committed=b"step 5")
    if interrupted:
        end(ctx, lease, Reason.PREEMPTED, JobEvent.REQUEUE, step=5)
    before = below(ctx, "ann")
    set_retention(ctx, ANN_ADMIN, "ann", EVERYTHING)
    clock.advance_s(1000 * DAY_S)
    assert not apply_retention(ctx)
    assert preview_retention(ctx, ANN_ADMIN, "ann").size_bytes == 0
    assert below(ctx, "ann") == before
    assert get_job(ctx, ANN, job.id).committed_step == 5


def test_checkpoint_that_a_queued_retry_resumes_from_stays(ctx: Context, store: Database, clock: ManualClock) -> None:
    job_id, _ = ended_job(ctx)
    again = retry(ctx, ANN, job_id)
    set_retention(ctx, ANN_ADMIN, "ann", EVERYTHING)
    clock.advance_s(2 * DAY_S)
    assert apply_retention(ctx)
    assert count(store, checkpoints, checkpoints.c.job_id == again.id) == 1
    lease = claim(ctx, machine="m2", node="node_00000002")
    assert [each.step for each in lease.checkpoints] == [5]
    assert {Bytes(b"step 5").sha256, *(Bytes(data).sha256 for data in PICTURES)} <= below(ctx, "ann")


def test_dataset_goes_when_its_last_job_ended_long_ago(ctx: Context, clock: ManualClock) -> None:
    dataset = new_dataset(ctx)
    clock.advance_s(20 * DAY_S)
    ended_job(ctx)  # of the same pictures
    keep(ctx, datasets=10)
    clock.advance_s(9 * DAY_S)
    assert not apply_retention(ctx)
    clock.advance_s(2 * DAY_S)
    assert apply_retention(ctx)
    with pytest.raises(NotFound):
        get_dataset(ctx, ANN, dataset.id)


def test_pinned_things_stay(ctx: Context, store: Database, clock: ManualClock) -> None:
    whole, _ = ended_job(ctx)
    one_step, _ = ended_job(ctx, checkpoint=b"another")
    dataset = new_dataset(ctx, caption="kept")
    for target in (whole, f"{one_step}@5", dataset.id):
        set_pin(ctx, ANN, target, pinned=True)
    set_retention(ctx, ANN_ADMIN, "ann", EVERYTHING)
    clock.advance_s(2 * DAY_S)
    assert apply_retention(ctx)
    assert count(store, checkpoints) == 2
    assert count(store, artifacts, artifacts.c.job_id == whole) == 1
    assert count(store, artifacts, artifacts.c.job_id == one_step) == 0
    assert get_dataset(ctx, ANN, dataset.id).items
    set_pin(ctx, ANN, whole, pinned=False)
    assert apply_retention(ctx)
    assert count(store, checkpoints) == 1


def test_pinned_checkpoint_stays_when_later_ones_are_in(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease()
    rig.checkpoint(lease, 10)
    with rig.store.begin() as tx:
        tx.connection.execute(sa.update(checkpoints).values(pinned=True))
    for step in (20, 30, 40):
        rig.checkpoint(lease, step)
    assert [row["step"] for row in rig.rows(checkpoints)] == [10, 30, 40]


def test_pinned_checkpoint_stays_when_a_later_attempt_commits_other_bytes_for_its_step(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease()
    rig.checkpoint(lease, 10)
    for step in (20, 30):
        with rig.store.begin() as tx:
            tx.connection.execute(sa.update(checkpoints).where(checkpoints.c.step == 10).values(pinned=True))
        rig.checkpoint(lease, step)
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    again = rig.lease(2)
    rig.checkpoint(again, 10, b"other bytes")
    assert [row["step"] for row in rig.rows(checkpoints)] == [10, 20, 30]


def test_preview_says_what_goes_and_changes_nothing(ctx: Context, store: Database, clock: ManualClock) -> None:
    job_id, _ = ended_job(ctx)
    write_history(store, ctx, job_id)
    clock.advance_s(2 * DAY_S)
    told = {each.kept: each for each in preview_retention(ctx, ANN_ADMIN, "ann", EVERYTHING).items}
    assert set(told) == set(KeptClass)
    assert (told[KeptClass.CHECKPOINTS].count, told[KeptClass.CHECKPOINTS].size_bytes) == (1, len(b"step 5"))
    assert (told[KeptClass.LOGS].count, told[KeptClass.LOGS].size_bytes) == (1, 12)
    assert (told[KeptClass.DATASETS].count, told[KeptClass.DATASETS].size_bytes) == (1, sum(map(len, PICTURES)))
    assert told[KeptClass.CHECKPOINTS].examples == [job_id]
    assert told[KeptClass.CHECKPOINTS].oldest_at == get_job(ctx, ANN, job_id).ended_at
    assert preview_retention(ctx, ANN_ADMIN, "ann").items == []  # nothing is set
    assert not apply_retention(ctx)
    set_retention(ctx, ANN_ADMIN, "ann", EVERYTHING)
    taken = apply_retention(ctx).rows
    assert {kept: taken[kept] for kept in told} == {kept: each.count for kept, each in told.items()}


def texts_of(store: Database, table: sa.Table, column: str, job_ids: list[str]) -> int:
    """Bytes of the texts of these jobs' rows, as the database has them."""
    query = sa.select(sa.cast(table.c[column], sa.Text())).where(table.c.job_id.in_(job_ids))
    with store.read() as tx:
        return sum(len(text.encode()) for text in tx.connection.scalars(query))


def test_preview_of_each_class_is_what_a_run_removes(ctx: Context, store: Database, clock: ManualClock) -> None:
    """Two jobs have equal checkpoints, a third one keeps its equal one, and a picture is also a model."""
    (first, _), (second, _), (pinned, _) = ended_job(ctx), ended_job(ctx), ended_job(ctx)
    of_jobs = [first, second, pinned]
    set_pin(ctx, ANN, pinned, pinned=True)
    row, made_of = {"attempt_number": 1, "at_ms": clock.now_ms()}, have(ctx, ANN, CACHE)
    with store.begin() as tx:
        lines = [
            {**row, "job_id": each, "number": 1, "line": "zwölf – \U0001f600"} for each in (first, second, pinned)
        ]
        tx.connection.execute(sa.insert(logs), lines)
        points = [{**row, "job_id": each, "step": 1, "values": {"perte d'été": 0.5}} for each in (first, second)]
        tx.connection.execute(sa.insert(metrics), points)
        kept = {"project_id": "ann", "sha256": Bytes(PICTURES[0]).sha256, "size_bytes": len(PICTURES[0])}
        made = {"created_at_ms": 1, "used_at_ms": 1}
        own = {"name": "style", "kind": "lora", "source": "upload", "reference": "", "pinned": True, "shared": False}
        tx.connection.execute(sa.insert(models).values(**kept, **made, **own))
        cached = {"sha256": made_of, "size_bytes": len(CACHE), "key": "latents"}
        tx.connection.execute(sa.insert(caches).values(project_id="ann", **cached, **made))
    clock.advance_s(2 * DAY_S)
    set_retention(ctx, ANN_ADMIN, "ann", EVERYTHING)
    told = {each.kept: each for each in preview_retention(ctx, ANN_ADMIN, "ann").items}
    tables = {
        KeptClass.LOGS: (logs, "line"),
        KeptClass.METRICS: (metrics, "values"),
        KeptClass.EVENTS: (events, "data"),
    }
    before = {kept: texts_of(store, *table, of_jobs) for kept, table in tables.items()}
    stored = sum(each.size_bytes for each in ctx.blobs.list(""))
    taken = apply_retention(ctx)
    for kept, table in tables.items():
        assert told[kept].is_estimate
        gone = before[kept] - texts_of(store, *table, of_jobs)
        assert (told[kept].count, told[kept].size_bytes) == (taken.rows[kept], gone), kept
        assert gone > 0
    for kept in KeptClass:
        if kept not in tables:
            freed = taken.freed_by_class[kept].size_bytes if kept in taken.freed_by_class else 0
            assert (told[kept].is_estimate, told[kept].size_bytes) == (False, freed), kept
    assert told[KeptClass.CHECKPOINTS].count == 2
    assert told[KeptClass.CHECKPOINTS].size_bytes == 0, "the pinned job has the same bytes"
    assert told[KeptClass.ARTIFACTS].size_bytes > 0
    assert told[KeptClass.DATASETS].size_bytes == sum(map(len, PICTURES[1:])) + len(CACHE), "one picture is a model"
    left = sum(each.size_bytes for each in ctx.blobs.list(""))
    assert stored - left == sum(each.size_bytes for each in told.values() if not each.is_estimate)


def test_only_an_owner_sets_retention(ctx: Context) -> None:
    keep(ctx, checkpoints=30, logs=7)
    told = read_retention_of(ctx, ANN, "ann")
    assert (told.checkpoints, told.logs, told.datasets) == (30, 7, None)
    with pytest.raises(Forbidden):
        set_retention(ctx, ANN, "ann", EVERYTHING)
    for call in (set_retention, preview_retention):
        with pytest.raises(NotFound):
            call(ctx, ANN_ADMIN, "bob", EVERYTHING)
    keep(ctx, logs=7)
    assert read_retention_of(ctx, ANN, "ann").checkpoints is None
