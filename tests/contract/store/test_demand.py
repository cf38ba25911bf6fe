"""What is queued is counted by what it asks of a node."""

from tests.fixtures.work import Workshop

from giornata.control.attempts.lapse import lapse_leases
from giornata.control.attempts.reported_ends import fail
from giornata.control.ports.work_rows import QueuedDemand
from giornata.domain.reasons import Reason
from giornata.protocol.work import FailAttempt


def demand(shop: Workshop) -> list[QueuedDemand]:
    with shop.store.read() as tx:
        return tx.jobs.demand()


def asked(count: int = 1, **fields: object) -> QueuedDemand:
    alike: dict[str, object] = {"kind": "train", "min_vram_bytes": 0, "project_id": "default", **fields}
    return QueuedDemand(count=count, **alike)  # type: ignore[arg-type]


def test_an_empty_queue_asks_for_nothing(shop: Workshop) -> None:
    shop.add_job()
    shop.lease(1)
    shop.add_job(state="succeeded")
    shop.add_job(state="paused", interrupted=True)
    assert demand(shop) == []


def test_equal_jobs_are_counted_together_and_others_apart(shop: Workshop) -> None:
    shop.add_project("other")
    for columns in ({}, {}, {}, {"priority": 3}, {"interrupted": True}, {"model_key": "m"}):
        shop.add_job(**columns)
    shop.add_job(project_id="other")
    shop.add_job(project_id="other")
    shop.add_job(min_vram_bytes=20)
    shop.add_job(kind="x-own")
    found = demand(shop)
    assert found[0] == asked(6), "the largest group first"
    assert found[1] == asked(2, project_id="other")
    assert {each.kind for each in found[2:]} == {"train", "x-own"}
    assert len(found) == 4
    assert asked(min_vram_bytes=20) in found


def test_a_job_that_failed_on_a_machine_is_counted_with_its_bans(shop: Workshop) -> None:
    for _ in range(3):
        shop.add_job()
    for machine in (1, 2):
        lease = shop.lease(machine)
        fail(shop.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="x"))
    shop.lease(3)  # the banned one, for it goes first
    assert demand(shop) == [asked(2)]
    shop.clock.advance_s(1000)
    lapse_leases(shop.ctx)
    assert demand(shop) == [asked(2), asked(banned_machines=frozenset({"machine-1", "machine-2"}))]


def test_jobs_with_equal_bans_are_one_group(shop: Workshop) -> None:
    for _ in range(2):
        shop.add_job(interrupted=True)
    for job_id in ("job_000001", "job_000002"):
        with shop.store.begin() as tx:
            tx.bans.ban(job_id, "machine-1", Reason.CRASHED, at_ms=1)
    assert demand(shop) == [asked(2, banned_machines=frozenset({"machine-1"}))]


def test_a_job_for_one_machine_is_counted_by_itself(shop: Workshop) -> None:
    shop.add_job(only_machine_id="machine-1")
    shop.add_job(only_machine_id="machine-1")
    banned = shop.add_job(only_machine_id="machine-2", min_vram_bytes=7)
    with shop.store.begin() as tx:
        tx.bans.ban(banned, "machine-2", Reason.CRASHED, at_ms=1)
    shop.add_job()
    found = demand(shop)
    assert found[:2] == [asked(), asked(2, only_machine_id="machine-1")]
    assert found[2:] == [
        asked(banned_machines=frozenset({"machine-2"}), only_machine_id="machine-2", min_vram_bytes=7)
    ]
