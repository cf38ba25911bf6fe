"""The gallery: pictures of all orders, which are found, marked, downloaded and deleted, several at once."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from giornata.control.end_of_life.delete_pictures import delete_pictures
from giornata.control.jobs.reading.gallery import GallerySearch, find_pictures, mark_pictures
from giornata.control.jobs.reading.picture_archive import archive_pictures
from giornata.dashboard.forms import number_in, said_of
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import SubmittedForm, Visit, action, page, see
from giornata.domain.errors import Conflict, Fault, InvalidInput, NotFound, collecting
from giornata.protocol.orders.gallery import MOST_MARKED, ChosenPictures, MarkPictures
from giornata.protocol.project.admin import Scope

SHOWN = 48
FILTERS = ("match", "of_model", "of_lora", "since", "until", "starred", "tag")
"""Parameters of the search. `model` and `lora` are those of the form that orders."""
LONGEST = 256
SEARCH_FORM = "gallery-search"
DAY, NO_TIME = timedelta(days=1), timedelta()


def show(visit: Visit) -> Response:
    """Show a page of pictures, which the page loads by itself. A search with a fault finds nothing.

    After a search, and with a fault, the fields that may have one are sent anew, to their place in the page.
    """
    given = filters_of(visit)
    try:
        found = find_pictures(visit.ctx, visit.caller, _search(given), cursor=visit.query("cursor"), limit=SHOWN)
    except InvalidInput as error:
        faults = {each.where: said_of(each) for each in error.faults}
        return render(visit, "gallery.html", pictures=(), next_url="", given=given, faults=faults, searched=True)
    following = visit.url("/gallery", **_some(given), cursor=found.next) if found.next else ""
    is_first = visit.query("cursor") is None
    template = "gallery.html" if is_first else "gallery_pictures.html"
    searched = visit.request.headers.get("hx-trigger") == SEARCH_FORM
    return render(
        visit, template, pictures=found.items, next_url=following, given=given, faults={}, searched=searched
    )


def download(visit: Visit) -> Response:
    """Send the chosen pictures as one ZIP file."""
    chosen = _chosen(visit.form)
    if chosen is None:
        return _back(visit, "no-picture-chosen")
    parts = archive_pictures(visit.ctx, visit.caller, chosen.pictures)
    name = {"Content-Disposition": 'attachment; filename="pictures.zip"'}
    return StreamingResponse(parts, media_type="application/zip", headers=name)


def star(visit: Visit) -> Response:
    """Give the chosen pictures a star."""
    return _mark(visit, starred=True)


def unstar(visit: Visit) -> Response:
    """Take the star from the chosen pictures."""
    return _mark(visit, starred=False)


def add_tag(visit: Visit) -> Response:
    """Give the chosen pictures the tag that was typed."""
    return _mark(visit, add_tags=_typed_tags(visit.form))


def remove_tag(visit: Visit) -> Response:
    """Take the tag that was typed from the chosen pictures."""
    return _mark(visit, remove_tags=_typed_tags(visit.form))


def delete(visit: Visit) -> Response:
    """Delete the files of the chosen pictures."""
    chosen = _chosen(visit.form)
    if chosen is None:
        return _back(visit, "no-picture-chosen")
    try:
        delete_pictures(visit.ctx, visit.caller, chosen)
    except (Conflict, NotFound):
        return _back(visit, "pictures-refused")
    return _back(visit, "pictures-deleted")


def filters_of(visit: Visit) -> dict[str, str]:
    """Return the parameters of the search that the address has; empty texts for the others."""
    return {name: (visit.query(name) or "")[:LONGEST] for name in FILTERS}


def _search(given: Mapping[str, str]) -> GallerySearch:
    """Return the search of the form. A day ends with its last moment. Raises InvalidInput."""
    faults: list[Fault] = []
    since = until = None
    with collecting(faults):
        since = _day(given, "since")
    with collecting(faults):
        until = _day(given, "until", plus=DAY)
    if faults:
        raise InvalidInput(faults)
    return GallerySearch(
        match=given["match"] or None,
        model=given["of_model"] or None,
        lora=given["of_lora"] or None,
        since=since,
        until=until,
        starred=bool(given["starred"]),
        tags=_tags_of(given["tag"]),
    )


def _day(given: Mapping[str, str], name: str, *, plus: timedelta = NO_TIME) -> datetime | None:
    try:
        return datetime.strptime(given[name], "%Y-%m-%d").replace(tzinfo=UTC) + plus if given[name] else None
    except (ValueError, OverflowError):
        raise InvalidInput(
            [Fault(where=name, message=f"{given[name][:20]!r} is no day", hint="such as 2026-11-23")]
        ) from None


def _tags_of(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip().lower() for each in text.split(","))))


def _typed_tags(form: SubmittedForm) -> tuple[str, ...]:
    return _tags_of(form.get("new_tag"))


def _mark(visit: Visit, **changes: Any) -> Response:
    chosen = _chosen(visit.form)
    if chosen is None:
        return _back(visit, "no-picture-chosen")
    try:
        request = MarkPictures.model_validate({"pictures": chosen.pictures, **changes})
    except ValidationError:
        return _back(visit, "no-tag")
    try:
        mark_pictures(visit.ctx, visit.caller, request)
    except NotFound:
        return _back(visit, "pictures-refused")
    return _back(visit, "pictures-marked")


def _chosen(form: SubmittedForm) -> ChosenPictures | None:
    """Return the pictures whose boxes are checked, each named `ORDER NUMBER`; None without any that is one."""
    parts = [each.partition(" ") for each in form.all("picture")[:MOST_MARKED]]
    named = [(order_id, number_in(number)) for order_id, _, number in parts]
    try:
        chosen = [{"order_id": order_id, "number": number} for order_id, number in named if number is not None]
        return ChosenPictures.model_validate({"pictures": tuple(chosen)})
    except ValidationError:
        return None


def _back(visit: Visit, said: str) -> Response:
    """Lead back to the page Generate, which only those see who may generate. Raises NotFound."""
    if not visit.may(Scope.GENERATE):
        raise NotFound("there is no such page")
    kept = {name: visit.form.get(name) or None for name in FILTERS}
    return see(visit.url("/generate", said=said, **kept) + "#gallery")


def _some(given: Mapping[str, str]) -> dict[str, str | None]:
    return {name: value or None for name, value in given.items()}


_GALLERY = "/projects/{project_id}/gallery"
ROUTES = (
    page(_GALLERY, show),
    action(f"{_GALLERY}/download", download),
    action(f"{_GALLERY}/star", star),
    action(f"{_GALLERY}/unstar", unstar),
    action(f"{_GALLERY}/tag", add_tag),
    action(f"{_GALLERY}/untag", remove_tag),
    action(f"{_GALLERY}/delete", delete),
)
