"""D12: with 100,000 jobs in the queue the hot statements read an index, and sort no table."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.fixtures.databases import migrated_for_a_file
from tests.fixtures.plans import NUMBERS, full_scans, plan

from giornata.control.ports.node_queries.work_rows import Taking, Wanted
from giornata.store import schema
from giornata.store.database.database import Database, open_store
from giornata.store.jobs.attempts import AHEAD, HISTORY, LIVE, RUN_OUT, SINCE_PROGRESS
from giornata.store.jobs.claiming import any_queued, claim_query, eligible, first_ones_of_queue, of_key
from giornata.store.jobs.jobs import take_statement
from giornata.store.jobs.queue import BANNED, COUNTED, PINNED_AND_BANS
from giornata.store.jobs.turns import TURNS, before_statement
from giornata.store.machines.bans import CONNECTED, ON_MACHINE, WAITING
from giornata.store.money.ledger import BESIDE_ATTEMPTS_OF_JOBS

QUEUED_JOBS = 100_000
ENDED_JOBS = 20_000
WANTED = Wanted(kinds=("train",), held_models=("model-7", "model-8"), machine_id="machine-1", project_id=None)
COMPANION = replace(WANTED, joint_key="key-7")

# Every tenth job was interrupted; models and priorities are spread evenly.
FILL_JOBS = """
INSERT INTO jobs (id, project_id, kind, name, state, spec, model_key, joint_key, priority, turn, interrupted, labels,
                  attempt_count, fruitless, step, committed_step, phase, faults, result, created_at_ms,
                  started_at_ms)
SELECT 'job_' || n, 'default', CASE WHEN n % 100 = 0 THEN 'x-rare' ELSE 'train' END, 'n',
       CASE WHEN n <= {queued} THEN 'queued' WHEN n % 20 = 0 THEN 'running' ELSE 'succeeded' END, '{{}}',
       'model-' || (n % 50),
       CASE WHEN n % 3 = 0 THEN NULL ELSE 'key-' || (n % 50) END,
       n % 5, n / 10, n % 10 = 0, '{{}}', 0, 0, 0, 0, '', '[]', '{{}}', 1000000 + n,
       CASE WHEN n <= {queued} THEN NULL ELSE 1000000 + n END
FROM {numbers}
"""
FILL_ATTEMPTS = """
INSERT INTO attempts (id, job_id, number, node_id, machine_id, node_name, request_id, price_micro_usd_per_hour,
                      started_at_ms, renewed_at_ms, lease_expires_at_ms, ended_at_ms, lapsed, reason)
SELECT 'att_' || n, 'job_' || n, 1, 'node_' || (n % 499), 'machine-' || (n % 500), 'n', 'r' || n, 0, n, n,
       1000000 + n,
       CASE WHEN n % 20 = 0 THEN NULL ELSE 2000000 + n END, n % 2 = 1,
       CASE WHEN n % 20 = 0 THEN NULL ELSE 'succeeded' END
FROM {numbers} WHERE n > {queued}
"""
FILL_BANS = "INSERT INTO bans SELECT 'job_' || n, 'machine-1', 'crashed', 1 FROM {numbers} WHERE n % 50 = 0"
FILL_NODES = """
INSERT INTO nodes (id, project_id, machine_id, name, fleet, kinds, held_models, versions,
                   first_seen_at_ms, last_seen_at_ms)
SELECT 'node_' || n, 'default', 'm', 'n', 'local', '[]', '[]', '{{}}', n, n FROM {numbers} WHERE n <= 2000
"""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database with a long queue and a history."""
    numbers = NUMBERS[request.param].format(most=QUEUED_JOBS + ENDED_JOBS)
    with migrated_for_a_file(request, tmp_path_factory) as url, closing(open_store(url)) as database:
        with database.begin() as tx:
            tx.connection.exec_driver_sql(
                "INSERT INTO projects (id, name, created_at_ms) VALUES ('default', 'default', 1)"
            )
            for statement in (FILL_JOBS, FILL_ATTEMPTS, FILL_BANS, FILL_NODES):
                tx.connection.execute(sa.text(statement.format(queued=QUEUED_JOBS, numbers=numbers)))
        if request.param == "postgresql":  # which does it by itself in time; SQLite plans without, as in real life
            with sa.create_engine(url, isolation_level="AUTOCOMMIT").connect() as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
        yield database


