"""After a long life of many fleets, what claims, heartbeats, ends and loops ask about health, fleets and money is
found by index: its price does not grow with what lies behind."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa
from tests.fixtures.databases import migrated_for_a_file
from tests.fixtures.plans import NUMBERS, plans, read_whole

from giornata.control.ports.node_queries.machine_store import PaceRow
from giornata.control.ports.node_queries.work_rows import AttemptRow, Beginning, NewEvent, NodeBeat, NodeSighting
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import MachineState
from giornata.protocol.events import EventType
from giornata.store.database.database import Database, open_store
from giornata.store.database.transaction import Transaction

LIVE, PAST = 200, 40_000  # attempts, each on a node and an instance of its own
MOST = LIVE + PAST
NOW_MS = 1_790_000_000_000
SINCE_MS = NOW_MS - 120_000

# A node a minute, the latest of them live; every hundredth machine is in quarantine.
FILL = (
    "INSERT INTO projects (id, name, created_at_ms, budget_micro_usd) VALUES ('default', 'default', 1, 1000000)",
    """
    INSERT INTO jobs (id, project_id, kind, name, state, spec, priority, labels, faults, result, total_steps,
                      attempt_count, created_at_ms, started_at_ms, deadline_at_ms, reserved_micro_usd)
    SELECT 'job_' || n, 'default', CASE WHEN n % 7 = 0 THEN 'x-own' ELSE 'train' END, 'n',
           CASE WHEN n > {past} THEN 'running' WHEN n % 4 = 0 THEN 'queued' ELSE 'succeeded' END, '{{}}', 0,
           '{{}}', '[]', '{{}}', 1000, 1, n, n, CASE WHEN n % 1000 = 0 THEN {now} + n ELSE NULL END,
           CASE WHEN n % 1000 = 0 THEN 5 ELSE 0 END
    FROM {numbers}
    """,
    """
    INSERT INTO nodes (id, project_id, machine_id, name, fleet, kinds, held_models, versions, instance_id, device,
                       first_seen_at_ms, last_seen_at_ms)
    SELECT 'node_' || n, 'default', 'machine-' || (n % 3000), 'n' || n, CASE WHEN n % 2 = 0 THEN 'gpu' ELSE 'big' END,
           '["train"]', '[]', '{{}}', 'i-' || n, 'RTX',
           CASE WHEN n > {past} THEN {now} - 600000 ELSE {now} - 60000 * ({most} - n) - 900000 END,
           CASE WHEN n > {past} THEN {now} - 1000 ELSE {now} - 60000 * ({most} - n) - 600000 END
    FROM {numbers}
    """,
    """
    INSERT INTO attempts (id, job_id, number, node_id, machine_id, node_name, request_id, price_micro_usd_per_hour,
                          started_at_ms, first_step_at_ms, first_step, stepped_to, stepped_at_ms, renewed_at_ms,
                          lease_expires_at_ms, ended_at_ms, reason)
    SELECT 'att_' || n, 'job_' || n, 1, 'node_' || n, 'machine-' || (n % 3000), 'n', 'r', 0,
           {now} - 60000 * ({most} - n) - 900000, {now} - 60000 * ({most} - n) - 800000, 1, 9, {now} - 1000,
           {now} - 1000, {now} + 90000, CASE WHEN n > {past} THEN NULL ELSE {now} - 60000 * ({most} - n) - 600000 END,
           CASE WHEN n > {past} THEN NULL WHEN n % 9 = 0 THEN 'crashed' ELSE 'succeeded' END
    FROM {numbers}
    """,
    """
    INSERT INTO instances (fleet, id, name, state, machine_id, first_listed_at_ms, last_listed_at_ms, gone_at_ms)
    SELECT CASE WHEN n % 2 = 0 THEN 'gpu' ELSE 'big' END, 'i-' || n, 'n', 'running', 'machine-' || (n % 3000), 1, 1,
           CASE WHEN n > {past} THEN NULL ELSE {now} - 60000 * ({most} - n) END
    FROM {numbers}
    """,
    """
    INSERT INTO billed_intervals (fleet, instance_id, seq, from_ms, to_ms, price_micro_usd_per_hour)
    SELECT CASE WHEN n % 2 = 0 THEN 'gpu' ELSE 'big' END, 'i-' || n, 0, 1,
           CASE WHEN n > {past} THEN NULL ELSE {now} - 60000 * ({most} - n) END, 1
    FROM {numbers}
    """,
    """
    INSERT INTO machines (machine_id, kind, state, since_ms, scored_at_ms, quota)
    SELECT 'machine-' || n, 'train', CASE WHEN n % 100 = 0 THEN 'quarantined' ELSE 'ok' END, n, n, 16
    FROM {numbers} WHERE n <= 3000
    """,
    "INSERT INTO fleets (name, driver, seen_at_ms) VALUES ('gpu', 'local', 1), ('big', 'local', 1)",
    """
    INSERT INTO reallocations (fleet, instance_id, machine_id, reason, at_ms)
    SELECT CASE WHEN n % 2 = 0 THEN 'gpu' ELSE 'big' END, 'i-' || n, 'machine-' || (n % 3000), 'slow',
           {now} - 60000 * ({most} - n)
    FROM {numbers} WHERE n % 10 = 0
    """,
    "INSERT INTO bans SELECT 'job_' || n, 'machine-' || (n % 3000), 'crashed', 1 FROM {numbers}",
    """
    INSERT INTO ledger (attempt_id, seq, project_id, job_id, from_ms, to_ms, price_micro_usd_per_hour,
                        amount_micro_usd)
    SELECT 'att_' || n, 0, 'default', 'job_' || n, n, n, 0, 0 FROM {numbers}
    """,
)

SLOW = PaceRow(
    **{"attempt_id": "att_40100", "job_id": "job_40100", "machine_id": "machine-1100", "kind": "train"},
    **{"device": "RTX", "shape_key": "", "width": 1, "project_id": "default", "order": "continue", "lapsed": False},
    **{"started_at_ms": 1, "first_step_at_ms": 2, "first_step": 1, "stepped_to": 9, "stepped_at_ms": 9},
    **{"until_ms": 9, "total_steps": 1000},
)

NODE = NodeSighting(
    **{"id": "node_40100", "project_id": "default", "machine_id": "machine-1", "name": "n", "fleet": "gpu"},
    **{"instance_id": "i-40100", "places": 2, "pid": 1, "engine_pid": 1, "device": "RTX", "vram_bytes": 1},
    **{"price_micro_usd_per_hour": 1, "kinds": ("train",), "held_models": (), "versions": {}},
)
BEGINNING = Beginning(
    attempt=AttemptRow(
        **{"id": "att_new", "job_id": "job_4", "number": 2, "node_id": "node_40100", "machine_id": "machine-1"},
        **{"node_name": "n", "price_micro_usd_per_hour": 1, "started_at_ms": 1, "first_step_at_ms": None},
        **{"renewed_at_ms": 1, "lease_expires_at_ms": 1, "ended_at_ms": None, "lapsed": False, "reason": None},
        **{"shared_fault": False, "start_step": 0, "last_step": 0, "committed_step": 0, "order": "continue"},
    ),
    request_id="new",
    event=NewEvent(
        **{"job_id": "job_4", "project_id": "default", "type": EventType.ATTEMPT_STARTED, "attempt_number": 2},
        **{"data": {}, "at_ms": 1},
    ),
)
Ask = Callable[[Transaction], object]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def aged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database with few that live and very many that are gone."""
    numbers = NUMBERS[request.param].format(most=MOST)
    with migrated_for_a_file(request, tmp_path_factory) as url, closing(open_store(url)) as database:
        with database.begin() as tx:
            for statement in FILL:
                tx.connection.execute(sa.text(statement.format(numbers=numbers, past=PAST, most=MOST, now=NOW_MS)))
        if request.param == "postgresql":
            with sa.create_engine(url, isolation_level="AUTOCOMMIT").connect() as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
        yield database


