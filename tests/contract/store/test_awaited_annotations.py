"""Pictures that wait for annotations by models, which only nodes of the kind `preprocess` make."""

import hashlib
from typing import Any

import pytest
from tests.fixtures.picture_rig import PictureRig, drawn, generate_spec
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ANN, ROOT, have

from giornata.control.attempts.ending.complete import complete
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.submission.submit import submit
from giornata.control.pictures.await_annotations import keep_annotation
from giornata.domain.errors import InvalidInput
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY, annotation_key
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.pictures import LeasedPicture, PictureLease, PictureResultsReply
from giornata.protocol.node.work import CommitCache, CompleteAttempt
from giornata.store import schema

PHOTO = b"a photo"
DEPTH, POSE = (annotation_key(hashlib.sha256(PHOTO).hexdigest(), name, {}) for name in ("depth", "pose"))
PREPROCESS = ("preprocess",)


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


def order(picture_rig: PictureRig, *annotators: str, pictures: int = 1, caller: Caller = ROOT) -> str:
    """Place an order that follows the photo by each of these annotators."""
    image = have(picture_rig.ctx, caller, PHOTO)
    uses = [{"name": f"net-{name}", "image": image, "annotator": name} for name in annotators]
    spec = generate_spec(pictures) | {"controlnets": uses}
    placed = picture_rig.order(spec=spec, project_id=caller.project_id)
    look_again(picture_rig)
    return placed


def order_annotations(picture_rig: PictureRig, annotator: str) -> str:
    spec = {"annotator": annotator, "annotator_params": {}, "images": [have(picture_rig.ctx, ROOT, PHOTO)]}
    placed = picture_rig.order(spec=spec, kind="preprocess")
    look_again(picture_rig)
    return placed


def look_again(picture_rig: PictureRig) -> None:
    """Wait until the servers look at the queue anew."""
    picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.routing_age_s)


def keep(picture_rig: PictureRig, lease: PictureLease, key: str, caller: Caller = ROOT) -> None:
    """Put an annotation into the project's cache, as the lease's node does."""
    content = key.encode()
    commit = CommitCache(sha256=have(picture_rig.ctx, caller, content), size_bytes=len(content))
    keep_annotation(picture_rig.ctx, lease.attempt_id, ANNOTATION_ENTRY + key, commit)
    look_again(picture_rig)


def annotate(picture_rig: PictureRig, key: str, *, node: int = 2, caller: Caller = ROOT) -> PictureLease:
    """Lease pictures that wait for this annotation, make it, and complete the lease."""
    lease = picture_rig.lease(node, kinds=PREPROCESS)
    assert (lease.only_annotates, lease.wanted_annotations) == (True, (key,))
    keep(picture_rig, lease, key, caller)
    complete(picture_rig.ctx, lease.attempt_id, CompleteAttempt(step=0))
    return lease


def brought(lease: PictureLease) -> set[str]:
    return {each.name for each in lease.files if each.role == "annotation"}


def numbers(pictures: tuple[LeasedPicture, ...]) -> list[tuple[str, int]]:
    return sorted((each.order_id, each.number) for each in pictures)


def lie(picture_rig: PictureRig, lease: PictureLease, *, complete: bool = False) -> PictureResultsReply:
    """Report the first picture of the lease as drawn."""
    said = picture_rig.upload(lease, lease.pictures[0], b"a lie")
    return picture_rig.report(lease, [drawn(lease.pictures[0], said.sha256 or "", 5)], complete=complete)


def test_picture_goes_to_a_node_that_annotates_and_then_to_one_that_draws(picture_rig: PictureRig) -> None:
    placed = order(picture_rig, "depth", pictures=2)

    assert picture_rig.claim().picture_lease is None
    first = picture_rig.lease(2, kinds=PREPROCESS)
    assert [each.params["annotator"] for each in first.pictures] == ["depth"] * 2
    assert picture_rig.claim().picture_lease is None
    keep(picture_rig, first, DEPTH)

    second = picture_rig.lease()
    assert numbers(second.pictures) == [(placed, 0), (placed, 1)]
    assert (second.only_annotates, second.wanted_annotations, brought(second)) == (False, (), {DEPTH})
    picture_rig.draw(second)
    assert picture_rig.states(placed) == ["succeeded"] * 2
    assert picture_rig.claim(2, kinds=PREPROCESS).picture_lease is None


def test_node_without_the_kind_gets_no_annotation_by_a_model_and_one_with_it_alone_no_other(
    picture_rig: PictureRig,
) -> None:
    order_annotations(picture_rig, "canny")
    assert picture_rig.claim(2, kinds=PREPROCESS).picture_lease is None
    assert picture_rig.lease().pictures[0].params["annotator"] == "canny"

    placed = order_annotations(picture_rig, "depth")
    assert picture_rig.claim().picture_lease is None
    lease = picture_rig.lease(2, kinds=PREPROCESS)
    assert not lease.only_annotates
    picture_rig.report(lease, [picture_rig.upload(lease, lease.pictures[0], b"the depth")])
    assert picture_rig.states(placed) == ["succeeded"]


