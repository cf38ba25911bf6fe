"""Queries that find pictures by words, models, dates, stars and tags."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries.picture_store import PictureKey, PictureRow
from giornata.control.ports.user_queries import gallery_store
from giornata.control.ports.user_queries.gallery_store import GalleryPlace, GallerySpan, GalleryWanted, SearchTerms
from giornata.control.ports.user_queries.records import JobInShort
from giornata.domain.generation.picture import PictureState
from giornata.protocol.generation.drawn_grid import RETRIED_CELLS
from giornata.store.database.rows import ROWS, Queries, insert_rows, row_list, types_of
from giornata.store.end_of_life.rows_of_jobs import picture_objects
from giornata.store.pictures.picture_orders import COLUMNS, picture_of
from giornata.store.schema import jobs, order_terms, picture_orders, picture_tags, pictures

KEY = ("order_id", "number")
SPAN = {"order_id": sa.String(), "from_number": sa.Integer(), "to_number": sa.Integer()}


class PictureGallery(Queries, gallery_store.PictureGallery):
    def add_terms(self, orders: Sequence[SearchTerms]) -> None:
        rows = [
            {
                "order_id": each.order_id,
                "term": term,
                "project_id": each.project_id,
                "ordered_at_ms": each.ordered_at_ms,
            }
            for each in orders
            for term in each.terms
        ]
        if rows:
            insert_rows(self._connection, self._dialect_name, order_terms, rows)

    def orders(self, wanted: GalleryWanted, *, limit: int) -> list[GallerySpan]:
        first, *others = wanted.terms
        of = order_terms.c
        query = sa.select(of.order_id, of.ordered_at_ms).where(of.term == first, *_within(order_terms, wanted))
        if wanted.behind is not None:
            query = query.where(sa.tuple_(of.ordered_at_ms, of.order_id) <= wanted.behind[:2])
        found = query.order_by(of.ordered_at_ms.desc(), of.order_id.desc()).limit(limit).subquery("found")
        joined = found.outerjoin(picture_orders, picture_orders.c.order_id == found.c.order_id)
        last = sa.func.coalesce(picture_orders.c.pictures, 0) - 1
        rows = self._spans(found, joined, others, (), last)
        return [_span(row, first=_next_number(wanted.behind, row.id), last=row.last) for row in rows]

    def tagged(self, wanted: GalleryWanted, *, limit: int) -> list[GallerySpan]:
        first, *others = wanted.tags
        of = picture_tags.c
        query = sa.select(of.order_id, of.ordered_at_ms, of.number)
        query = query.where(of.tag == first, *_within(picture_tags, wanted))
        if wanted.behind is not None:
            at_ms, order_id, number = wanted.behind
            place = sa.tuple_(of.ordered_at_ms, of.order_id)
            query = query.where(place <= (at_ms, order_id), sa.or_(place < (at_ms, order_id), of.number > number))
        place_columns = (of.ordered_at_ms.desc(), of.order_id.desc(), of.number)
        found = query.order_by(*place_columns).limit(limit).subquery("found")
        rows = self._spans(found, found, wanted.terms, others, found.c.number)
        return [_span(row, first=row.last, last=row.last) for row in rows]

    def _spans(
        self, found: Any, joined: Any, terms: Sequence[str], tags: Sequence[str], last: sa.ColumnElement[int]
    ) -> Sequence[Any]:
        """Read the jobs of what was found, and whether each has these terms and tags."""
        fits: list[sa.ColumnElement[bool]] = [jobs.c.deleted_at_ms.is_(None)]
        for term in terms:
            fits.append(sa.exists().where(order_terms.c.order_id == found.c.order_id, order_terms.c.term == term))
        for tag in tags:
            same = [picture_tags.c[name] == found.c[name] for name in KEY]
            fits.append(sa.exists().where(*same, picture_tags.c.tag == tag))
        query = (
            sa.select(
                jobs.c.id,
                jobs.c.name,
                jobs.c.state,
                jobs.c.spec["image_format"].as_string().label("image_format"),
                jobs.c.labels[RETRIED_CELLS].as_string().label("retried_cells"),
                found.c.ordered_at_ms,
                last.label("last"),
                sa.and_(*fits).label("fits"),
            )
            .select_from(joined.join(jobs, jobs.c.id == found.c.order_id))
            .order_by(found.c.ordered_at_ms.desc(), found.c.order_id.desc(), last)
        )
        return self._connection.execute(query).all()

    def pictures(self, numbers: Sequence[tuple[str, int, int]], *, project_id: str) -> list[PictureRow]:
        if not numbers:
            return []
        given = row_list(self._dialect_name, SPAN)
        query = sa.select(*COLUMNS).where(
            pictures.c.order_id == given.c.order_id,
            pictures.c.number.between(given.c.from_number, given.c.to_number),
            pictures.c.project_id == project_id,
        )
        query = query.order_by(pictures.c.order_id, pictures.c.number)
        rows = [dict(zip(SPAN, each, strict=True)) for each in numbers]
        return [picture_of(row) for row in self._connection.execute(query, {ROWS: rows})]

    def tags(self, keys: Sequence[PictureKey]) -> dict[PictureKey, list[str]]:
        found: dict[PictureKey, list[str]] = {}
        if not keys:
            return found
        given = self._given()
        query = sa.select(*(picture_tags.c[name] for name in (*KEY, "tag"))).where(_same(picture_tags, given))
        for row in self._connection.execute(query.order_by(picture_tags.c.tag), {ROWS: _rows(keys)}):
            found.setdefault(PictureKey(row.order_id, row.number), []).append(row.tag)
        return found

    def add_tags(
        self, keys: Sequence[PictureKey], tags: Sequence[str], *, project_id: str, created_by: str | None
    ) -> int:
        given = self._given()
        mine = (_same(pictures, given), pictures.c.project_id == project_id)
        query = sa.select(pictures.c.order_id, pictures.c.number, jobs.c.created_at_ms)
        query = query.join(jobs, jobs.c.id == pictures.c.order_id).where(*mine, jobs.c.deleted_at_ms.is_(None))
        own = self._connection.execute(query, {ROWS: _rows(keys)}).all()
        there = {key: set(found) for key, found in self.tags(keys).items()}
        new = [
            {
                "order_id": row.order_id,
                "number": row.number,
                "tag": tag,
                "project_id": project_id,
                "ordered_at_ms": row.created_at_ms,
                "created_by": created_by,
            }
            for row in own
            for tag in tags
            if tag not in there.get(PictureKey(row.order_id, row.number), ())
        ]
        if new:
            insert_rows(self._connection, self._dialect_name, picture_tags, new, _unless_there)
        return len(new)

    def remove_tags(self, keys: Sequence[PictureKey], tags: Sequence[str], *, project_id: str) -> int:
        mine = (picture_tags.c.project_id == project_id, picture_tags.c.tag.in_(tags))
        query = sa.delete(picture_tags).where(*mine, _among(picture_tags, keys))
        return self._connection.execute(query).rowcount

    def take_bytes(self, keys: Sequence[PictureKey], *, project_id: str) -> dict[str, int]:
        mine = (pictures.c.project_id == project_id, _among(pictures, keys))
        drawn = (pictures.c.state == PictureState.SUCCEEDED, pictures.c.sha256.is_not(None))
        named = (pictures.c.project_id, pictures.c.lease, pictures.c.sha256, pictures.c.size_bytes)
        locked = sa.select(*named).where(*mine, *drawn).order_by(pictures.c.order_id, pictures.c.number)
        rows = self._connection.execute(locked.with_for_update()).all()
        self._connection.execute(sa.update(pictures).where(*mine, *drawn).values(sha256=None, size_bytes=None))
        tagged = (picture_tags.c.project_id == project_id, _among(picture_tags, keys))
        self._connection.execute(sa.delete(picture_tags).where(*tagged))
        return picture_objects(rows)

    def _given(self) -> Any:
        return row_list(self._dialect_name, types_of(pictures, *KEY))


def _within(table: sa.Table, wanted: GalleryWanted) -> list[sa.ColumnElement[bool]]:
    found = [table.c.project_id == wanted.project_id, table.c.ordered_at_ms >= wanted.since_ms]
    return found if wanted.until_ms is None else [*found, table.c.ordered_at_ms < wanted.until_ms]


def _same(table: sa.Table, given: Any) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == given.c[name] for name in KEY))


def _among(table: sa.Table, keys: Sequence[PictureKey]) -> sa.ColumnElement[bool]:
    return sa.tuple_(*(table.c[name] for name in KEY)).in_(list(keys))


def _rows(keys: Sequence[PictureKey]) -> list[dict[str, Any]]:
    return [each._asdict() for each in keys]


def _unless_there(statement: Any) -> Any:
    return statement.on_conflict_do_nothing()


def _next_number(behind: GalleryPlace | None, order_id: str) -> int:
    return behind.number + 1 if behind is not None and behind.order_id == order_id else 0


def _span(row: Any, *, first: int, last: int) -> GallerySpan:
    order = JobInShort(**{name: getattr(row, name) for name in JobInShort.__slots__})
    return GallerySpan(order=order, ordered_at_ms=row.ordered_at_ms, first=first, last=last, fits=bool(row.fits))
