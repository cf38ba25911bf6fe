"""Orders of pictures as their owners read them, on both databases."""

import pytest
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.store_rig import StoreRig

from giornata.control.caller import Caller
from giornata.control.jobs.reading.order_pictures import (
    read_ended,
    read_generation,
    read_picture,
    read_pictures,
    read_state,
)
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.domain.errors import NotFound
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")
STRANGER = Caller(project_id="stranger", scopes=Scope.ADMIN.reach, key_id="key_stranger")


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


def test_pictures_are_read_in_pages_by_number_and_counted_by_state(picture_rig: PictureRig) -> None:
    order = picture_rig.order(spec={**generate_spec(5), "image_format": "jpeg"}, name="squares")
    picture_rig.draw(picture_rig.lease(most=2))
    first = read_pictures(picture_rig.ctx, OWNER, order, after=-1, limit=3)
    rest = read_pictures(picture_rig.ctx, OWNER, order, after=first.next or 0, limit=3)
    assert [each.number for each in (*first.items, *rest.items)] == [0, 1, 2, 3, 4] and rest.next is None
    done = first.items[0]
    assert (done.state, done.media_type, done.seed) == ("succeeded", "image/jpeg", 7)
    assert done.filename == f"squares-{order[-6:]}-0000.jpg" and done.request is not None
    assert rest.items[-1].request is None
    job = get_job(picture_rig.ctx, OWNER, order)
    assert job.pictures is not None and (job.pictures.succeeded, job.pictures.queued, job.step) == (2, 3, 2)


def test_ended_pictures_come_once_in_the_order_of_their_ends(picture_rig: PictureRig) -> None:
    order, other = picture_rig.order(6), picture_rig.order(2)
    seen, after = list[int](), 0
    for _ in range(4):
        picture_rig.draw(picture_rig.lease(most=2))
        page = read_ended(picture_rig.ctx, OWNER, order, after=after, limit=100)
        seen += [each.number for each in page.items]
        after = page.items[-1].id if page.items else after
    assert sorted(seen) == list(range(6))
    halves = read_ended(picture_rig.ctx, OWNER, order, after=0, limit=3)
    later = read_ended(picture_rig.ctx, OWNER, order, after=halves.next or 0, limit=3)
    assert [each.number for each in (*halves.items, *later.items)] == seen
    assert read_ended(picture_rig.ctx, OWNER, order, after=after, limit=3).items == ()
    assert len(read_ended(picture_rig.ctx, OWNER, other, after=0, limit=9).items) == 2


def test_order_is_read_whole_with_its_first_pictures(picture_rig: PictureRig) -> None:
    order = picture_rig.order(2)
    found = read_generation(picture_rig.ctx, OWNER, order)
    assert (found.job.id, len(found.pictures), found.next) == (order, 2, None)
    assert read_state(picture_rig.ctx, OWNER, order) == "queued"
    assert read_picture(picture_rig.ctx, OWNER, order, 1).number == 1
    with pytest.raises(NotFound):
        read_picture(picture_rig.ctx, OWNER, order, 2)


def test_order_of_another_project_is_not_found(picture_rig: PictureRig) -> None:
    order = picture_rig.order(2)
    for read in (read_state, read_generation):
        with pytest.raises(NotFound):
            read(picture_rig.ctx, STRANGER, order)
    for page in (read_pictures, read_ended):
        with pytest.raises(NotFound):
            page(picture_rig.ctx, STRANGER, order, after=0, limit=5)
    with pytest.raises(NotFound):
        read_picture(picture_rig.ctx, STRANGER, order, 0)