def found(text: str, index: str) -> bool:
    """Whether the plan has the index."""
    return re.search(rf"{index}\b", text) is not None


CLAIM: dict[str, Ask] = {
    "the gate": lambda tx: tx.machines.get_each(["machine-7"], ["train", "x-own"]),
    "the gate, held": lambda tx: tx.machines.lock_each([("machine-7", "train"), ("machine-8", "train")]),
    "what a machine began lately": lambda tx: tx.machines.engagement("machine-7", "train", since_ms=SINCE_MS),
    "which nodes ask": lambda tx: tx.nodes.get("node_40100"),
    "what was asked before": lambda tx: tx.attempts.before_each([("node_40100", "r"), ("node_40101", "r")]),
    "nodes that are seen": lambda tx: tx.nodes.see_each([NODE], at_ms=NOW_MS),
    "attempts that begin": lambda tx: tx.attempts.begin_each([BEGINNING]),
}
BEAT: dict[str, Ask] = {
    "the attempts": lambda tx: tx.attempts.get_each(["att_40100", "att_40101"]),
    "their jobs": lambda tx: tx.jobs.lock_of_attempts(["att_40100", "att_40101"]),
    "the nodes": lambda tx: tx.nodes.beat_each(
        [NodeBeat(id="node_40100", held_models=(), engine_pid=None)], at_ms=NOW_MS
    ),
    "that it was told": lambda tx: tx.attempts.update_live("att_40100", ordered_at_ms=NOW_MS),
    "what a job has spent": lambda tx: tx.spending.of_jobs(["job_40100"]),
    "what a project spends now": lambda tx: tx.spending.unsettled("default", since_ms=SINCE_MS, month_ms=SINCE_MS),
    "what is set aside": lambda tx: tx.spending.reserved("default"),
}
END: dict[str, Ask] = {
    "who else failed": lambda tx: tx.machines.outcomes("train", Reason.CRASHED, owner=None, since_ms=SINCE_MS),
    "the job's failures": lambda tx: tx.machines.failures_of_job("job_40100"),
    "whose canary it is": lambda tx: tx.machines.of_canary("job_40100"),
}
LOOPS: dict[str, Ask] = {
    "reap: in quarantine": lambda tx: tx.machines.in_state(MachineState.QUARANTINED, limit=500),
    "reap: who is there": lambda tx: tx.machines.last_nodes({"machine-100", "machine-200"}, seen_since_ms=SINCE_MS),
    "reap: replaced lately": lambda tx: tx.machines.reallocations("gpu", since_ms=SINCE_MS),
    "scale: instances": lambda tx: tx.fleets.instances("gpu"),
    "scale: nodes": lambda tx: tx.fleets.nodes("gpu", seen_since_ms=SINCE_MS),
    "scale: unfit machines": lambda tx: tx.fleets.unfit_machines(),
    "scale: replaced lately": lambda tx: tx.fleets.reallocations("gpu", since_ms=SINCE_MS),
    "scale: deadlines": lambda tx: tx.fleets.deadlines(),
    "reconcile: gone lately": lambda tx: tx.fleets.gone_since("gpu", since_ms=SINCE_MS),
    "reconcile: leases on what went": lambda tx: tx.fleets.leases_on("gpu", ["i-40100", "i-40102"]),
    "reconcile: billed": lambda tx: tx.fleets.billed("gpu", ["i-40100"]),
    "reconcile: note": lambda tx: tx.fleets.update_instances("gpu", ["i-40100"], gone_at_ms=NOW_MS),
    "stragglers: live": lambda tx: tx.paces.live(),
    "stragglers: ended": lambda tx: tx.paces.ended(since_ms=SINCE_MS, limit=1000),
    "stragglers: who could take it": lambda tx: tx.paces.takers(SLOW, seen_since_ms=SINCE_MS),
    "budgets: who waits": lambda tx: tx.pausing.projects_waiting(),
    "budgets: back": lambda tx: tx.pausing.resume_paused("default", limit=200),
}


