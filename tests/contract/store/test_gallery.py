"""The gallery on both databases: what is found, what a page costs, and what stars, tags and deletion leave."""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.store_rig import StoreRig

from giornata.control.caller import Caller
from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.end_of_life.delete_pictures import delete_pictures
from giornata.control.end_of_life.pins import set_pin
from giornata.control.jobs.reading.gallery import GallerySearch, find_pictures, mark_pictures
from giornata.control.jobs.reading.picture_archive import archive_pictures
from giornata.control.timestamps import instant
from giornata.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from giornata.protocol.node.pictures import PictureId
from giornata.protocol.orders.gallery import ChosenPictures, FoundPicture, MarkPictures
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")
OTHER = Caller(project_id="other", scopes=Scope.MEMBER.reach, key_id="key_other")
READER = Caller(project_id=ROOT_PROJECT, scopes=frozenset({Scope.JOBS_READ}), key_id="key_reader")


@pytest.fixture
def drawings(rig: StoreRig) -> PictureRig:
    return PictureRig(rig)


def ordered(drawings: PictureRig, *prompts: str, each: int = 1, model: str = "base-a", **more: Any) -> str:
    """An order of these prompts, drawn to its end. A second passes before it."""
    drawings.rig.clock.advance_s(1)
    spec = {**generate_spec(each, model=model), "prompts": list(prompts), **more}
    order_id = drawings.order(spec=spec)
    lease = drawings.lease(most=64)
    drawings.report(lease, [drawings.upload(lease, picture) for picture in lease.pictures], complete=True)
    return order_id


def found(drawings: PictureRig, limit: int = 50, **search: Any) -> list[FoundPicture]:
    """All pages of a search."""
    items, cursor = list[FoundPicture](), None
    for _ in range(50):
        page = find_pictures(drawings.ctx, OWNER, GallerySearch(**search), cursor=cursor, limit=limit)
        items += page.items
        cursor = page.next
        if cursor is None:
            return items
    raise AssertionError("the pages have no end")


def places(some: list[FoundPicture]) -> list[tuple[str, int]]:
    return [(each.order_id, each.number) for each in some]


def chosen(*keys: tuple[str, int]) -> list[PictureId]:
    return [PictureId(order_id=order_id, number=number) for order_id, number in keys]


def test_pictures_are_found_by_words_models_loras_and_dates_newest_order_first(drawings: PictureRig) -> None:
    lora = {"name": "job_fox@70", "weight": 0.5}
    foxes = ordered(drawings, "A red FOX, snow", "a gray wolf", loras=[lora])
    between = instant(drawings.ctx.clock.now_ms() + 500)
    wolves = ordered(drawings, "a wolf in the snow", each=2, model="base-b")
    assert places(found(drawings)) == [(wolves, 0), (wolves, 1), (foxes, 0), (foxes, 1)]
    searches: list[tuple[dict[str, Any], list[tuple[str, int]]]] = [
        ({"match": "fox"}, [(foxes, 0)]),
        ({"match": "Snow wolf"}, [(wolves, 0), (wolves, 1)]),
        ({"match": "wolf"}, [(wolves, 0), (wolves, 1), (foxes, 1)]),
        ({"match": "fo"}, []),
        ({"model": "BASE-B"}, [(wolves, 0), (wolves, 1)]),
        ({"lora": "job_fox"}, [(foxes, 0), (foxes, 1)]),
        ({"lora": "job_fox@70", "match": "wolf"}, [(foxes, 1)]),
        ({"since": between}, [(wolves, 0), (wolves, 1)]),
        ({"until": between, "match": "wolf"}, [(foxes, 1)]),
    ]
    for search, expected in searches:
        assert places(found(drawings, **search)) == expected, search
        assert places(found(drawings, limit=1, **search)) == expected, search
    first = found(drawings, lora="job_fox", match="fox")[0]
    assert (first.ordered_at, first.starred, first.tags) == (
        datetime.fromisoformat(first.ordered_at.isoformat()),
        False,
        (),
    )
    assert find_pictures(drawings.ctx, OTHER, GallerySearch()).items == ()


