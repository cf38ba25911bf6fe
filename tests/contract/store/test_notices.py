"""Notices that a node sends while it works on a job."""

from tests.contract.store.test_races import at_once
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.report import add_notice
from giornata.protocol.node.work import NoticeReport
from giornata.store import schema


def numbers(rig: StoreRig, job_id: str) -> list[int]:
    return [row["data"]["number"] for row in rig.rows(schema.events, job_id=job_id, type="notice")]


def notice(number: int, notice_id: str | None) -> NoticeReport:
    return NoticeReport(notice_id=notice_id, name="said", data={"number": number})


def test_a_notice_that_is_delivered_again_is_one_event(rig: StoreRig) -> None:
    job_id = rig.add_job()
    lease = rig.lease(1)
    for number, notice_id in enumerate(["notice-1", "notice-2", "notice-1"]):
        add_notice(rig.ctx, lease.attempt_id, notice(number, notice_id))
    assert numbers(rig, job_id) == [0, 1]
    at_once(*[lambda: add_notice(rig.ctx, lease.attempt_id, notice(3, "notice-3")) for _ in range(6)])
    assert numbers(rig, job_id) == [0, 1, 3]


def test_ids_are_the_attempts_own_and_who_draws_none_is_heard_each_time(rig: StoreRig) -> None:
    one, two = rig.add_job(), rig.add_job()
    for number in (1, 2):
        lease = rig.lease(number)
        add_notice(rig.ctx, lease.attempt_id, notice(number, "notice-1"))
    assert (numbers(rig, one), numbers(rig, two)) == ([1], [2])
    for _ in range(2):
        add_notice(rig.ctx, lease.attempt_id, notice(3, None))
    assert numbers(rig, two) == [2, 3, 3]
