"""Leases of pictures, from the claim to their ends."""

from collections import Counter

import pytest
import sqlalchemy as sa
from tests.fixtures.picture_rig import PictureRig, drawn, generate_spec
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.stop_job import cancel
from giornata.control.pictures.picture_uploads import picture_uploads
from giornata.control.pictures.settle_order import settle_order, settle_orders
from giornata.control.projects.set_budget import change_job
from giornata.control.storage.collect import collect
from giornata.domain.errors import BlobMismatch, BlobMissing, InvalidInput, LeaseLost
from giornata.domain.generation.picture import picture_key
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.preprocess import AnnotationParams
from giornata.protocol.jobs import ChangeJob
from giornata.protocol.node.pictures import DrawnPicture, PictureFlag, PictureUploads
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Heartbeat, Order, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")
DONE = CompleteAttempt(step=0)


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


def crash(picture_rig: PictureRig, attempt_id: str, reason: Reason = Reason.CRASHED) -> None:
    fail(picture_rig.ctx, attempt_id, FailAttempt(reason=reason, message="it died"))


def test_a_lease_has_pictures_of_one_batch_key_with_all_that_decides_on_them(picture_rig: PictureRig) -> None:
    first, other = picture_rig.order(3), picture_rig.order(spec=generate_spec(2, side_px=768))
    lease = picture_rig.lease(1, most=16)
    assert [(each.order_id, each.number) for each in lease.pictures] == [(first, 0), (first, 1), (first, 2)]
    assert [each.params["seed"] for each in lease.pictures] == [7, 8, 9]
    assert lease.pictures[0].params["prompt"] == "a blue square"
    assert picture_rig.states(first) == ["leased"] * 3
    assert picture_rig.states(other) == ["queued"] * 2
    assert picture_rig.rig.job(first)["state"] == "running"
    assert picture_rig.rig.job(other)["state"] == "queued"
    assert picture_rig.rig.attempt(lease.attempt_id)["pictures"] == 3


def test_annotations_are_leased_with_their_pictures_and_apart_from_drawn_ones(picture_rig: PictureRig) -> None:
    first, second = (picture_rig.rig.add_blob(content).sha256 for content in (b"a photo", b"another"))
    spec = {"images": [first, second], "annotator": "canny", "annotator_params": {"low_threshold": 50.0}}
    order = picture_rig.order(kind="preprocess", spec=spec)
    picture_rig.order(1)
    lease = picture_rig.lease(1)
    assert [each.order_id for each in lease.pictures] == [order, order]
    given = AnnotationParams.model_validate(lease.pictures[0].params)
    assert (given.image, given.annotator, given.annotator_params) == (first, "canny", {"low_threshold": 50.0})
    assert {(file.role, file.download.sha256) for file in lease.files} == {("picture", first), ("picture", second)}


def test_picture_lease_of_several_projects_divides_its_cost_by_pixel_steps(picture_rig: PictureRig) -> None:
    picture_rig.rig.add_project("ann")
    one, two = picture_rig.order(1), picture_rig.order(3, project_id="ann")
    lease = picture_rig.lease(1)
    assert {each.order_id for each in lease.pictures} == {one, two}
    picture_rig.rig.clock.advance_s(30)
    heartbeat(picture_rig.ctx, lease.attempt_id, Heartbeat())
    bills = {row["job_id"]: row for row in picture_rig.rig.rows(schema.ledger)}
    assert {job_id: row["amount_micro_usd"] for job_id, row in bills.items()} == {one: 750, two: 2250}
    assert bills[two]["project_id"] == "ann"


def test_claims_at_turns_give_two_projects_equal_work(picture_rig: PictureRig) -> None:
    picture_rig.rig.add_project("ann")
    picture_rig.order(40)
    late = picture_rig.order(4, project_id="ann")
    counts = Counter(each.order_id for _ in range(2) for each in picture_rig.lease(1, most=4).pictures)
    assert counts[late] == 4


def test_priority_goes_before_a_held_base_and_a_held_base_before_the_turn(picture_rig: PictureRig) -> None:
    picture_rig.order(spec=generate_spec(1, model="base-a"))
    held = picture_rig.order(spec=generate_spec(1, model="base-b"))
    (base_key,) = {row["base_key"] for row in picture_rig.rig.rows(schema.pictures, order_id=held)}
    urgent = picture_rig.order(spec=generate_spec(1, model="base-c"), priority=5)
    assert picture_rig.lease(1, held_models=(base_key,)).pictures[0].order_id == urgent
    assert picture_rig.lease(1, held_models=(base_key, "no base")).pictures[0].order_id == held


