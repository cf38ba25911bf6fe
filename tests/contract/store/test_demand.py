"""What is queued is counted by what it asks of a node."""

from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.fleet_views import demand_of
from giornata.control.ports.node_queries.work_rows import QueuedDemand
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import FailAttempt


def demand(rig: StoreRig) -> list[QueuedDemand]:
    with rig.store.read() as tx:
        return tx.jobs.demand()


def asked(count: int = 1, **fields: object) -> QueuedDemand:
    alike: dict[str, object] = {"kind": "train", "min_vram_bytes": 0, "project_id": "default", **fields}
    return QueuedDemand(count=count, **alike)  # type: ignore[arg-type]


def test_an_empty_queue_asks_for_nothing(rig: StoreRig) -> None:
    rig.add_job()
    rig.lease(1)
    rig.add_job(state="succeeded")
    rig.add_job(state="paused", interrupted=True)
    assert demand(rig) == []


def test_equal_jobs_are_counted_together_and_others_apart(rig: StoreRig) -> None:
    rig.add_project("other")
    for columns in ({}, {}, {}, {"priority": 3}, {"interrupted": True}, {"model_key": "m"}):
        rig.add_job(**columns)
    rig.add_job(project_id="other")
    rig.add_job(project_id="other")
    rig.add_job(min_vram_bytes=20)
    rig.add_job(kind="x-own")
    found = demand(rig)
    assert found[0] == asked(6), "the largest group first"
    assert found[1] == asked(2, project_id="other")
    assert {each.kind for each in found[2:]} == {"train", "x-own"}
    assert len(found) == 4
    assert asked(min_vram_bytes=20) in found


def test_a_job_that_failed_on_a_machine_is_counted_with_its_bans(rig: StoreRig) -> None:
    for _ in range(3):
        rig.add_job()
    for machine in (1, 2):
        lease = rig.lease(machine)
        fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="x"))
    rig.lease(3)  # the banned one, for it goes first
    assert demand(rig) == [asked(2)]
    rig.clock.advance_s(1000)
    lapse_leases(rig.ctx)
    assert demand(rig) == [asked(2), asked(banned_machines=frozenset({"machine-1", "machine-2"}))]


def test_jobs_with_equal_bans_are_one_group(rig: StoreRig) -> None:
    for _ in range(2):
        rig.add_job(interrupted=True)
    for job_id in ("job_000001", "job_000002"):
        with rig.store.begin() as tx:
            tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert demand(rig) == [asked(2, banned_machines=frozenset({"machine-1"}))]


def test_a_job_for_one_machine_is_counted_by_itself(rig: StoreRig) -> None:
    rig.add_job(only_machine_id="machine-1")
    rig.add_job(only_machine_id="machine-1")
    banned = rig.add_job(only_machine_id="machine-2", min_vram_bytes=7)
    with rig.store.begin() as tx:
        tx.bans.ban(banned, "machine-2", Reason.CRASHED, at_ms=1)
    rig.add_job()
    found = demand(rig)
    assert found[:2] == [asked(), asked(2, only_machine_id="machine-1")]
    assert found[2:] == [
        asked(banned_machines=frozenset({"machine-2"}), only_machine_id="machine-2", min_vram_bytes=7)
    ]


def test_jobs_that_wait_for_a_place_of_their_project_ask_for_no_node(rig: StoreRig) -> None:
    rig.add_project("other")
    for _ in range(5):
        rig.add_job()
        rig.add_job(project_id="other")
    rig.lease(1)
    with rig.store.begin() as tx:
        tx.quotas.set("default", {"max_running_jobs": 3})
    with rig.store.read() as tx:
        found = {group.project_id: group.jobs for group in demand_of(tx)}
        queued = {group.project_id: group.count for group in tx.jobs.demand()}
    running = 5 - queued["default"]
    assert found == {"default": 3 - running, "other": queued["other"]}