def test_stars_and_tags_are_given_found_and_taken(drawings: PictureRig) -> None:
    older, newer = ordered(drawings, "a fox", each=3), ordered(drawings, "a wolf", each=2)
    marked = MarkPictures(pictures=chosen((older, 2), (newer, 0)), starred=True, add_tags=("best", "print"))
    assert mark_pictures(drawings.ctx, OWNER, marked).changed == 6
    assert mark_pictures(drawings.ctx, OWNER, marked).changed == 0
    for limit in (1, 50):
        assert places(found(drawings, limit, starred=True)) == [(newer, 0), (older, 2)]
        assert places(found(drawings, limit, starred=True, tags=("print",), match="fox")) == [(older, 2)]
    assert found(drawings, tags=("best",))[0].tags == ("best", "print")
    taken = MarkPictures(pictures=chosen((newer, 0)), starred=False, remove_tags=("print",))
    assert mark_pictures(drawings.ctx, OWNER, taken).changed == 2
    assert places(found(drawings, starred=True)) == [(older, 2)]
    assert [(each.starred, each.tags) for each in found(drawings, tags=("best",))] == [
        (False, ("best",)),
        (True, ("best", "print")),
    ]
    verbs = [row["verb"] for row in drawings.rig.rows(schema.audit_log) if row["verb"] == "picture.mark"]
    assert len(verbs) == 3


def test_strange_orders_are_not_marked_deleted_or_sent(drawings: PictureRig) -> None:
    order_id = ordered(drawings, "a fox")
    one = chosen((order_id, 0))
    for caller, error in ((OTHER, NotFound), (READER, Forbidden)):
        with pytest.raises(error):
            mark_pictures(drawings.ctx, caller, MarkPictures(pictures=one, starred=True))
        with pytest.raises(error):
            delete_pictures(drawings.ctx, caller, ChosenPictures(pictures=one))
    with pytest.raises(NotFound):
        archive_pictures(drawings.ctx, OTHER, one)
    assert drawings.rig.rows(schema.picture_tags) == []
    assert places(found(drawings)) == [(order_id, 0)]


def test_a_deleted_picture_is_gone_from_storage_and_one_with_the_same_bytes_stays(drawings: PictureRig) -> None:
    drawings.rig.clock.advance_s(1)
    order_id = drawings.order(3)
    lease = drawings.lease()
    contents = (b"the same", b"the same", b"another")
    done = [drawings.upload(lease, *each) for each in zip(lease.pictures, contents, strict=True)]
    drawings.report(lease, done, complete=True)
    mark_pictures(drawings.ctx, OWNER, MarkPictures(pictures=chosen((order_id, 0)), starred=True))
    first = delete_pictures(drawings.ctx, OWNER, ChosenPictures(pictures=chosen((order_id, 0))))
    assert (first.objects, first.size_bytes) == (0, 0)
    assert places(found(drawings)) == [(order_id, 1), (order_id, 2)]
    assert drawings.rig.rows(schema.picture_tags) == []
    rest = ChosenPictures(pictures=chosen((order_id, 0), (order_id, 1)))
    assert delete_pictures(drawings.ctx, OWNER, rest).objects == 1
    set_pin(drawings.ctx, OWNER, order_id, pinned=True)
    with pytest.raises(Conflict, match="pinned"):
        delete_pictures(drawings.ctx, OWNER, ChosenPictures(pictures=chosen((order_id, 2))))
    with pytest.raises(NotFound, match=f"{order_id} 1"):
        archive_pictures(drawings.ctx, OWNER, chosen((order_id, 1), (order_id, 2)))
    sent = b"".join(archive_pictures(drawings.ctx, OWNER, chosen((order_id, 2))))
    with zipfile.ZipFile(io.BytesIO(sent)) as archive:
        assert archive.testzip() is None
        assert [archive.read(name) for name in archive.namelist()] == [b"another"]