def test_a_claim_with_a_batch_key_gets_companions_only(picture_rig: PictureRig) -> None:
    picture_rig.order(2)
    lease = picture_rig.lease(1, most=1)
    assert picture_rig.claim(1, joint_key="0" * 32).reason == "empty-queue"
    assert picture_rig.lease(1, joint_key=lease.batch_key).batch_key == lease.batch_key


def test_an_order_is_no_job_for_anybody_and_its_pictures_are_for_nodes_that_draw(picture_rig: PictureRig) -> None:
    picture_rig.order(1)
    assert picture_rig.rig.claim(1, kinds=("train", "generate")).lease is None
    assert picture_rig.claim(2, most=0).picture_lease is None
    assert picture_rig.claim(2, kinds=("train",)).picture_lease is None
    job_id = picture_rig.rig.add_job(priority=3)
    reply = picture_rig.claim(3, kinds=("train", "generate"))
    assert reply.lease is not None
    assert reply.lease.job_id == job_id
    assert picture_rig.claim(3, kinds=("train", "generate")).picture_lease is not None


def test_a_repeated_claim_gets_the_same_lease(picture_rig: PictureRig) -> None:
    picture_rig.order(4)
    first, again = (picture_rig.lease(1, most=2, request_id="the-same-one") for _ in range(2))
    assert first.attempt_id == again.attempt_id
    assert first.pictures == again.pictures