@pytest.mark.parametrize("name", CLAIM)
def test_claim_queries_use_indexes(aged: Database, name: str) -> None:
    assert read_whole(plans(aged, CLAIM[name])) == []


@pytest.mark.parametrize("name", BEAT)
def test_heartbeat_queries_use_indexes(aged: Database, name: str) -> None:
    assert read_whole(plans(aged, BEAT[name])) == []


@pytest.mark.parametrize("name", END)
def test_attempt_end_queries_use_indexes(aged: Database, name: str) -> None:
    assert read_whole(plans(aged, END[name])) == []


@pytest.mark.parametrize("name", LOOPS)
def test_loop_queries_use_indexes(aged: Database, name: str) -> None:
    assert read_whole(plans(aged, LOOPS[name])) == []


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("reap: who is there", {"ix_nodes_seen"}),
        ("scale: instances", {"ix_instances_present"}),
        ("scale: nodes", {"ix_nodes_seen", "ix_attempts_node"}),
        ("scale: deadlines", {"ix_jobs_deadline"}),
        ("reconcile: leases on what went", {"ix_nodes_instance"}),
        ("scale: unfit machines", {"ix_machines_state"}),
        ("stragglers: ended", {"ix_attempts_ended"}),
        ("stragglers: who could take it", {"ix_nodes_seen"}),
    ],
)
def test_the_loops_read_what_is_there_and_not_what_was(aged: Database, name: str, indexes: set[str]) -> None:
    text = plans(aged, LOOPS[name])
    assert {index for index in indexes if found(text, index)} == indexes, text


NODES: dict[str, Ask] = {
    "a page of nodes": lambda tx: tx.job_reads.nodes(
        project_id=None, seen_since_ms=SINCE_MS, before=None, limit=100, most_bytes=10**6
    ),
    "nodes by state": lambda tx: tx.gauges.now(seen_since_ms=SINCE_MS),
}


@pytest.mark.parametrize("name", NODES)
def test_replacement_of_a_node_is_found_by_its_name(aged: Database, name: str) -> None:
    """And not among all nodes that were seen after it."""
    text = plans(aged, NODES[name])
    newer = [line for line in text.splitlines() if found(line, "ix_nodes_name") or "newer" in line]
    assert newer, text
    assert all(found(line, "ix_nodes_name") for line in newer), text


def test_a_statement_without_an_index_is_seen_here(aged: Database) -> None:
    """The proof that these tests could fail."""
    unindexed = sa.text("SELECT id FROM nodes WHERE device = 'none'")
    assert read_whole(plans(aged, lambda tx: tx.connection.execute(unindexed))) != []
