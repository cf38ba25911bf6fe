"""What the model is made of: a fold that refuses what cannot be, deaths that come, schedules that get shorter."""

from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from tests.contract.model.mutants import MUTANTS, ROOT, Mutant
from tests.contract.model.replay import ReplayedJob
from tests.contract.model.schedules import shrink
from tests.contract.model.sudden_death import Died, SuddenDeath
from tests.contract.model.written import WrittenTables, tables_written

STARTED = {"node_id": "n", "machine_id": "m", "resume_step": 0}


def event(type_: str, attempt: int | None = None, **data: Any) -> Any:
    return SimpleNamespace(type=type_, attempt_number=attempt, data=data, at_ms=1)


def told(*events: Any) -> ReplayedJob:
    replayed = ReplayedJob("job", {})
    for one in events:
        replayed.tell(one, {})
    return replayed


def test_a_story_is_folded_from_its_events():
    life = [
        event("job.submitted", retry_of=None),
        event("attempt.started", 1, **STARTED),
        *(event("checkpoint.committed", 1, step=step, sha256="a") for step in (10, 20, 30)),
        event("checkpoint.rejected", 1, step=30),
        event("attempt.ended", 1, reason="released"),
        event("job.requeued", 1, resume_step=20),
    ]
    replayed = told(*life)
    assert (replayed.state, replayed.committed_step, replayed.live) == ("queued", 20, None)
    assert set(replayed.saved) == {20, 30}


@pytest.mark.parametrize(
    "after",
    [
        event("attempt.started", 2, **STARTED),
        event("job.requeued", 1, resume_step=0),
        event("checkpoint.committed", 2, step=10, sha256="a"),
        event("attempt.renewed", 1),
        event("job.submitted", retry_of=None),
    ],
)
def test_a_story_that_cannot_be_is_refused(after: Any):
    begun = (event("job.submitted", retry_of=None), event("attempt.started", 1, **STARTED))
    told(*begun)
    with pytest.raises(AssertionError):
        told(*begun, after)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_bug_that_is_to_be_planted_still_has_its_place(mutant: Mutant):
    for patch in mutant.patches:
        assert (ROOT / "src" / "giornata" / patch.file).read_text().count(patch.old) == 1, patch.old


def test_server_that_died_writes_no_row():
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    death = SuddenDeath()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE things (name TEXT)")
    with death.watching():
        for left in (0, 1, 2):  # before the first statement, the second, and the commit
            death.left = left
            with pytest.raises(Died), engine.begin() as connection:
                connection.exec_driver_sql("INSERT INTO things VALUES ('one')")
                connection.exec_driver_sql("INSERT INTO things VALUES ('two')")
            assert death.left is None
        with engine.begin() as connection:
            assert connection.exec_driver_sql("SELECT * FROM things").all() == []


def test_a_schedule_is_cut_down_to_what_breaks():
    steps = [("step", number, 0) for number in range(100)]
    guilty = [steps[17], steps[71]]
    assert shrink(steps, lambda some: all(step in some for step in guilty)) == guilty


@pytest.mark.parametrize(
    ("statement", "written"),
    [
        ("SELECT a FROM jobs FOR UPDATE OF jobs SKIP LOCKED", set()),
        ('INSERT INTO "jobs" (a) VALUES (1) ON CONFLICT DO UPDATE SET a = 1', {"jobs", "set"}),
        ("WITH x AS (DELETE FROM bans RETURNING *) UPDATE jobs SET a = 1", {"bans", "jobs"}),
        ("BEGIN IMMEDIATE", set()),
        ("TRUNCATE jobs", None),
    ],
)
def test_tables_written_by_a_statement_are_recognized(statement: str, written: set[str] | None):
    assert tables_written(statement) == written


def test_a_write_is_noted_until_it_is_forgotten():
    engine, written = (
        sa.create_engine("sqlite://", poolclass=sa.StaticPool),
        WrittenTables(frozenset({"things", "others"})),
    )
    assert written.tables == {"things", "others"}
    written.forget()
    with written.watching(), engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
        assert written.tables == set()
        connection.exec_driver_sql("CREATE TABLE things (name TEXT)")
        assert written.tables == {"things", "others"}, "nobody knows what that does"
        written.forget()
        connection.exec_driver_sql("INSERT INTO things VALUES ('one')")
        assert written.tables == {"things"}
