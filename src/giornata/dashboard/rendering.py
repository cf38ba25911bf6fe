"""Turn values into HTML by the templates. Every value is escaped; no template marks a value as safe.

Every page has the entries of the navigation that the person may follow.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from shutil import copytree
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from giornata import __version__
from giornata.dashboard import words
from giornata.dashboard.visit import ROOT, Visit
from giornata.protocol.project.admin import USER_VERBS, Scope

HERE = Path(__file__).parent
TEMPLATES, STATIC = HERE / "templates", HERE / "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An entry: its words, its path below the project, and the scopes of which a person needs one."""

    label: str
    path: str
    scopes: frozenset[Scope] = frozenset({Scope.JOBS_READ})


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationLink:
    """A link of the navigation, as one page shows it."""

    label: str
    url: str
    current: bool


PLACES = (
    Place(label="Home", path=""),
    Place(label="Jobs", path="/jobs"),
    Place(label="New training", path="/train", scopes=frozenset({Scope.JOBS_WRITE})),
    Place(label="Generate", path="/generate", scopes=frozenset({Scope.GENERATE})),
    Place(label="Compare", path="/compare"),
    Place(label="Fleet", path="/fleet", scopes=USER_VERBS),
    Place(label="Project", path="/settings"),
)


def entries(visit: Visit) -> list[NavigationLink]:
    """Return the links that this person may follow in this project."""
    if not visit.project_id:
        return []
    here = visit.request.url.path
    return [
        NavigationLink(
            label=place.label, url=visit.url(place.path), current=_holds(visit.url(place.path), here, place)
        )
        for place in PLACES
        if visit.may(*place.scopes)
    ]


def _holds(url: str, here: str, place: Place) -> bool:
    return here == url or (bool(place.path) and here.startswith(f"{url}/"))


def render(visit: Visit, template: str, *, status: int = HTTPStatus.OK, **values: Any) -> HTMLResponse:
    """Return a page for a person who signed in."""
    shared = {
        "visit": visit,
        "csrf": visit.csrf,
        "navigation": entries(visit),
        "said": words.SAID.get(visit.query("said") or ""),
    }
    return HTMLResponse(_text(template, shared | values), status)


def render_bare(template: str, *, status: int = HTTPStatus.OK, **values: Any) -> HTMLResponse:
    """Return a page for whoever asks, without a person: sign-in, and refusals."""
    return HTMLResponse(_text(template, values), status)


def write_page(folder: Path, template: str, **values: Any) -> Path:
    """Write a page that needs no server into a folder, with the static files that it loads; return its file."""
    copytree(STATIC, folder / "static", dirs_exist_ok=True)
    page = folder / "index.html"
    page.write_text(_text(template, {"static": lambda name: f"static/{name}"} | values), "utf-8")
    return page


def static_url(name: str) -> str:
    """Return the address of a static file. It changes with the file, so that browsers keep it for ever."""
    return f"{ROOT}/static/{name}?v={_mark(name)}"


@cache
def _mark(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


class _TextByField(dict[str, str]):
    """The faults of a form, or what was typed into it. A field without any has an empty text."""

    def __missing__(self, name: str) -> str:
        return ""


def _text(template: str, values: Mapping[str, Any]) -> str:
    by_field = {
        name: _TextByField(values[name]) for name in ("faults", "typed") if isinstance(values.get(name), Mapping)
    }
    return _environment().get_template(template).render({**values, **by_field})


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"static": static_url, "root": ROOT, "version": __version__, "Scope": Scope}
    made.globals["now"] = partial(datetime.now, UTC)
    made.filters |= words.FILTERS
    return made
