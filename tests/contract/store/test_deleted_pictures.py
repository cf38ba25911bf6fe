"""Orders of pictures are deleted with their bytes, and retention takes the bytes of old pictures."""

import pytest
from tests.fixtures.contexts import ManualClock
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import StoreRig

from giornata.control.caller import Caller
from giornata.control.end_of_life.apply_retention import apply_retention
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.end_of_life.retention import set_retention
from giornata.control.pictures.settle_order import settle_orders
from giornata.domain.errors import IllegalTransition
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.protocol.project.end_of_life import SetRetention
from giornata.store.schema import ledger, picture_orders, pictures

OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")
DAY_S = 86_400


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


def kept(rig: StoreRig) -> set[str]:
    return {found.key for found in rig.ctx.blobs.list("pictures/")}


def drawn_order(picture_rig: PictureRig, rig: StoreRig, count: int = 2) -> str:
    order_id = picture_rig.order(count)
    lease = picture_rig.lease()
    picture_rig.draw(lease)
    rig.clock.advance_s(2)
    settle_orders(rig.ctx)
    assert rig.job(order_id)["state"] == "succeeded"
    return order_id


def test_deleted_order_leaves_no_picture_and_no_byte(picture_rig: PictureRig, rig: StoreRig) -> None:
    order_id = drawn_order(picture_rig, rig)
    other = drawn_order(picture_rig, rig, 3)
    before, bills = kept(rig), rig.rows(ledger)
    assert len(before) == 5
    told = delete_job(rig.ctx, OWNER, order_id)
    assert (told.objects, told.finished) == (2, True)
    assert len(kept(rig)) == 3
    assert rig.rows(pictures, order_id=order_id) == rig.rows(picture_orders, order_id=order_id) == []
    assert len(rig.rows(pictures, order_id=other)) == 3
    assert rig.rows(ledger) == bills


def test_pictures_of_two_orders_in_one_lease_are_told_apart(picture_rig: PictureRig, rig: StoreRig) -> None:
    first, second = picture_rig.order(1), picture_rig.order(1)
    picture_rig.draw(picture_rig.lease())
    rig.clock.advance_s(2)
    settle_orders(rig.ctx)
    assert len(kept(rig)) == 2
    delete_job(rig.ctx, OWNER, first)
    (row,) = rig.rows(pictures, order_id=second)
    assert kept(rig) == {f"pictures/{row['project_id']}/{row['lease']}/{row['sha256']}"}


def test_order_that_is_being_drawn_is_canceled_and_its_late_results_are_dropped(
    picture_rig: PictureRig, rig: StoreRig
) -> None:
    order_id = picture_rig.order(2)
    lease = picture_rig.lease()
    with pytest.raises(IllegalTransition):
        delete_job(rig.ctx, OWNER, order_id)
    sent = [picture_rig.upload(lease, each) for each in lease.pictures]
    delete_job(rig.ctx, OWNER, order_id, cancel=True)
    reply = picture_rig.report(lease, sent)
    assert (reply.accepted, len(reply.dropped)) == ((), 2)
    settle_orders(rig.ctx)
    assert rig.rows(pictures) == []
    assert rig.job(order_id)["state"] == "canceled"


def test_retention_takes_the_bytes_of_old_pictures_and_leaves_their_counts(
    picture_rig: PictureRig, rig: StoreRig, clock: ManualClock
) -> None:
    order_id = drawn_order(picture_rig, rig)
    set_retention(rig.ctx, OWNER, ROOT_PROJECT, SetRetention(pictures=1))
    assert not apply_retention(rig.ctx)
    clock.advance_s(DAY_S)
    waiting = picture_rig.order(1)
    clock.advance_s(DAY_S)
    assert "pictures 2" in str(apply_retention(rig.ctx))
    assert kept(rig) == set()
    rows = rig.rows(pictures, order_id=order_id)
    assert [(row["state"], row["sha256"], row["size_bytes"]) for row in rows] == [("succeeded", None, None)] * 2
    assert [row["state"] for row in rig.rows(pictures, order_id=waiting)] == ["queued"]
    assert not apply_retention(rig.ctx)
