"""The entries of the navigation, and who sees them."""

from dataclasses import dataclass

from giornata.dashboard.visit import Visit
from giornata.protocol.project.admin import USER_VERBS, Scope


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
