"""Reports of pictures that end their lease, or come together with reports of other leases."""

import pytest
from tests.fixtures.picture_rig import PictureRig, drawn
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.record_pictures import record_each
from giornata.control.caller import Caller
from giornata.control.jobs.reading.order_pictures import read_pictures
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.stop_job import cancel
from giornata.control.pictures.picture_report import PictureReport
from giornata.control.timestamps import instant
from giornata.domain.errors import LeaseLost
from giornata.domain.generation.picture import FAILED_AGAIN_MS
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pictures import PictureResults, PictureResultsReply
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")
DONE = CompleteAttempt(step=0)


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


def test_a_report_that_completes_gives_the_rest_back_and_is_answered_alike_when_repeated(
    picture_rig: PictureRig,
) -> None:
    order_id = picture_rig.order(3)
    lease = picture_rig.lease(1)
    picture_rig.rig.clock.advance_s(10)
    done = [picture_rig.upload(lease, each) for each in lease.pictures[:2]]
    first, again = (picture_rig.report(lease, done, complete=True) for _ in range(2))
    assert [each.number for each in first.accepted] == [0, 1]
    assert first.ended
    assert again == first
    assert complete(picture_rig.ctx, lease.attempt_id, DONE)
    assert picture_rig.states(order_id) == ["succeeded", "succeeded", "queued"]
    (attempt,) = picture_rig.rig.rows(schema.attempts, id=lease.attempt_id)
    now_ms = picture_rig.ctx.clock.now_ms()
    assert (attempt["reason"], attempt["ended_at_ms"], attempt["renewed_at_ms"]) == ("succeeded", now_ms, now_ms)
    (bill,) = picture_rig.rig.rows(schema.ledger, attempt_id=lease.attempt_id)
    assert bill["to_ms"] == now_ms
    with pytest.raises(LeaseLost):
        picture_rig.report(lease, done)