def test_results_are_stored_once_and_a_repeat_is_answered_alike(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(3)
    lease = picture_rig.lease(1)
    done = [picture_rig.upload(lease, each) for each in lease.pictures[:2]]
    first, again = picture_rig.report(lease, done), picture_rig.report(lease, done)
    assert [each.number for each in first.accepted] == [0, 1]
    assert again == first
    assert not first.dropped
    rows = picture_rig.rig.rows(schema.pictures, order_id=order_id)
    assert [(row["state"], row["place"]) for row in rows] == [("succeeded", 1), ("succeeded", 2), ("leased", None)]
    assert rows[0]["sha256"] == done[0].sha256


def test_an_order_ends_with_counts_when_all_of_its_pictures_have(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(4)
    lease = picture_rig.lease(1)
    blocked = DrawnPicture(order_id=order_id, number=1, flags=PictureFlag.BLOCKED)
    done = [picture_rig.upload(lease, lease.pictures[0]), blocked]
    picture_rig.report(lease, done, failed=[(lease.pictures[2], Reason.BAD_DATA)])
    assert picture_rig.rig.job(order_id)["state"] == "running"
    picture_rig.draw(lease, 3)
    assert picture_rig.rig.job(order_id)["state"] == "running", "events come once a second"
    picture_rig.rig.clock.advance_s(2)
    assert settle_orders(picture_rig.ctx) == 1
    job = picture_rig.rig.job(order_id)
    assert (job["state"], job["step"]) == ("succeeded", 3)
    assert job["result"] == {"succeeded": 3, "failed": 1, "blocked": 1}
    assert picture_rig.rig.events(order_id) == ["job.submitted", "pictures.ready", "pictures.ready", "job.succeeded"]
    assert complete(picture_rig.ctx, lease.attempt_id, DONE) == complete(picture_rig.ctx, lease.attempt_id, DONE)
    assert settle_orders(picture_rig.ctx) == 0


def test_an_order_of_which_no_picture_could_be_drawn_fails_with_the_reason(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(1)
    lease = picture_rig.lease(1)
    picture_rig.report(lease, failed=[(lease.pictures[0], Reason.BAD_SPEC)])
    job = picture_rig.rig.job(order_id)
    assert job["state"] == "failed"
    assert "it broke (bad_spec)" in job["error"]


def test_bytes_that_storage_has_not_are_refused_and_nothing_is_stored(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(2)
    lease = picture_rig.lease(1)
    here, away = picture_rig.upload(lease, lease.pictures[0]), drawn(lease.pictures[1], "0" * 64, 5)
    with pytest.raises(BlobMissing, match="picture 1 of"):
        picture_rig.report(lease, [here, away])
    with pytest.raises(BlobMismatch):
        picture_rig.report(lease, [here.model_copy(update={"size_bytes": 1})])
    with pytest.raises(InvalidInput, match="twice"):
        picture_rig.report(lease, [here, here])
    with pytest.raises(InvalidInput, match="not blocked"):
        picture_rig.report(lease, [DrawnPicture(order_id=order_id, number=1)])
    assert picture_rig.states(order_id) == ["leased", "leased"]


def test_pictures_of_another_lease_get_no_url_and_no_result(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(2)
    mine, other = picture_rig.lease(1, most=1), picture_rig.lease(2, most=1)
    stolen = picture_rig.upload(mine, other.pictures[0])
    assert not picture_uploads(picture_rig.ctx, mine.attempt_id, PictureUploads(pictures=(stolen,))).uploads
    reply = picture_rig.report(mine, [stolen])
    assert [each.number for each in reply.dropped] == [other.pictures[0].number]
    assert picture_rig.states(order_id) == ["leased", "leased"]
    assert [each.number for each in picture_rig.draw(other).accepted] == [1]


def test_a_signed_put_names_the_lease_the_size_and_the_checksum(picture_rig: PictureRig) -> None:
    picture_rig.order(1)
    lease = picture_rig.lease(1)
    asked = drawn(lease.pictures[0], "a" * 64, 5)
    (upload,) = picture_uploads(picture_rig.ctx, lease.attempt_id, PictureUploads(pictures=(asked,))).uploads
    assert picture_key(ROOT_PROJECT, lease.attempt_id, "a" * 64) in upload.url
    assert upload.headers["Content-Length"] == "5"
    complete(picture_rig.ctx, lease.attempt_id, DONE)
    with pytest.raises(LeaseLost):
        picture_uploads(picture_rig.ctx, lease.attempt_id, PictureUploads(pictures=(asked,)))


@pytest.mark.parametrize("how", ["lapse", "release", "complete", "node"])
def test_pictures_without_a_result_go_back_when_their_lease_ends(picture_rig: PictureRig, how: str) -> None:
    order_id = picture_rig.order(3)
    lease = picture_rig.lease(1)
    picture_rig.draw(lease, 0)
    if how == "lapse":
        picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.lease_s + 1)
        assert lapse_leases(picture_rig.ctx) == 1
    elif how == "release":
        release(picture_rig.ctx, lease.attempt_id, ReleaseAttempt())
    elif how == "complete":
        complete(picture_rig.ctx, lease.attempt_id, DONE)
    else:
        crash(picture_rig, lease.attempt_id, Reason.NODE_DISK)
    assert picture_rig.states(order_id) == ["succeeded", "queued", "queued"]
    for late in (
        lambda: picture_rig.draw(lease, 1),
        lambda: heartbeat(picture_rig.ctx, lease.attempt_id, Heartbeat()),
    ):
        with pytest.raises(LeaseLost):
            late()
    assert [each.number for each in picture_rig.lease(2).pictures] == [1, 2]


def test_a_heartbeat_renews_a_lease_and_tells_its_node_to_leave(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(2)
    lease = picture_rig.lease(1)
    picture_rig.rig.clock.advance_s(80)
    assert heartbeat(picture_rig.ctx, lease.attempt_id, Heartbeat(step=5)).order is Order.CONTINUE
    picture_rig.rig.clock.advance_s(80)
    assert lapse_leases(picture_rig.ctx) == 0
    assert picture_rig.rig.job(order_id)["step"] == 0
    with picture_rig.ctx.store.begin() as tx:
        tx.connection.execute(sa.update(schema.nodes).values(draining=True))
    assert heartbeat(picture_rig.ctx, lease.attempt_id, Heartbeat()).order is Order.DRAIN


def test_a_crash_halves_leases_until_the_culprit_is_alone_and_fails_after_three_machines(
    picture_rig: PictureRig,
) -> None:
    order_id = picture_rig.order(8)
    culprit, sizes, alone_on = 5, [], []
    for node in range(1, 60):
        reply = picture_rig.claim(node, most=8)
        if reply.picture_lease is None:
            break
        lease = reply.picture_lease
        sizes.append(len(lease.pictures))
        if culprit in [each.number for each in lease.pictures]:
            alone_on += [node] * (len(lease.pictures) == 1)
            crash(picture_rig, lease.attempt_id)
        else:
            picture_rig.draw(lease)
            complete(picture_rig.ctx, lease.attempt_id, DONE)
    picture_rig.rig.clock.advance_s(2)
    settle_orders(picture_rig.ctx)
    assert sizes[0] == 8
    assert picture_rig.states(order_id) == ["failed" if number == culprit else "succeeded" for number in range(8)]
    assert picture_rig.rig.job(order_id)["state"] == "succeeded"
    assert len(set(alone_on)) == 3
    assert not picture_rig.rig.rows(schema.picture_failures)
    assert not picture_rig.rig.rows(schema.strikes)


def test_a_machine_that_failed_a_picture_is_not_asked_for_it_again_for_a_while(picture_rig: PictureRig) -> None:
    picture_rig.order(1)
    crash(picture_rig, picture_rig.lease(1).attempt_id)
    assert picture_rig.claim(1).picture_lease is None
    picture_rig.rig.clock.advance_s(601)
    assert picture_rig.claim(1).picture_lease is not None


def test_a_picture_that_needs_more_memory_goes_to_a_larger_node(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(1)
    with picture_rig.ctx.store.begin() as tx:
        tx.connection.execute(sa.update(schema.pictures).values(min_vram_bytes=160))
    small = picture_rig.rig.node(1).model_copy(update={"vram_bytes": 159})
    large = picture_rig.rig.node(2).model_copy(update={"vram_bytes": 160})
    assert picture_rig.claim(node=1, most=1).picture_lease is not None, "nobody knows how large it is"
    picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.lease_s + 1)
    lapse_leases(picture_rig.ctx)
    assert picture_rig.states(order_id) == ["queued"]
    assert picture_rig.claim_as(small).picture_lease is None
    lease = picture_rig.claim_as(large).picture_lease
    assert lease is not None
    picture_rig.report(lease, failed=[(lease.pictures[0], Reason.NODE_TOO_SMALL)])
    (row,) = picture_rig.rig.rows(schema.pictures)
    assert row["min_vram_bytes"] == 170


def test_leases_that_fall_silent_again_and_again_fail_their_picture(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(1)
    for _ in range(picture_rig.ctx.policy.max_fruitless):
        picture_rig.lease(1)
        picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.lease_s + 1)
        lapse_leases(picture_rig.ctx)
    settle_orders(picture_rig.ctx)
    assert picture_rig.rig.job(order_id)["state"] == "failed"


def test_a_report_tells_which_pictures_the_lease_still_has_to_draw(picture_rig: PictureRig) -> None:
    gone, stays = picture_rig.order(2), picture_rig.order(3)
    lease = picture_rig.lease(1)
    first = next(number for number, each in enumerate(lease.pictures) if each.order_id == stays)
    cancel(picture_rig.ctx, OWNER, gone)
    reply = picture_rig.draw(lease, first)
    assert reply.left is not None
    assert {(each.order_id, each.number) for each in reply.left} == {(stays, 1), (stays, 2)}
    assert reply.dropped == ()


def test_a_canceled_order_ends_its_pictures_and_the_rest_of_the_lease_goes_on(picture_rig: PictureRig) -> None:
    gone, stays = picture_rig.order(2), picture_rig.order(2)
    lease = picture_rig.lease(1)
    cancel(picture_rig.ctx, OWNER, gone)
    assert picture_rig.states(gone) == ["canceled"] * 2
    reply = picture_rig.draw(lease)
    assert {each.order_id for each in reply.dropped} == {gone}
    assert {each.order_id for each in reply.accepted} == {stays}
    complete(picture_rig.ctx, lease.attempt_id, DONE)
    assert picture_rig.states(gone) == ["canceled"] * 2
    assert picture_rig.rig.job(stays)["state"] == "succeeded"


def test_an_order_that_was_given_up_takes_no_turns(picture_rig: PictureRig) -> None:
    gone = picture_rig.order(100)
    cancel(picture_rig.ctx, OWNER, gone)
    picture_rig.order(1)
    (row,) = picture_rig.rig.rows(schema.pictures, state="queued")
    assert row["turn"] == 0


def test_results_of_a_second_lease_stand_while_the_first_is_lost(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(1)
    first = picture_rig.lease(1)
    early = picture_rig.upload(first, first.pictures[0])
    picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.lease_s + 1)
    lapse_leases(picture_rig.ctx)
    second = picture_rig.lease(2)
    with pytest.raises(LeaseLost):
        picture_rig.report(first, [early])
    picture_rig.draw(second)
    (row,) = picture_rig.rig.rows(schema.pictures, order_id=order_id)
    assert (row["state"], row["lease"]) == ("succeeded", second.attempt_id)


def test_the_collector_keeps_results_and_takes_what_no_row_names(picture_rig: PictureRig) -> None:
    picture_rig.order(2)
    lease = picture_rig.lease(1)
    kept = picture_rig.upload(lease, lease.pictures[0])
    lost = picture_rig.upload(lease, lease.pictures[1])
    picture_rig.report(lease, [kept])
    complete(picture_rig.ctx, lease.attempt_id, DONE)
    # Storage tells the time of its files by the machine's clock.
    picture_rig.rig.clock.advance_s(20 * 365 * 86_400)
    assert collect(picture_rig.ctx).stray_objects == 1
    assert (
        picture_rig.ctx.blobs.size(picture_key(ROOT_PROJECT, lease.attempt_id, kept.sha256 or "")) == kept.size_bytes
    )
    with pytest.raises(BlobMissing):
        picture_rig.ctx.blobs.size(picture_key(ROOT_PROJECT, lease.attempt_id, lost.sha256 or ""))


def test_an_order_whose_budget_is_used_up_waits_and_goes_on_when_it_is_raised(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(4, budget_micro_usd=500)
    lease = picture_rig.lease(1, most=2)
    picture_rig.rig.clock.advance_s(30)
    heartbeat(picture_rig.ctx, lease.attempt_id, Heartbeat())
    picture_rig.draw(lease, 0)
    assert picture_rig.rig.job(order_id)["state"] == "paused"
    assert picture_rig.states(order_id) == ["succeeded", "leased", "paused", "paused"]
    assert picture_rig.claim(2).picture_lease is None
    release(picture_rig.ctx, lease.attempt_id, ReleaseAttempt())
    assert picture_rig.states(order_id) == ["succeeded", "paused", "paused", "paused"]
    change_job(picture_rig.ctx, OWNER, order_id, ChangeJob(budget_micro_usd=None))
    assert picture_rig.states(order_id) == ["succeeded", "queued", "queued", "queued"]
    assert len(picture_rig.lease(2).pictures) == 3


def test_leases_beside_one_another_pay_the_price_of_their_node_once(picture_rig: PictureRig) -> None:
    one = picture_rig.order(2, budget_micro_usd=10**9)
    two = picture_rig.order(spec=generate_spec(2, side_px=768), budget_micro_usd=10**9)
    first, second = picture_rig.lease(1, most=2), picture_rig.lease(1, most=2)
    assert {each.order_id for each in second.pictures} == {two}
    picture_rig.rig.clock.advance_s(10)
    for lease in (first, second):
        complete(picture_rig.ctx, lease.attempt_id, DONE)
    with picture_rig.ctx.store.read() as tx:
        assert tx.spending.of_jobs([one, two]) == {one: 500, two: 500}


def test_orders_are_demand_for_nodes_that_draw_until_they_end(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(600, min_vram_bytes=7)

    def demand() -> list[tuple[str, int, int]]:
        with picture_rig.ctx.store.read() as tx:
            return [(each.kind, each.min_vram_bytes, each.count) for each in tx.picture_orders.demand()]

    assert demand() == [("generate", 7, 2)]
    cancel(picture_rig.ctx, OWNER, order_id)
    assert demand() == []


def test_pictures_of_a_lease_that_no_node_can_draw_come_in_halves_and_fail_alone(picture_rig: PictureRig) -> None:
    order_id = picture_rig.order(2)
    bad = FailAttempt(reason=Reason.BAD_SPEC, message="there is no such base")
    sizes = []
    for node in range(3):
        lease = picture_rig.lease(node)
        sizes.append(len(lease.pictures))
        fail(picture_rig.ctx, lease.attempt_id, bad)
    assert sizes == [2, 1, 1]
    assert picture_rig.states(order_id) == ["failed", "failed"]
    assert {row["error"] for row in picture_rig.rig.rows(schema.pictures)} == {"there is no such base (bad_spec)"}


def test_an_ended_order_tells_the_seconds_of_a_node_for_each_picture(picture_rig: PictureRig) -> None:
    """One node draws 4 pictures in 8 s alone. Another has two leases beside each other for 12 s, and 3 s of one."""
    rig, mine, other = picture_rig, picture_rig.order(8), picture_rig.order(4)
    alone, first = rig.lease(1, most=4), rig.lease(2, most=4)
    second = rig.lease(2, most=4)
    assert [each.pictures[0].order_id for each in (alone, first, second)] == [mine, mine, other]
    for seconds, lease in ((8, alone), (4, first), (3, second)):
        rig.rig.clock.advance_s(seconds)
        with_all = [rig.upload(lease, each) for each in lease.pictures]
        assert rig.report(lease, with_all, complete=True).ended
        paces = {each: _paces(rig, each) for each in (mine, other)}
        assert paces[other] == [] or lease is second
    assert paces == {mine: [(1.5, 4), (2.0, 4)], other: [(2.25, 4)]}


def _paces(rig: PictureRig, order_id: str) -> list[tuple[float, int]]:
    settle_order(rig.ctx, order_id)
    return [(each.node_s, each.pictures) for each in get_job(rig.ctx, OWNER, order_id).picture_paces]
