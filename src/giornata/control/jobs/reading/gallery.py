"""Find pictures of all orders of a project, and put stars and tags on them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from giornata.control.access.permissions import require_any, require_scope
from giornata.control.access.read_audit_log import instant_ms
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.order_pictures import picture_reply
from giornata.control.pages import check_limit, decode_cursor, encode_cursor
from giornata.control.ports.node_queries.picture_store import PictureKey, PictureRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.gallery_store import GalleryPlace, GallerySpan, GalleryWanted
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Fault, InvalidInput, NotFound
from giornata.domain.generation.search_terms import EVERY_ORDER, LORA, MODEL, STAR, name_term, words_of
from giornata.protocol.node.pictures import PictureId
from giornata.protocol.orders.gallery import FoundPicture, FoundPicturePage, MarkedPictures, MarkPictures
from giornata.protocol.project.admin import Scope

MOST_ORDERS = 100
"""Orders that one page looks at."""
MOST_WORDS = 10
CURSOR_NUMBER = re.compile(r"-1|[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class GallerySearch:
    """The conditions of a search, of which all must hold. `match` is words of the prompt."""

    match: str | None = None
    model: str | None = None
    lora: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    starred: bool = False
    tags: Sequence[str] = ()

    def words(self) -> list[str]:
        """Return the words of the prompt, the longest first: it is likely the rarest, and leads the search."""
        return sorted(dict.fromkeys(words_of(self.match or "")), key=lambda word: (-len(word), word))


def find_pictures(
    ctx: Context, caller: Caller, search: GallerySearch, *, cursor: str | None = None, limit: int = 50
) -> FoundPicturePage:
    """Return a page of pictures that have a file, of the newest orders first. Raises Forbidden, InvalidInput.

    A page looks at no more than `limit` pictures and 100 orders, and may be empty though `next` goes on.
    """
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    check_limit(limit)
    wanted = _wanted(caller, search, behind=_place(cursor))
    with ctx.store.read() as tx:
        spans, following = _tagged(tx, wanted, limit) if wanted.tags else _of_orders(tx, wanted, limit)
        numbers = [(span.order.id, span.first, span.last) for span in spans]
        rows = tx.picture_gallery.pictures(numbers, project_id=caller.project_id)
        kept = [row for row in rows if row.sha256 is not None and _has_words(row, search)]
        tags = tx.picture_gallery.tags([row.key for row in kept])
    by_order = {span.order.id: span for span in spans}
    kept.sort(key=lambda row: (-by_order[row.order_id].ordered_at_ms, _reversed(row.order_id), row.number))
    items = tuple(_found(ctx, by_order[row.order_id], row, tags.get(row.key, ())) for row in kept)
    return FoundPicturePage(items=items, next=None if following is None else _cursor(following))


def mark_pictures(ctx: Context, caller: Caller, request: MarkPictures) -> MarkedPictures:
    """Give pictures stars and tags, or take them. May be repeated. Raises Forbidden, and NotFound when one of the
    orders is not the caller's; then nothing is changed.
    """
    require_scope(caller, Scope.GENERATE)
    keys = keys_of(request.pictures)
    added = [*([STAR] if request.starred else []), *request.add_tags]
    removed = [*([STAR] if request.starred is False else []), *request.remove_tags]
    with ctx.store.begin() as tx:
        orders = own_orders(tx, caller, keys)
        gallery, project_id = tx.picture_gallery, caller.project_id
        changed = gallery.add_tags(keys, added, project_id=project_id, created_by=caller.maker) if added else 0
        changed += gallery.remove_tags(keys, removed, project_id=project_id) if removed else 0
        for order_id in orders if changed else ():
            changes = {"pictures": sum(key.order_id == order_id for key in keys)}
            at_ms = ctx.clock.now_ms()
            record_call(tx, caller, AuditVerb.PICTURE_MARK, order_id, at_ms=at_ms, changes=changes)
    return MarkedPictures(changed=changed)


def keys_of(chosen: Sequence[PictureId]) -> list[PictureKey]:
    """Return the chosen pictures, each once, in the order in which every transaction locks them."""
    return sorted({PictureKey(each.order_id, each.number) for each in chosen})


def own_orders(tx: Transaction, caller: Caller, keys: Sequence[PictureKey]) -> list[str]:
    """Return the orders of the pictures. Raises NotFound, with all that are not the caller's."""
    orders = sorted({key.order_id for key in keys})
    strange = [each for each in orders if not tx.job_reads.exists(each, project_id=caller.project_id)]
    if strange:
        raise NotFound(f"there is no job {', '.join(strange)}")
    return orders


