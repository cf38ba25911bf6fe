"""A project's node key: what its nodes do counts for that project, and harms no machine of the operator's."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from pydantic import ValidationError
from tests.contract.store.test_budgets import statements
from tests.contract.store.test_reap import ListedFleet
from tests.fixtures.store_rig import NODE_CALLER, StoreRig

from giornata.control.attempts.claiming.known_node import node_policy, note_checks
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.context import GovernedFleet
from giornata.control.fleets.nodes import list_nodes
from giornata.control.fleets.operator_actions import list_machines, quarantine_machine, release_machine
from giornata.control.fleets.reap import reap
from giornata.control.fleets.stragglers import move_stragglers
from giornata.control.jobs.reading.job_outputs import read_events
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import MachineState
from giornata.domain.machines.node_checks import NodeThresholds
from giornata.protocol.node.node_checks import NodeChecks
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Heartbeat, Lease, NodeInfo
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema
from giornata.store.database.dialects import parse_url, postgres, sqlite_writer
from giornata.store.database.migrate import _config, migrate

ANNS_NODE = Caller(project_id="ann", scopes=Scope.NODE.reach, key_id="key_anns_node")
BOBS_NODE = Caller(project_id="bob", scopes=Scope.NODE.reach, key_id="key_bobs_node")
BOUND_NODE = Caller(project_id="ann", scopes=Scope.NODE.reach, key_id="key_bound", fleet="gpu")
ANN = Caller(project_id="ann", scopes=Scope.MEMBER.reach, key_id="key_ann")
BOB = Caller(project_id="bob", scopes=Scope.MEMBER.reach, key_id="key_bob")
ROOT = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")


@pytest.fixture(autouse=True)
def _projects(rig: StoreRig) -> None:
    rig.add_project("ann")
    rig.add_project("bob")


def broken(rig: StoreRig, lease: Lease, reason: Reason = Reason.NODE_DRIVER) -> str:
    return fail(rig.ctx, lease.attempt_id, FailAttempt(reason=reason, message="it broke")).job_state


def states(rig: StoreRig) -> dict[str, str]:
    return {row["machine_id"]: row["state"] for row in rig.rows(schema.machines)}


def govern(rig: StoreRig, fleet: ListedFleet, **fields: object) -> None:
    rig.ctx = type(rig.ctx)(
        **{name: getattr(rig.ctx, name) for name in rig.ctx.__dataclass_fields__ if name != "fleets"},
        fleets={"gpu": GovernedFleet(name="gpu", driver="toy", fleet=fleet, **fields)},  # type: ignore[arg-type]
    )


def in_fleet(node: NodeInfo, fleet: str = "gpu", instance_id: str | None = None) -> NodeInfo:
    return node.model_copy(update={"fleet": fleet, "instance_id": instance_id})


# ---- what a project's nodes do


def test_a_project_cannot_quarantine_the_operators_machine_by_its_name(rig: StoreRig) -> None:
    for _ in range(3):
        rig.add_job(project_id="ann")
        broken(rig, rig.lease(rig.node(7, machine="machine-1"), caller=ANNS_NODE))
        rig.clock.advance_s(1)
        if states(rig).get("machine-1@ann") == "quarantined":
            break
    assert states(rig) == {"machine-1@ann": "quarantined"}
    rig.add_job(project_id="ann")
    refused = rig.claim(rig.node(7, machine="machine-1"), caller=ANNS_NODE)
    assert refused.reason == "quarantined"
    rig.add_job(project_id="bob")
    assert rig.claim(1).lease is not None, "the operator's machine of that name works for everybody"


def test_a_machine_that_is_known_as_the_operators_is_refused_to_a_projects_key(rig: StoreRig) -> None:
    rig.claim(1)
    rig.add_job(project_id="ann")
    for _ in range(2):  # the first refusal leaves nothing that would let the second try in
        with pytest.raises(Forbidden, match=r"machine-1 is the operator's.*--machine-id"):
            rig.claim(rig.node(7, machine="machine-1"), caller=ANNS_NODE)
        rig.clock.advance_s(1)
    with pytest.raises(Forbidden, match="machine-1 is the operator's"):
        note_checks(rig.ctx, ANNS_NODE, NodeChecks(node=rig.node(7, machine="machine-1")))
    assert [row["machine_id"] for row in rig.rows(schema.nodes)] == ["machine-1"]
    assert rig.claim(rig.node(7, machine="machine-7"), caller=ANNS_NODE).lease is not None


def test_two_projects_may_call_their_machines_alike(rig: StoreRig) -> None:
    for number, caller in ((7, ANNS_NODE), (8, BOBS_NODE)):
        rig.add_job(project_id=caller.project_id)
        rig.lease(rig.node(number, machine="desk"), caller=caller)
    assert [row["machine_id"] for row in rig.rows(schema.nodes)] == ["desk@ann", "desk@bob"]


def test_no_node_can_say_a_name_that_the_server_gives(rig: StoreRig) -> None:
    for name in ("desk@ann", "operator~0123456789abcdef"):
        with pytest.raises(ValidationError, match="a name that the server gave"):
            NodeInfo(node_id="node_00000007", machine_id=name, name="n")
    with pytest.raises(InvalidInput) as refusal:
        rig.claim(rig.node(7, machine="m" * 125), caller=ANNS_NODE)
    assert [fault.where for fault in refusal.value.faults] == ["node.machine_id"]
    with pytest.raises(Conflict, match="another project"):
        rig.claim(1)
        rig.claim(rig.node(1, machine="desk"), caller=ANNS_NODE)


def test_a_project_cannot_have_the_operators_instance_replaced(rig: StoreRig) -> None:
    fleet = ListedFleet(instances={"i-1": Instance(id="i-1", state=InstanceState.RUNNING, machine_id="machine-1")})
    govern(rig, fleet, thresholds=NodeThresholds(min_vram_bytes=1))
    liar = in_fleet(rig.node(7), "gpu", "i-1")
    with pytest.raises(Forbidden, match=r"the fleet gpu is the operator's.*--fleet gpu"):
        rig.claim(liar, caller=ANNS_NODE)
    assert node_policy(rig.ctx, ANNS_NODE, "gpu").min_vram_bytes is None
    quiet = in_fleet(rig.node(7), "mine", "i-1")
    for _ in range(2):
        rig.add_job(project_id="ann")
        broken(rig, rig.lease(quiet, caller=ANNS_NODE))
    assert states(rig) == {"machine-7@ann": "quarantined"}
    assert not reap(rig.ctx)
    assert (fleet.reallocated, fleet.drained) == ([], [])
    assert [row["fleet"] for row in rig.rows(schema.nodes)] == ["mine@ann"]


def test_a_key_that_the_operator_bound_to_a_fleet_speaks_for_its_machines(rig: StoreRig) -> None:
    govern(rig, ListedFleet())
    rig.add_job(project_id="bob")
    mine = rig.add_job(project_id="ann")
    with pytest.raises(Forbidden, match="for nodes of the fleet gpu"):
        rig.claim(in_fleet(rig.node(7), "other"), caller=BOUND_NODE)
    assert rig.lease(in_fleet(rig.node(7)), caller=BOUND_NODE).job_id == mine
    (row,) = rig.rows(schema.nodes)
    assert (row["machine_id"], row["fleet"], row["project_id"]) == ("machine-7", "gpu", "ann")


def test_a_bad_day_of_a_project_is_none_of_the_operators(rig: StoreRig) -> None:
    """Otherwise nodes that fail alike on purpose would keep a black hole of the operator's at work."""
    for number in (11, 12, 13, 14):
        rig.add_job(project_id="ann")
        broken(rig, rig.lease(number, caller=ANNS_NODE), Reason.NODE_DISK)
    for _ in range(2):
        rig.add_job()
        broken(rig, rig.lease(1), Reason.NODE_DISK)
    assert states(rig)["machine-1"] == "quarantined"