def test_a_deleted_order_leaves_no_words_and_no_tags(drawings: PictureRig) -> None:
    order_id, other = ordered(drawings, "a fox"), ordered(drawings, "a wolf")
    mark_pictures(drawings.ctx, OWNER, MarkPictures(pictures=chosen((order_id, 0)), starred=True))
    delete_job(drawings.ctx, OWNER, order_id, cancel=True)
    assert places(found(drawings)) == [(other, 0)]
    assert {row["order_id"] for row in drawings.rig.rows(schema.order_terms)} == {other}
    assert drawings.rig.rows(schema.picture_tags) == []


def test_a_page_reads_a_bounded_number_of_rows_however_few_fit(drawings: PictureRig) -> None:
    for number in range(12):
        ordered(drawings, f"a common thing number{number}", each=3)
    page = find_pictures(drawings.ctx, OWNER, GallerySearch(match="common number0"), limit=5)
    assert [each.prompt for each in page.items] == ["a common thing number0"] * 3
    with counting(drawings) as cost:
        page = find_pictures(drawings.ctx, OWNER, GallerySearch(), limit=5)
    assert (len(page.items), len(cost)) == (5, 3)


@contextmanager
def counting(drawings: PictureRig) -> Iterator[list[tuple[str, Any]]]:
    """The statements of SELECT that are asked meanwhile, with their parameters."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, given: Any, *_: object) -> None:
        if statement.lstrip().startswith("SELECT"):
            asked.append((statement, given))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("cursor", ["nothing", "WzEsImEiXQ", "WzEsIng6eSJd"])
def test_a_cursor_that_is_none_of_ours_is_refused(drawings: PictureRig, cursor: str) -> None:
    with pytest.raises(InvalidInput):
        find_pictures(drawings.ctx, OWNER, GallerySearch(), cursor=cursor)


def test_a_search_of_too_many_words_is_refused(drawings: PictureRig) -> None:
    with pytest.raises(InvalidInput, match="at most 10"):
        find_pictures(drawings.ctx, OWNER, GallerySearch(match=" ".join(f"word{n}" for n in range(11))))


@pytest.mark.parametrize(
    ("table", "key", "search"),
    [
        (schema.order_terms, "term", GallerySearch(match="w7 w8")),
        (schema.picture_tags, "tag", GallerySearch(tags=("w7",), match="w8")),
    ],
)
def test_a_search_walks_its_index_and_reads_the_whole_of_no_table(
    drawings: PictureRig, table: sa.Table, key: str, search: GallerySearch
) -> None:
    known = {column.name for column in table.columns}
    every = [
        {"order_id": f"job_x{n}", "number": 0, key: f"w{n % 50}", "project_id": ROOT_PROJECT, "ordered_at_ms": n}
        for n in range(5000)
    ]
    rows = [{name: value for name, value in row.items() if name in known} for row in every]
    with drawings.ctx.store.begin() as tx:
        connection: sa.Connection = tx.connection  # type: ignore[attr-defined]
        connection.execute(sa.insert(table), rows)
    with counting(drawings) as asked:
        find_pictures(drawings.ctx, OWNER, search, limit=20)
    sql, parameters = next(each for each in asked if table.name in each[0])
    with drawings.ctx.store.begin() as tx:
        connection = tx.connection  # type: ignore[attr-defined]
        connection.execute(sa.text("ANALYZE"))
        explain = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
        plan = " ".join(str(row) for row in connection.exec_driver_sql(f"{explain} {sql}", parameters).all())
    assert f"ix_{table.name}_found" in plan
    assert f"SCAN {table.name}" not in plan
    assert f"Seq Scan on {table.name}" not in plan