def test_the_claim_reads_the_heads_of_its_two_indexes(full: Database) -> None:
    text = plan(full, take_statement(claim_query(WANTED).key))
    assert full_scans(text) == []
    assert re.search(r"ix_jobs_queue\b", text)
    assert text.count("ix_jobs_queue_model") == 2
    # The one sort is of the heads: three rows.
    assert text.count("TEMP B-TREE") + len(re.findall(r"^Sort", text, re.MULTILINE)) == 1


def test_several_claims_read_the_heads_of_the_same_indexes(full: Database) -> None:
    text = plan(full, first_ones_of_queue(claim_query(WANTED).key, each=32))
    assert full_scans(text) == []
    assert re.search(r"ix_jobs_queue\b", text)
    assert text.count("ix_jobs_queue_model") == 2
    # The one sort is of the heads: 96 rows.
    assert text.count("TEMP B-TREE") + len(re.findall(r"^Sort", text, re.MULTILINE)) == 1


def test_a_claim_without_models_reads_one_index(full: Database) -> None:
    wanted = Wanted(kinds=("train",), held_models=(), machine_id="machine-1", project_id=None)
    text = plan(full, take_statement(claim_query(wanted).key))
    assert full_scans(text) == []
    assert re.search(r"ix_jobs_queue\b", text)


def test_looking_for_work_reads_an_index(full: Database) -> None:
    text = plan(full, any_queued(WANTED.kinds, eligible(WANTED.machine_id, 7, None), machine_id=WANTED.machine_id))
    assert full_scans(text) == []
    assert "ix_jobs_queue" in text


def test_a_claim_for_a_companion_reads_the_head_of_one_index(full: Database) -> None:
    key = claim_query(COMPANION).key
    for statement in (take_statement(key), first_ones_of_queue(key, each=32)):
        text = plan(full, statement)
        assert full_scans(text) == []
        assert text.count("ix_jobs_queue_joint") == 1
        assert "ix_jobs_queue_model" not in text
        # The one sort is of the head.
        assert text.count("TEMP B-TREE") + len(re.findall(r"^Sort", text, re.MULTILINE)) == 1


def test_looking_for_a_companion_reads_its_index(full: Database) -> None:
    eligible_ones = [*of_key(COMPANION.joint_key), *eligible(COMPANION.machine_id, 7, None)]
    for conditions in (eligible_ones, of_key(COMPANION.joint_key)):
        text = plan(full, any_queued(COMPANION.kinds, conditions, machine_id=None))
        assert full_scans(text) == []
        assert "ix_jobs_queue_joint" in text


def test_query_of_attempts_on_a_node_uses_index(full: Database) -> None:
    attempts = schema.attempts
    text = plan(full, sa.select(attempts.c.id).where(attempts.c.node_id.in_(["node_110"]), LIVE))
    assert full_scans(text) == []
    assert "ix_attempts_node" in text


def test_query_of_attempts_beside_a_job_uses_index(full: Database) -> None:
    text = plan(full, BESIDE_ATTEMPTS_OF_JOBS.params(jobs=["job_110000"], project="default"))
    assert full_scans(text) == []
    assert "ix_attempts_node" in text, "those that ended before are not read"