def test_job_that_succeeds_on_a_projects_machine_blames_no_operator_machine(rig: StoreRig) -> None:
    rig.add_job(project_id="ann")
    broken(rig, rig.lease(1), Reason.CRASHED)
    (before,) = rig.rows(schema.machines, machine_id="machine-1")
    complete(rig.ctx, rig.lease(7, caller=ANNS_NODE).attempt_id, CompleteAttempt(step=1))
    assert rig.rows(schema.machines, machine_id="machine-1") == [before]
    assert rig.rows(schema.strikes) == []


def test_fast_machines_of_a_project_make_none_of_the_operators_slow(rig: StoreRig) -> None:
    def begin(number: int, caller: Caller) -> str:
        rig.add_job(project_id=caller.project_id, shape_key="a", total_steps=1400)
        return rig.lease(number, caller=caller).attempt_id

    honest = begin(1, NODE_CALLER)
    paces_s = {honest: 12.0} | {begin(number, ANNS_NODE): 0.1 for number in range(11, 19)}
    rig.clock.advance_s(30)
    for attempt_id in paces_s:
        heartbeat(rig.ctx, attempt_id, Heartbeat(step=1))
    for done_s in range(30, 601, 30):
        rig.clock.advance_s(30)
        for attempt_id, step_s in paces_s.items():
            heartbeat(rig.ctx, attempt_id, Heartbeat(step=1 + int(done_s / step_s)))
    rig.claim(90, kinds=("train", "x-own"))  # somebody who could take it
    assert move_stragglers(rig.ctx) == 0


