"""Orders of pictures as their owners read them, on both databases."""

import pytest
from tests.fixtures.pictures import Studio, generate_spec
from tests.fixtures.work import Workshop

from giornata.control.caller import Caller
from giornata.control.jobs.order_pictures import read_ended, read_generation, read_picture, read_pictures, read_state
from giornata.control.jobs.read_jobs import get_job
from giornata.domain.errors import NotFound
from giornata.protocol.admin import ROOT_PROJECT, Scope

OWNER = Caller(project_id=ROOT_PROJECT, scope=Scope.MEMBER, key_id="key_owner")
STRANGER = Caller(project_id="stranger", scope=Scope.ADMIN, key_id="key_stranger")


@pytest.fixture
def studio(shop: Workshop) -> Studio:
    return Studio(shop)


def test_pictures_are_read_in_pages_by_number_and_counted_by_state(studio: Studio) -> None:
    order = studio.order(spec={**generate_spec(5), "image_format": "jpeg"}, name="squares")
    studio.draw(studio.lease(most=2))
    first = read_pictures(studio.ctx, OWNER, order, after=-1, limit=3)
    rest = read_pictures(studio.ctx, OWNER, order, after=first.next or 0, limit=3)
    assert [each.number for each in (*first.items, *rest.items)] == [0, 1, 2, 3, 4] and rest.next is None
    done = first.items[0]
    assert (done.state, done.media_type, done.seed) == ("succeeded", "image/jpeg", 7)
    assert done.filename == f"squares-{order[-6:]}-0000.jpg" and done.request is not None
    assert rest.items[-1].request is None
    job = get_job(studio.ctx, OWNER, order)
    assert job.pictures is not None and (job.pictures.succeeded, job.pictures.queued, job.step) == (2, 3, 2)


def test_ended_pictures_come_once_in_the_order_of_their_ends(studio: Studio) -> None:
    order, other = studio.order(6), studio.order(2)
    seen, after = list[int](), 0
    for _ in range(4):
        studio.draw(studio.lease(most=2))
        page = read_ended(studio.ctx, OWNER, order, after=after, limit=100)
        seen += [each.number for each in page.items]
        after = page.items[-1].id if page.items else after
    assert sorted(seen) == list(range(6))
    halves = read_ended(studio.ctx, OWNER, order, after=0, limit=3)
    later = read_ended(studio.ctx, OWNER, order, after=halves.next or 0, limit=3)
    assert [each.number for each in (*halves.items, *later.items)] == seen
    assert read_ended(studio.ctx, OWNER, order, after=after, limit=3).items == ()
    assert len(read_ended(studio.ctx, OWNER, other, after=0, limit=9).items) == 2


def test_order_is_read_whole_with_its_first_pictures(studio: Studio) -> None:
    order = studio.order(2)
    found = read_generation(studio.ctx, OWNER, order)
    assert (found.job.id, len(found.pictures), found.next) == (order, 2, None)
    assert read_state(studio.ctx, OWNER, order) == "queued"
    assert read_picture(studio.ctx, OWNER, order, 1).number == 1
    with pytest.raises(NotFound):
        read_picture(studio.ctx, OWNER, order, 2)


def test_order_of_another_project_is_not_found(studio: Studio) -> None:
    order = studio.order(2)
    for read in (read_state, read_generation):
        with pytest.raises(NotFound):
            read(studio.ctx, STRANGER, order)
    for page in (read_pictures, read_ended):
        with pytest.raises(NotFound):
            page(studio.ctx, STRANGER, order, after=0, limit=5)
    with pytest.raises(NotFound):
        read_picture(studio.ctx, STRANGER, order, 0)