def test_reports_of_several_leases_at_once_are_stored_together_and_each_by_itself(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(6)
    leases = [picture_rig.lease(node, most=2) for node in (1, 2, 3)]
    complete(picture_rig.ctx, leases[1].attempt_id, DONE)
    reports = []
    for lease in leases:
        done = tuple(picture_rig.upload(lease, each) for each in lease.pictures)
        results = PictureResults(drawn=done, complete=lease is leases[2])
        reports.append(PictureReport(attempt_id=lease.attempt_id, results=results))
    first, lost, last = record_each(picture_rig.ctx, reports)
    assert isinstance(first, PictureResultsReply)
    assert isinstance(lost, LeaseLost)
    assert isinstance(last, PictureResultsReply)
    assert [each.number for each in first.accepted] == [0, 1]
    assert [each.number for each in last.accepted] == [4, 5]
    assert (first.ended, last.ended) == (False, True)
    rows = picture_rig.rig.rows(schema.pictures, order_id=order_id)
    assert [row["state"] for row in rows] == [*["succeeded"] * 2, *["queued"] * 2, *["succeeded"] * 2]
    places = [row["place"] for row in rows if row["place"] is not None]
    assert len(set(places)) == len(places) == 4


def test_a_picture_of_a_canceled_order_needs_no_bytes(picture_rig: PictureRig) -> None:
    kept, canceled = picture_rig.order(1), picture_rig.order(1)
    lease = picture_rig.lease(1)
    cancel(picture_rig.ctx, OWNER, canceled)
    done = [picture_rig.upload(lease, lease.pictures[0]), drawn(lease.pictures[1], "0" * 64, 5)]
    reply = picture_rig.report(lease, done)
    assert [each.order_id for each in reply.accepted] == [kept]
    assert [each.order_id for each in reply.dropped] == [canceled]


def test_running_order_says_that_no_node_draws_its_rest_and_when_a_machine_that_failed_is_asked_again(
    picture_rig: PictureRig,
) -> None:
    order_id = picture_rig.order(2)
    lease = picture_rig.lease(1)
    job = get_job(picture_rig.ctx, OWNER, order_id)
    assert (job.state, job.waiting_because) == ("running", None)
    done, broken = lease.pictures
    picture_rig.report(
        lease, [picture_rig.upload(lease, done)], failed=[(broken, Reason.NODE_DOWNLOAD)], complete=True
    )
    failed_at_ms = picture_rig.ctx.clock.now_ms()
    job = get_job(picture_rig.ctx, OWNER, order_id)
    again_at = instant(failed_at_ms + FAILED_AGAIN_MS)
    assert job.waiting_because == (
        "1 of its pictures could not be drawn on 1 machine (such as: it broke (node_download)); "
        f"they are tried there again at {again_at:%H:%M:%S} UTC, or elsewhere before"
    )
    assert job.next_try_at == again_at
    picture_rig.rig.clock.advance_s(FAILED_AGAIN_MS / 1000 + 1)
    because = get_job(picture_rig.ctx, OWNER, order_id).waiting_because
    assert because == "no node for jobs of kind generate is connected"
    again = picture_rig.lease(1)
    assert [each.number for each in again.pictures] == [broken.number]
    assert get_job(picture_rig.ctx, OWNER, order_id).waiting_because is None


def test_running_order_between_two_leases_gives_no_reason(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(2)
    picture_rig.draw(picture_rig.lease(1, most=1))
    job = get_job(picture_rig.ctx, OWNER, order_id)
    assert (job.state, job.pictures and job.pictures.queued, job.waiting_because) == ("running", 1, None)


def errors(picture_rig: PictureRig, order_id: str) -> list[tuple[str, str | None, str | None]]:
    """State, error and last error of each picture, as the order's owner reads them."""
    page = read_pictures(picture_rig.ctx, OWNER, order_id, -1, 100)
    return [(each.state, each.error, each.last_error) for each in page.items]


def test_picture_that_a_machine_could_not_draw_says_why_until_it_is_drawn(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(2)
    lease = picture_rig.lease(1)
    picture_rig.report(lease, failed=[(lease.pictures[1], Reason.NODE_VRAM)])
    last = "it broke (node_vram)"
    assert errors(picture_rig, order_id) == [("leased", None, None), ("queued", None, last)]
    complete(picture_rig.ctx, lease.attempt_id, DONE)
    second = picture_rig.lease(2)
    assert errors(picture_rig, order_id) == [("leased", None, None), ("leased", None, last)], "it is told meanwhile"
    picture_rig.draw(second)
    assert errors(picture_rig, order_id) == [("succeeded", None, None)] * 2


def test_order_with_failed_and_drawn_pictures_says_why_the_first_failed(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(3)
    lease = picture_rig.lease(1)
    broken = [(each, Reason.BAD_SPEC) for each in lease.pictures[1:]]
    assert get_job(picture_rig.ctx, OWNER, order_id).picture_error is None
    picture_rig.report(lease, [picture_rig.upload(lease, lease.pictures[0])], failed=broken)
    job = get_job(picture_rig.ctx, OWNER, order_id)
    assert (job.error, job.picture_error) == (None, "it broke (bad_spec)")
    failed = ("failed", "it broke (bad_spec)", None)
    assert errors(picture_rig, order_id) == [("succeeded", None, None), failed, failed]


@pytest.mark.parametrize("shared", [False, True])
def test_pictures_of_a_crash_say_what_the_node_said_unless_other_projects_were_in_the_lease(
    picture_rig: PictureRig, shared: bool
) -> None:
    picture_rig.rig.add_project("ann")
    order_id = picture_rig.order(2)
    if shared:
        picture_rig.order(1, project_id="ann")
    lease = picture_rig.lease(1)
    assert len({each.order_id for each in lease.pictures}) == 1 + shared
    said = "signal 11 in kernel.so\nwhile it drew\x1b[2J a fox"
    fail(picture_rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message=said, step=0))
    told = "signal 11 in kernel.so while it drew\\x1b[2J a fox (crashed)"
    last = "a lease with pictures of several projects broke off (crashed)" if shared else told
    assert errors(picture_rig, order_id) == [("queued", None, last)] * 2


def test_node_that_goes_in_peace_changes_nothing_of_what_is_said_of_its_pictures(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(1)
    lease = picture_rig.lease(1)
    picture_rig.report(lease, failed=[(lease.pictures[0], Reason.NODE_VRAM)])
    complete(picture_rig.ctx, lease.attempt_id, DONE)
    second = picture_rig.lease(2)
    release(picture_rig.ctx, second.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED, message="bye", step=0))
    assert errors(picture_rig, order_id) == [("queued", None, "it broke (node_vram)")]