def test_interruptions_of_a_projects_nodes_change_nobodys_cadence(rig: StoreRig) -> None:
    with rig.store.read() as tx:
        before = tx.attempts.history(since_ms=0)
    rig.add_job(project_id="ann")
    lease = rig.lease(7, caller=ANNS_NODE)
    rig.clock.advance_s(5)
    broken(rig, lease)
    with rig.store.read() as tx:
        assert tx.attempts.history(since_ms=0) == before
    rig.add_job()
    broken(rig, rig.lease(1))
    with rig.store.read() as tx:
        assert tx.attempts.history(since_ms=0) != before


def test_the_pace_of_a_projects_machines_is_told_to_that_project_alone(rig: StoreRig) -> None:
    rig.add_job(project_id="ann", shape_key="a")
    lease = rig.lease(7, caller=ANNS_NODE)
    rig.clock.advance_s(5)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
    with rig.store.read() as tx:
        known = {name: list(tx.forecasts.recent(project_id=name)) for name in (ROOT_PROJECT, "ann", "bob")}
    assert known == {ROOT_PROJECT: [], "ann": ["a"], "bob": []}


def test_the_canary_of_a_projects_machine_is_the_projects(rig: StoreRig) -> None:
    """Otherwise the operator would pay what the node says that it costs."""
    rig.add_job(project_id="ann")
    broken(rig, rig.lease(7, caller=ANNS_NODE))
    rig.add_job(project_id="ann")
    canary = rig.lease(7, caller=ANNS_NODE, kinds=("train", "canary"))
    assert canary.kind == "canary"
    row = rig.job(canary.job_id)
    assert (row["project_id"], row["only_machine_id"]) == ("ann", "machine-7@ann")
    assert row["name"] == "canary of machine-7"


def test_the_operators_quarantined_machines_are_looked_at_first(rig: StoreRig) -> None:
    for number in (11, 12):
        for _ in range(2):
            rig.add_job(project_id="ann")
            broken(rig, rig.lease(number, caller=ANNS_NODE))
    for _ in range(2):
        rig.add_job()
        broken(rig, rig.lease(1))
    with rig.store.read() as tx:
        (first,) = tx.machines.in_state(MachineState.QUARANTINED, limit=1)
    assert first.machine_id == "machine-1"


def test_a_claim_for_a_projects_machine_sends_no_statement_more(rig: StoreRig) -> None:
    rig.add_job()
    rig.lease(2)  # from here on the process knows the signing key
    sent: dict[str, int] = {}
    for caller, number in ((NODE_CALLER, 1), (ANNS_NODE, 7)):
        rig.claim(number, caller=caller)  # its first appearance
        rig.clock.advance_s(60)
        rig.add_job(project_id=caller.project_id)
        with statements(rig) as seen:
            rig.lease(number, caller=caller)
        sent[caller.project_id] = len(seen)
    assert sent["ann"] == sent[ROOT_PROJECT]


# ---- what is shown


