"""Every route of the dashboard, asked by a person of another project: what is foreign looks as what is absent."""

import hashlib
import re
from collections.abc import Mapping

import httpx
import pytest
from tests.fixtures.dashboard import CLOSING, OTHER, PROJECT, SCRIPT, Furnished, picture
from tests.fixtures.people import Browser, browser_of

from giornata.dashboard.app import PAGES

PLACE = re.compile(r"{(\w+)}", re.ASCII)
WITHOUT_PROJECT = {
    *("/sign-in", "/enter", "/invitation", "/invitation/provider", "/sign-out", "/", "/open", "/ui", "/ui/metrics"),
    *("/api", "/account", "/account/identities/{identity_id}/unlink", "/account/link"),
}
"""Routes that name no project: pages of the person, of the door, and of the package itself."""
NOT_FOR_THE_OWNER = {
    *("/fleet/loops", "/fleet/machines", "/fleet/named/{name}", "/installation", "/installation/day"),
    "/installation/queue",
    *("/compare/{job_id}", "/jobs/{job_id}/pretraining", "/orders/{job_id}/pictures/{number}"),
}
"""Routes of operators, and of kinds of jobs that the one of `foreign_ids` is not."""
VARYING = {"date", "x-request-id", "server-timing", "content-length"}


def foreign_ids(installation: Furnished, path: str = "") -> dict[str, tuple[str, str]]:
    """Return an id of the studio and one that is nowhere, by the place in the route `path` that takes it."""
    with installation.served.ctx.store.read() as tx:
        (key, *_) = tx.keys.page(project_id=PROJECT, before=None, limit=9)
        (invitation, *_) = tx.invitations.page(project_id=PROJECT, before=None, limit=9)
    return {
        "project_id": (PROJECT, "nobodys"),
        "job_id": (installation.grid_job if "/grids/" in path else installation.done_job, "job_99999999"),
        "name": ("fox-samples.png", "nothing.png"),
        "number": ("0", "7"),
        "webhook_id": (installation.webhook_id, "webhook_99999999"),
        "invitation_id": (invitation.id, "invitation_99999999"),
        "key_id": (key.id, "key_99999999"),
        "user_id": (installation.owner.id, "user_99999999"),
        "machine_id": ("machine-1", "machine-99"),
        "node_id": ("node_00000001", "node_99999999"),
        "upload_id": ("upload_1", "upload_2"),
        "sha256": (hashlib.sha256(picture(140)).hexdigest(), "b" * 64),
    }


ROUTES = sorted(
    (method, str(route.path))  # type: ignore[attr-defined]
    for route in PAGES
    for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
)
OF_PROJECTS = [(method, path) for method, path in ROUTES if "{project_id}" in path]


@pytest.fixture(scope="module")
def stranger(installation: Furnished) -> Browser:
    return browser_of(installation.served, installation.stranger)


def filled(path: str, ids: Mapping[str, tuple[str, str]], which: int) -> str:
    """Return the path with the foreign ids (0) or with the absent ones (1)."""
    return PLACE.sub(lambda place: ids[place[1]][which], path)


def asked(stranger: Browser, method: str, path: str) -> httpx.Response:
    more = {} if method == "GET" else {"data": {"csrf_token": stranger.csrf_token}}
    return stranger.call(method, f"/dashboard{path}", **more)


def seen(response: httpx.Response, ids: tuple[str, ...]) -> tuple[int, str, list[tuple[str, str]]]:
    """Return what a person sees of a response, without the ids that the person typed."""
    text = response.text
    headers = sorted((name, value) for name, value in response.headers.items() if name not in VARYING)
    for each in ids:
        text = text.replace(each, "…")
        headers = [(name, value.replace(each, "…")) for name, value in headers]
    return response.status_code, text, headers


def test_each_route_names_a_project_or_is_known_not_to(installation: Furnished) -> None:
    assert {path for _, path in ROUTES if "{project_id}" not in path} == WITHOUT_PROJECT
    known = foreign_ids(installation)
    assert {place for _, path in OF_PROJECTS for place in PLACE.findall(path)} == set(known)


@pytest.mark.parametrize(("method", "path"), OF_PROJECTS)
def test_route_of_a_foreign_project_answers_as_that_of_an_absent_one(
    installation: Furnished, stranger: Browser, method: str, path: str
) -> None:
    ids = foreign_ids(installation, path)
    answers = [seen(asked(stranger, method, filled(path, ids, which)), (PROJECT, "nobodys")) for which in (0, 1)]
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, path in OF_PROJECTS if len(PLACE.findall(path)) > 1]
)
def test_foreign_id_in_the_own_project_answers_as_an_absent_one(
    installation: Furnished, stranger: Browser, method: str, path: str
) -> None:
    ids = foreign_ids(installation, path) | {"project_id": (OTHER, OTHER)}
    places = PLACE.findall(path)
    typed = tuple(each for place in places if place != "project_id" for each in ids[place] if len(each) > 1)
    answers = [seen(asked(stranger, method, filled(path, ids, which)), typed) for which in (0, 1)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("path", [path for method, path in OF_PROJECTS if method == "GET"])
def test_own_page_holds_no_name_of_the_other_project_and_no_script(
    installation: Furnished, stranger: Browser, path: str
) -> None:
    ids = {name: own for name, (own, _) in foreign_ids(installation).items()}
    ids |= {"project_id": OTHER, "job_id": installation.stranger_job, "user_id": installation.stranger.id}
    response = asked(stranger, "GET", PLACE.sub(lambda place: ids[place[1]], path))
    assert response.status_code in {200, 303, 307, 400, 404}
    shown = (
        installation.done_job,
        installation.running_job,
        "watercolor",
        "portrait of a red fox",
        "ann@example.com",
        "rtx-1",
    )
    assert [each for each in (*shown, PROJECT, "IMG_0042") if each in response.text] == []
    assert SCRIPT not in response.text and CLOSING not in response.text


def test_the_same_routes_show_their_own_project_to_its_owner(installation: Furnished) -> None:
    owner, said = browser_of(installation.served, installation.owner), {}
    for method, path in OF_PROJECTS:
        if method == "GET":
            answer = asked(owner, method, filled(path, foreign_ids(installation, path), 0))
            said[path.removeprefix("/projects/{project_id}")] = answer.status_code
    assert {path for path, status in said.items() if status == 404} == NOT_FOR_THE_OWNER