@pytest.mark.parametrize("complete", [False, True])
def test_picture_that_waits_gets_no_result_from_the_lease_that_annotates(
    picture_rig: PictureRig, complete: bool
) -> None:
    placed = order(picture_rig, "depth")
    lease = picture_rig.lease(2, kinds=PREPROCESS)

    reply = lie(picture_rig, lease, complete=complete)

    assert (reply.accepted, reply.ended) == ((), complete)
    assert picture_rig.states(placed) == ["queued" if complete else "leased"]
    look_again(picture_rig)
    if complete:
        annotate(picture_rig, DEPTH, node=3)


def test_annotation_frees_every_picture_of_its_project_that_waited_for_it(picture_rig: PictureRig) -> None:
    picture_rig.rig.add_project(ANN.project_id)
    mine, others = [order(picture_rig, "depth") for _ in range(2)], order(picture_rig, "depth", caller=ANN)

    annotate(picture_rig, DEPTH)

    assert numbers(picture_rig.lease().pictures) == sorted((each, 0) for each in mine)
    assert picture_rig.claim(3).picture_lease is None
    annotate(picture_rig, DEPTH, caller=ANN)
    assert numbers(picture_rig.lease(3).pictures) == [(others, 0)]


def test_picture_waits_for_one_annotation_after_the_other(picture_rig: PictureRig) -> None:
    order(picture_rig, "canny", "depth", "pose")

    annotate(picture_rig, DEPTH)
    assert picture_rig.claim().picture_lease is None
    annotate(picture_rig, POSE)

    assert brought(picture_rig.lease()) == {DEPTH, POSE}


def test_picture_whose_annotation_is_kept_is_drawn_at_once(picture_rig: PictureRig) -> None:
    order(picture_rig, "depth")
    annotate(picture_rig, DEPTH)
    placed = order(picture_rig, "depth")

    assert (placed, 0) in numbers(picture_rig.lease().pictures)


def test_picture_that_waits_for_an_annotation_that_was_kept_meanwhile_is_freed_by_the_next_claim(
    picture_rig: PictureRig,
) -> None:
    order_annotations(picture_rig, "depth")
    first = picture_rig.lease(2, kinds=PREPROCESS)
    placed = order(picture_rig, "depth")
    keep(picture_rig, first, DEPTH)  # of a lease that draws: it looks at no picture that waits

    assert picture_rig.claim(3, kinds=PREPROCESS).picture_lease is None
    look_again(picture_rig)

    assert numbers(picture_rig.lease().pictures) == [(placed, 0)]


def test_picture_whose_annotation_was_collected_waits_again(picture_rig: PictureRig) -> None:
    placed = order(picture_rig, "depth")
    annotate(picture_rig, DEPTH)
    with picture_rig.ctx.store.begin() as tx:
        tx.connection.execute(schema.caches.delete())

    assert picture_rig.claim().picture_lease is None
    look_again(picture_rig)
    annotate(picture_rig, DEPTH)

    assert numbers(picture_rig.lease().pictures) == [(placed, 0)]


def test_annotation_that_no_machine_can_make_fails_its_picture(picture_rig: PictureRig) -> None:
    placed = order(picture_rig, "depth")
    lease = picture_rig.lease(2, kinds=PREPROCESS)

    picture_rig.report(lease, failed=[(lease.pictures[0], Reason.BAD_DATA)])

    assert picture_rig.states(placed) == ["failed"]


def test_fleets_are_asked_for_nodes_that_annotate_as_well_as_for_those_that_draw(picture_rig: PictureRig) -> None:
    order(picture_rig, "depth")
    order_annotations(picture_rig, "pose")
    order_annotations(picture_rig, "canny")

    with picture_rig.ctx.store.read() as tx:
        found = sorted((each.kind, each.count) for each in tx.picture_orders.demand())

    assert found == [("generate", 1), ("preprocess", 1), ("preprocess", 1)]


def depth_request(picture_rig: PictureRig) -> SubmitJob:
    use: dict[str, Any] = {"name": "some/net", "image": have(picture_rig.ctx, ROOT, PHOTO), "annotator": "depth"}
    return SubmitJob(
        kind="generate",
        spec={"model": "some/model", "prompts": ["a"], "width": 64, "height": 64, "controlnets": [use]},
    )


def test_order_that_nobody_can_annotate_is_refused_and_taken_once_a_node_is_there(picture_rig: PictureRig) -> None:
    request = depth_request(picture_rig)
    with pytest.raises(InvalidInput) as refusal:
        submit(picture_rig.ctx, ROOT, request, None)
    (fault,) = refusal.value.faults
    assert fault.where == "spec.controlnets"
    assert "no node for jobs of kind preprocess is connected" in fault.message
    assert "--kind preprocess" in fault.hint

    picture_rig.claim(2, kinds=PREPROCESS)
    job, _ = submit(picture_rig.ctx, ROOT, request, None)
    picture_rig.claim()  # of a node that draws
    picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.node_gone_after_s - 1)
    picture_rig.claim()
    picture_rig.rig.clock.advance_s(2)

    said = get_job(picture_rig.ctx, ROOT, job.id).waiting_because
    assert said == "pictures wait for their annotations (depth): no node for jobs of kind preprocess is connected"