def attempts_of(rig: StoreRig, caller: Caller, job_id: str) -> list[tuple[str, str, str]]:
    attempts = get_job(rig.ctx, caller, job_id).attempts
    return [(each.node_id, each.machine_id, each.node_name) for each in attempts]


def test_a_project_sees_pseudonyms_of_the_operators_machines_and_names_of_its_own(rig: StoreRig) -> None:
    jobs = {name: rig.add_job(project_id=name) for name in ("ann", "bob")}
    for _ in jobs:
        broken(rig, rig.lease(1), Reason.CRASHED)
    own = rig.lease(rig.node(7, machine="desk"), caller=ANNS_NODE)
    assert own.job_id == jobs["ann"]
    seen = attempts_of(rig, ANN, jobs["ann"])
    assert seen[1] == ("node_00000007", "desk", "node-7")
    node_id, machine_id, name = seen[0]
    assert (node_id[:5], machine_id[:9], name) == ("node~", "operator~", machine_id)
    assert len({machine_id, attempts_of(rig, BOB, jobs["bob"])[0][1]}) == 2, "another one in another project"
    rig.add_job(project_id="ann", id="job_later")
    broken(rig, rig.lease(1), Reason.CRASHED)
    assert attempts_of(rig, ANN, "job_later")[0][1] == machine_id, "always the same"
    with pytest.raises(ValidationError):
        NodeInfo(node_id="node_00000007", machine_id=machine_id, name="n")
    told = get_job(rig.ctx, ANN, jobs["ann"]).model_dump_json()
    told += read_events(rig.ctx, ANN, jobs["ann"], 0, 100).model_dump_json()
    told += list_jobs(rig.ctx, ANN, states=(), labels={}, kind=None, cursor=None, limit=10).model_dump_json()
    assert "machine-1" not in told
    assert "node_00000001" not in told
    assert "node-1" not in told
    assert "desk@ann" not in told


def test_events_name_the_same_machines_as_the_attempts_do(rig: StoreRig) -> None:
    job_id = rig.add_job(project_id="ann")
    rig.lease(1)
    (started,) = [
        each.data for each in read_events(rig.ctx, ANN, job_id, 0, 100).items if each.type == "attempt.started"
    ]
    assert (started["node_id"], started["machine_id"], started["node_name"]) == attempts_of(rig, ANN, job_id)[0]


def test_the_operator_sees_and_types_real_ids(rig: StoreRig) -> None:
    job_id = rig.add_job()
    rig.lease(1)
    assert attempts_of(rig, ROOT, job_id) == [("node_00000001", "machine-1", "node-1")]
    rig.add_job(project_id="ann")
    broken(rig, rig.lease(7, caller=ANNS_NODE))
    nodes = list_nodes(rig.ctx, ROOT, gone=False, cursor=None, limit=10).items
    assert {(each.machine_id, each.fleet) for each in nodes} == {
        ("machine-1", "local"),
        ("machine-7@ann", "local@ann"),
    }
    (machine,) = list_machines(rig.ctx, ROOT, state=None, cursor=None, limit=10).items
    assert machine.machine_id == "machine-7@ann"
    release_machine(rig.ctx, ROOT, "machine-7@ann")
    quarantine_machine(rig.ctx, ROOT, "machine-7@ann", reason="look")
    assert states(rig) == {"machine-7@ann": "quarantined"}
    with pytest.raises(NotFound):
        release_machine(rig.ctx, ROOT, "machine-7")


def test_a_project_sees_its_own_nodes_under_their_names(rig: StoreRig) -> None:
    rig.claim(1)
    rig.claim(in_fleet(rig.node(7), "mine", "i-7"), caller=ANNS_NODE)
    (mine,) = list_nodes(rig.ctx, ANN, gone=False, cursor=None, limit=10).items
    assert (mine.id, mine.machine_id, mine.name, mine.fleet, mine.instance_id) == (
        *("node_00000007", "machine-7", "node-7"),
        *("mine", "i-7"),
    )


