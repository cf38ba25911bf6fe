"""Annotations that a project keeps, and that further leases bring."""

import hashlib
from typing import Any

import pytest
from tests.fixtures.contexts import ManualClock
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import ANN, ROOT, have

from giornata.control.caller import Caller
from giornata.control.pictures.lease import NOTED_EVERY_MS
from giornata.control.storage.uploads import commit_cache
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY, annotation_key
from giornata.protocol.node.pictures import PictureLease
from giornata.protocol.node.work import CommitCache
from giornata.store import schema

PHOTO, EDGES = b"a photo", b"the edges of a photo"
KEY = annotation_key(hashlib.sha256(PHOTO).hexdigest(), "canny", {})


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


def order_edges(picture_rig: PictureRig, caller: Caller = ROOT) -> None:
    spec = {"annotator": "canny", "annotator_params": {}, "images": [have(picture_rig.ctx, caller, PHOTO)]}
    picture_rig.order(spec=spec, kind="preprocess", project_id=caller.project_id)


def order_by_edges(picture_rig: PictureRig, **control: Any) -> None:
    use = {"name": "net", "image": have(picture_rig.ctx, ROOT, PHOTO), "annotator": "canny", **control}
    picture_rig.order(spec=generate_spec() | {"controlnets": [use]})
    picture_rig.rig.clock.advance_s(picture_rig.ctx.policy.routing_age_s)  # so long the queue is remembered


def keep(picture_rig: PictureRig, lease: PictureLease) -> None:
    """Put the edges into the cache, as the lease's node does."""
    commit = CommitCache(sha256=have(picture_rig.ctx, ROOT, EDGES), size_bytes=len(EDGES))
    commit_cache(picture_rig.ctx, lease.attempt_id, ANNOTATION_ENTRY + KEY, commit)


def brought(lease: PictureLease) -> dict[str, str]:
    """The annotations of the lease by key, with the sha256 of each."""
    return {each.name: each.download.sha256 for each in lease.files if each.role == "annotation"}


def test_second_order_on_a_picture_brings_the_annotation_that_the_first_has_kept(picture_rig: PictureRig) -> None:
    order_edges(picture_rig)
    first = picture_rig.lease()
    assert (brought(first), first.wanted_annotations) == ({}, (KEY,))
    keep(picture_rig, first)

    order_by_edges(picture_rig)
    second = picture_rig.lease()

    assert brought(second) == {KEY: hashlib.sha256(EDGES).hexdigest()}
    assert second.wanted_annotations == ()


def test_annotation_with_other_parameters_is_another_one(picture_rig: PictureRig) -> None:
    order_edges(picture_rig)
    keep(picture_rig, picture_rig.lease())
    order_by_edges(picture_rig, annotator_params={"low_threshold": 20})
    order_by_edges(picture_rig, annotator=None)
    lease = picture_rig.lease()
    assert brought(lease) == {}
    assert len(lease.wanted_annotations) == 1 and KEY not in lease.wanted_annotations


def test_annotation_of_one_project_is_not_brought_to_another(picture_rig: PictureRig) -> None:
    picture_rig.rig.add_project(ANN.project_id)
    order_edges(picture_rig)
    keep(picture_rig, picture_rig.lease())
    order_edges(picture_rig, ANN)
    assert (brought(anns := picture_rig.lease()), anns.wanted_annotations) == ({}, (KEY,))
    order_edges(picture_rig)
    order_edges(picture_rig, ANN)
    both = picture_rig.lease()
    assert len(both.pictures) == 2
    assert (brought(both), both.wanted_annotations) == ({}, ())


def test_use_of_an_annotation_is_noted_once_an_hour(picture_rig: PictureRig, clock: ManualClock) -> None:
    order_edges(picture_rig)
    keep(picture_rig, picture_rig.lease())
    noted = []
    for passed_ms in (1000, NOTED_EVERY_MS):
        clock.advance_s(passed_ms / 1000)
        order_edges(picture_rig)
        picture_rig.lease()
        [entry] = picture_rig.rig.rows(schema.caches)
        noted.append(entry["used_at_ms"] - entry["created_at_ms"])
    assert noted == [0, 1000 + NOTED_EVERY_MS]


def test_annotation_whose_bytes_are_lost_is_wanted_again(picture_rig: PictureRig) -> None:
    order_edges(picture_rig)
    keep(picture_rig, picture_rig.lease())
    with picture_rig.ctx.store.begin() as tx:
        edges = tx.uploads.blobs(ROOT.project_id, [hashlib.sha256(EDGES).hexdigest()]).popitem()[1]
        tx.uploads.note_look(ROOT.project_id, edges.sha256, key=edges.key, at_ms=0, lost=True)
    order_edges(picture_rig)
    lease = picture_rig.lease()
    assert (brought(lease), lease.wanted_annotations) == ({}, (KEY,))
