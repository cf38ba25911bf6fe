"""Reports of pictures that end their lease, or come together with reports of other leases."""

import pytest
from tests.fixtures.pictures import Studio, drawn
from tests.fixtures.work import Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.record_pictures import record_each
from giornata.control.caller import Caller
from giornata.control.jobs.stop_job import cancel
from giornata.control.pictures.picture_report import PictureReport
from giornata.domain.errors import LeaseLost
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.pictures import PictureResults, PictureResultsReply
from giornata.protocol.work import CompleteAttempt
from giornata.store import schema

OWNER = Caller(project_id=ROOT_PROJECT, scope=Scope.MEMBER, key_id="key_owner")
DONE = CompleteAttempt(step=0)


@pytest.fixture
def studio(shop: Workshop) -> Studio:
    return Studio(shop)


def test_a_report_that_completes_gives_the_rest_back_and_is_answered_alike_when_repeated(studio: Studio) -> None:
    order_id = studio.order(3)
    lease = studio.lease(1)
    studio.shop.clock.advance_s(10)
    done = [studio.upload(lease, each) for each in lease.pictures[:2]]
    first, again = (studio.report(lease, done, complete=True) for _ in range(2))
    assert [each.number for each in first.accepted] == [0, 1]
    assert first.ended
    assert again == first
    assert complete(studio.ctx, lease.attempt_id, DONE)
    assert studio.states(order_id) == ["succeeded", "succeeded", "queued"]
    (attempt,) = studio.shop.rows(schema.attempts, id=lease.attempt_id)
    now_ms = studio.ctx.clock.now_ms()
    assert (attempt["reason"], attempt["ended_at_ms"], attempt["renewed_at_ms"]) == ("succeeded", now_ms, now_ms)
    (bill,) = studio.shop.rows(schema.ledger, attempt_id=lease.attempt_id)
    assert bill["to_ms"] == now_ms
    with pytest.raises(LeaseLost):
        studio.report(lease, done)


def test_reports_of_several_leases_at_once_are_stored_together_and_each_by_itself(studio: Studio) -> None:
    order_id = studio.order(6)
    leases = [studio.lease(node, most=2) for node in (1, 2, 3)]
    complete(studio.ctx, leases[1].attempt_id, DONE)
    reports = []
    for lease in leases:
        done = tuple(studio.upload(lease, each) for each in lease.pictures)
        results = PictureResults(drawn=done, complete=lease is leases[2])
        reports.append(PictureReport(attempt_id=lease.attempt_id, results=results))
    first, lost, last = record_each(studio.ctx, reports)
    assert isinstance(first, PictureResultsReply)
    assert isinstance(lost, LeaseLost)
    assert isinstance(last, PictureResultsReply)
    assert [each.number for each in first.accepted] == [0, 1]
    assert [each.number for each in last.accepted] == [4, 5]
    assert (first.ended, last.ended) == (False, True)
    rows = studio.shop.rows(schema.pictures, order_id=order_id)
    assert [row["state"] for row in rows] == [*["succeeded"] * 2, *["queued"] * 2, *["succeeded"] * 2]
    places = [row["place"] for row in rows if row["place"] is not None]
    assert len(set(places)) == len(places) == 4


def test_a_picture_of_a_canceled_order_needs_no_bytes(studio: Studio) -> None:
    kept, canceled = studio.order(1), studio.order(1)
    lease = studio.lease(1)
    cancel(studio.ctx, OWNER, canceled)
    done = [studio.upload(lease, lease.pictures[0]), drawn(lease.pictures[1], "0" * 64, 5)]
    reply = studio.report(lease, done)
    assert [each.order_id for each in reply.accepted] == [kept]
    assert [each.order_id for each in reply.dropped] == [canceled]