def _wanted(caller: Caller, search: GallerySearch, *, behind: GalleryPlace | None) -> GalleryWanted:
    words = search.words()
    if len(words) > MOST_WORDS:
        raise InvalidInput(
            [Fault(where="match", message=f"has {len(words)} words; at most {MOST_WORDS} are allowed")]
        )
    terms = [name_term(LORA, search.lora)] if search.lora else []
    terms += words
    terms += [name_term(MODEL, search.model)] if search.model else []
    tags = [*sorted(dict.fromkeys(search.tags)), *([STAR] if search.starred else [])]
    return GalleryWanted(
        project_id=caller.project_id,
        terms=terms or ([] if tags else [EVERY_ORDER]),
        tags=tags,
        since_ms=instant_ms(search.since) or 0,
        until_ms=instant_ms(search.until),
        behind=behind,
    )


def _of_orders(tx: Transaction, wanted: GalleryWanted, limit: int) -> tuple[list[GallerySpan], GalleryPlace | None]:
    """Return spans that have at most `limit` pictures together, and the place behind them if there is more."""
    found = tx.picture_gallery.orders(wanted, limit=MOST_ORDERS)
    spans, room, place = [], limit, None
    for each in found:
        last = min(each.last, each.first + room - 1) if each.fits else each.last
        if each.fits and last >= each.first:
            spans.append(_cut(each, last))
            room -= last - each.first + 1
        place = GalleryPlace(each.ordered_at_ms, each.order.id, max(last, each.first - 1))
        if room <= 0:
            return spans, place
    return spans, place if len(found) == MOST_ORDERS else None


def _tagged(tx: Transaction, wanted: GalleryWanted, limit: int) -> tuple[list[GallerySpan], GalleryPlace | None]:
    found = tx.picture_gallery.tagged(wanted, limit=limit)
    ended = found[-1] if len(found) == limit else None
    place = None if ended is None else GalleryPlace(ended.ordered_at_ms, ended.order.id, ended.last)
    return [each for each in found if each.fits], place


def _cut(span: GallerySpan, last: int) -> GallerySpan:
    return GallerySpan(
        order=span.order, ordered_at_ms=span.ordered_at_ms, first=span.first, last=last, fits=span.fits
    )


def _has_words(row: PictureRow, search: GallerySearch) -> bool:
    """Return True when this picture's own prompt has the words: an order may have many prompts."""
    return not search.match or set(search.words()) <= set(words_of(str(row.differs.get("prompt") or "")))


def _found(ctx: Context, span: GallerySpan, row: PictureRow, tags: Sequence[str]) -> FoundPicture:
    return FoundPicture(
        **picture_reply(ctx, span.order, row).model_dump(),
        order_id=row.order_id,
        order_name=span.order.name,
        ordered_at=instant(span.ordered_at_ms),
        starred=STAR in tags,
        tags=tuple(tag for tag in tags if tag != STAR),
    )


def _reversed(text: str) -> tuple[int, ...]:
    """Return a key that sorts texts from the last to the first."""
    return tuple(-ord(character) for character in text)


def _place(cursor: str | None) -> GalleryPlace | None:
    place = decode_cursor(cursor)
    if place is None:
        return None
    order_id, _, number = place[1].rpartition(":")
    if not is_id(order_id) or not CURSOR_NUMBER.fullmatch(number):
        raise InvalidInput(
            [Fault(where="cursor", message="is not a cursor that this server gave", hint="leave it out")]
        )
    return GalleryPlace(place[0], order_id, int(number))


def _cursor(place: GalleryPlace) -> str:
    return encode_cursor(place.ordered_at_ms, f"{place.order_id}:{place.number}")