def test_a_project_sees_no_ids_of_the_operators_machines_that_work_for_it_alone(rig: StoreRig) -> None:
    govern(rig, ListedFleet())
    rig.claim(in_fleet(rig.node(7), "gpu", "i-7"), caller=BOUND_NODE)
    (seen,) = list_nodes(rig.ctx, ANN, gone=False, cursor=None, limit=10).items
    assert "7" not in {seen.id.removeprefix("node_"), seen.name, seen.machine_id}
    assert (seen.id[:5], seen.machine_id[:9], seen.name[:9]) == ("node~", "operator~", "operator~")
    assert (seen.fleet, seen.instance_id) == ("gpu", None)


# ---- installations of before


def test_machines_of_projects_from_before_get_their_names(
    request: pytest.FixtureRequest, tmp_path: Path, database_url: str
) -> None:
    if database_url.startswith("postgres"):
        make: Callable[[], str] = request.getfixturevalue("empty_postgres")
        url, engine_of = make(), postgres
    else:
        url, engine_of = f"sqlite:///{tmp_path}/old.db", sqlite_writer
    engine = engine_of(parse_url(url))
    with engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0008")
        for statement in OLD:
            connection.exec_driver_sql(statement)
    engine.dispose()
    migrate(url)
    engine = engine_of(parse_url(url))

    def ids(table: sa.Table, *names: str) -> list[tuple[str, ...]]:
        columns = [table.c[name] for name in names]
        return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(*columns))]

    with engine.begin() as connection:
        assert ids(schema.nodes, "id", "machine_id", "fleet") == [
            ("node_ann", "desk@ann", "local@ann"),
            ("node_root", "shed", "local"),
        ]
        assert ids(schema.attempts, "id", "machine_id") == [("att_1", "shed"), ("att_2", "desk@ann")]
        assert ids(schema.bans, "machine_id") == [("desk@ann",), ("shed",)]
        assert ids(schema.strikes, "machine_id") == [("desk@ann",), ("shed",)]
        assert ids(schema.machines, "machine_id") == [("desk@ann",), ("never-seen",), ("shed",)]
    engine.dispose()


_NODE = (
    "INSERT INTO nodes (id, project_id, machine_id, name, fleet, kinds, held_models, versions, first_seen_at_ms,"
    " last_seen_at_ms) VALUES ('{0}', '{1}', '{2}', 'n', 'local', '[]', '[]', '{{}}', 1, 1)"
)
_ATTEMPT = (
    "INSERT INTO attempts (id, job_id, number, node_id, machine_id, node_name, request_id, price_micro_usd_per_hour,"
    " started_at_ms, renewed_at_ms, lease_expires_at_ms, ended_at_ms)"
    " VALUES ('{0}', 'job_1', {1}, '{2}', '{3}', 'n', '{0}', 1, 1, 1, 1, 2)"
)
_MACHINE = (
    "INSERT INTO machines (machine_id, kind, state, since_ms, scored_at_ms, quota)"
    " VALUES ('{0}', 'train', 'ok', 1, 1, 16)"
)
OLD = (
    "INSERT INTO projects (id, name, created_at_ms) VALUES ('default', 'default', 1)",
    "INSERT INTO projects (id, name, created_at_ms) VALUES ('ann', 'ann', 1)",
    "INSERT INTO jobs (id, project_id, kind, name, state, spec, priority, labels, faults, result, created_at_ms)"
    " VALUES ('job_1', 'ann', 'train', 'n', 'queued', '{}', 0, '{}', '[]', '{}', 1)",
    _NODE.format("node_root", "default", "shed"),
    _NODE.format("node_ann", "ann", "desk"),
    _ATTEMPT.format("att_1", 1, "node_root", "shed"),
    _ATTEMPT.format("att_2", 2, "node_ann", "desk"),
    *(
        f"INSERT INTO bans (job_id, machine_id, reason, at_ms) VALUES ('job_1', '{name}', 'crashed', 1)"  # noqa: S608
        for name in ("shed", "desk")
    ),
    *(
        f"INSERT INTO strikes (machine_id, attempt_id, reason, at_ms) VALUES ('{name}', '{attempt}', 'crashed', 1)"  # noqa: S608
        for name, attempt in (("shed", "att_1"), ("desk", "att_2"))
    ),
    *(_MACHINE.format(name) for name in ("shed", "desk", "never-seen")),
)