def test_a_heartbeat_reads_keys_only(full: Database) -> None:
    attempts, jobs = schema.attempts, schema.jobs
    owner = sa.select(attempts.c.job_id).where(attempts.c.id == "att_110000").scalar_subquery()
    for statement in (
        sa.select(jobs.c.id).where(jobs.c.id == owner).with_for_update(),
        sa.update(attempts).where(attempts.c.id == "att_110000", LIVE).values(renewed_at_ms=1),
        sa.update(jobs).where(jobs.c.id == "job_110000").values(step=1),
        sa.update(schema.nodes).where(schema.nodes.c.id == "node_1").values(last_seen_at_ms=1),
    ):
        assert full_scans(plan(full, statement)) == []
    assert "ix_attempts_ended" in plan(full, HISTORY.params(since=2_000_000))


def test_leases_that_ran_out_are_found_by_index(full: Database) -> None:
    for query in (RUN_OUT, AHEAD):
        text = plan(full, query)
        assert full_scans(text) == []
        assert "ix_attempts_live_lease" in text
        assert "TEMP B-TREE" not in text


def test_equal_jobs_are_counted_from_an_index_alone(full: Database) -> None:
    text = plan(full, COUNTED, whole_tables=False)
    assert full_scans(text) == []
    assert re.search(r"COVERING INDEX ix_jobs_demand|Index Only Scan jobs ix_jobs_demand", text)
    assert "TEMP B-TREE" not in text, "nothing is sorted: the groups lie in the index one after the other"


def test_query_of_banned_and_pinned_jobs_uses_index(full: Database) -> None:
    for statement, index in ((BANNED.params(kinds=["train"]), "ix_jobs_queue"), (PINNED_AND_BANS, "ix_jobs_pinned")):
        text = plan(full, statement)
        assert [line for line in full_scans(text) if "bans" not in line] == [], "bans are few"
        assert index in text


def test_jobs_that_wait_with_bans_are_found_among_the_interrupted_ones_by_index(full: Database) -> None:
    kinds = ["train"]
    for statement in (WAITING.params(kinds=kinds), ON_MACHINE.params(kinds=kinds, machine="machine-1")):
        text = plan(full, statement, whole_tables=False)
        assert full_scans(text) == []
        assert re.search(r"ix_jobs_queue\b.*kind.*interrupted", text), "jobs that were never tried are not looked at"
        assert re.search(r"pk_bans|sqlite_autoindex_bans", text)


def test_connected_nodes_and_the_attempts_since_progress_are_found_by_index(full: Database) -> None:
    for statement in (CONNECTED.params(since=1), SINCE_PROGRESS.params(wanted="job_110000")):
        assert full_scans(plan(full, statement, whole_tables=False)) == []


def test_a_turn_is_worked_out_from_the_heads_of_three_indexes(full: Database) -> None:
    text = plan(full, TURNS)
    assert full_scans(text) == []
    for index in ("ix_jobs_queue", "ix_jobs_handed_out", "ix_jobs_project_turn"):
        assert len(re.findall(rf"{index}\b", text)) == 1
    assert not re.search(r"TEMP B-TREE|^Sort|Bitmap", text, re.MULTILINE), "their heads, not all of them"


def test_query_of_jobs_ahead_in_the_queue_uses_index(full: Database) -> None:
    text = plan(full, before_statement(interrupted=False))
    assert full_scans(text) == []
    assert re.search(r"ix_jobs_queue\b", text)


def test_the_jobs_of_a_machine_are_found_by_index(full: Database) -> None:
    text = plan(full, take_statement(claim_query(WANTED).key))
    assert text.count("ix_jobs_pinned") == 1


def test_the_claim_takes_the_first_of_a_long_queue(full: Database) -> None:
    """Interrupted, priority 4 is impossible here (n % 10 = 0 has priority 0): the first free one is job_10."""
    with full.begin() as tx:
        job = tx.jobs.take(Taking(wanted=WANTED, attempt_id="att_new"), at_ms=1)
        assert job is not None
        assert job.id == "job_10"
        assert tx.jobs.take(Taking(wanted=WANTED, attempt_id="att_newer"), at_ms=1) != job
