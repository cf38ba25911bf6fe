"""Two people of two projects side by side: every page and fragment, seen by each, and asked for by the other."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import sqlalchemy as sa
from tests.fixtures.browsing import BrowserWindow
from tests.fixtures.dashboard import OTHER, PROJECT, Furnished, four_pictures, picture
from tests.fixtures.page_states import ANN, exhibited
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import have, train

from giornata.control.access.keep_secrets import set_secret
from giornata.control.access.keys import create_key
from giornata.control.audit_log.chain import chain_rows
from giornata.control.caller import Caller
from giornata.control.jobs.stop_job import cancel
from giornata.control.jobs.submission.submit import submit
from giornata.control.memory.process_cache import ProcessCache
from giornata.control.notifications.manage_webhooks import create_webhook
from giornata.control.pictures.settle_order import settle_orders
from giornata.dashboard.app import PAGES
from giornata.protocol.account.people import User
from giornata.protocol.project.admin import CreateKey, Scope
from giornata.protocol.project.secrets import SetSecret
from giornata.protocol.project.webhook_endpoints import CreateWebhook
from giornata.store import schema

BOB = Caller(project_id=OTHER, scopes=Scope.ADMIN.reach, key_id="key_bob")
PLACE = re.compile(r"{(\w+)}", re.ASCII)
ROUTES = sorted(
    str(route.path)  # type: ignore[attr-defined]
    for route in PAGES
    if "GET" in route.methods and "{project_id}" in route.path  # type: ignore[attr-defined]
)
QUERIES = (
    *("/generate?order={orders}", "/generate?grid={orders}", "/generate?like={orders}&number=0"),
    *("/generate?file={sha256}", "/train?like={jobs}", "/train?like={jobs}&from=70", "/compare?job={jobs}"),
    "/gallery?of_lora={jobs}",
)
"""Addresses of the own project whose query names something."""
UNKNOWN = {
    **{"job_id": "job_999999", "name": "nothing.png", "number": "7", "webhook_id": "webhook_999999"},
    "sha256": "b" * 64,
}
TELLING = {
    "jobs": ("id", "name"),
    "keys": ("id", "name"),
    "webhooks": ("id", "target"),
    "datasets": ("id",),
    "dataset_items": ("sha256", "caption"),
    "invitations": ("id",),
    "memberships": ("user_id",),
    "project_secrets": ("name",),
    "pictures": ("sha256",),
    "blobs": ("sha256",),
    "artifacts": ("name", "sha256"),
}
"""Columns that hold what belongs to one project alone, by table."""
VARYING = re.compile(
    r'<time.*?</time>|data-now="[^"]*"|\d\d:\d\d:\d\d UTC|value="form_\w+"|expires=[^"\s]*'
    r'|\d+ (?:s|min|h|d) ago|value="[\w.-]{40,}"',
    re.ASCII,
)
"""What differs each time that a page is asked for: how long ago something was, tokens, and signatures."""
OF_THE_PAGES = frozenset({"hf_token"})
"""Names that pages suggest."""
SHORT = 5
"""A name of so few letters may be a word of the pages."""
FETCH = """(paths) => Promise.all(paths.map(async (path) => {
  const reply = await fetch(path);
  return [reply.status, (reply.headers.get("content-type") ?? "").startsWith("text/") ? await reply.text() : ""];
}))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """The installation; by project the ids of jobs by the routes that take them, and the other ids."""

    installation: Furnished
    jobs: Mapping[str, Mapping[str, str]]
    ids: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person with a window. `ids` are those of the own project, by the place in a route that takes them."""

    here: BrowserWindow
    project_id: str
    jobs: Mapping[str, str]
    ids: Mapping[str, str]
    known: frozenset[str]

    def path(self, route: str, *, of: "Person | None" = None, unknown: bool = False) -> str:
        """The address of the route in the own project, with the ids of `of`, or with ids that nobody has."""
        whose = of or self
        kind = next((kind for kind in whose.jobs if f"/{kind}/" in route), "jobs")
        ids = {"job_id": whose.jobs[kind], **whose.ids, **(UNKNOWN if unknown else {}), "project_id": self.project_id}
        return "/dashboard" + PLACE.sub(lambda place: ids.get(place[1], f"{place[1]}_999999"), route)

    def query(self, query: str, *, of: Mapping[str, str], sha256: str) -> str:
        """An address of the own project with the ids in its query."""
        return f"/dashboard/projects/{self.project_id}" + query.format(**of, sha256=sha256)

    def fetched(self, paths: list[str]) -> list[tuple[int, str]]:
        """Status and text of each address, as the own browser gets them."""
        return [(status, text) for status, text in self.here.page.evaluate(FETCH, paths)]

    def tells(self, text: str, other: "Person") -> list[str]:
        """What a text holds that belongs to the other project."""
        return sorted(each for each in other.known - self.known if each in text)


def test_neither_of_two_people_sees_anything_of_the_other_project(
    grounds: Grounds, window: Callable[..., BrowserWindow]
) -> None:
    ann, bob = both(grounds, window)
    for one, other in ((ann, bob), (bob, ann)):
        own = [one.path(route) for route in ROUTES]
        seen = dict(zip(own, one.fetched(own), strict=True))
        shown = {path: text for path, (status, text) in seen.items() if status == 200}
        assert len(shown) >= len(ROUTES) * 0.7
        assert {*one.jobs.values()} <= {each for each in one.known if any(each in text for text in shown.values())}
        for path, (_, text) in seen.items():
            assert one.tells(text, other) == [], path
        documents = [path for path, text in shown.items() if text.startswith("<!doctype html>")]
        assert len(documents) >= 15
        for path in documents:
            one.here.go(path)
            assert one.tells(one.here.page.content(), other) == [], path
        one.here.forget_refusals()


def test_foreign_addresses_are_answered_as_unknown_ones(
    grounds: Grounds, window: Callable[..., BrowserWindow]
) -> None:
    ann, bob = both(grounds, window)
    for one, other in ((ann, bob), (bob, ann)):
        nobodys = Person(here=one.here, project_id="nobodys", jobs=other.jobs, ids=other.ids, known=frozenset())
        theirs = [other.path(route) for route in ROUTES]
        foreign = one.fetched(theirs)
        absent = one.fetched([nobodys.path(route) for route in ROUTES])
        for path, (status, text), (_, unknown) in zip(theirs, foreign, absent, strict=True):
            assert status == 404, path
            assert text.replace(other.project_id, "…") == unknown.replace("nobodys", "…"), path
        named = [route for route in ROUTES if {"job_id", "webhook_id", "sha256"} & {*PLACE.findall(route)}]
        foreign = one.fetched([one.path(route, of=other) for route in named])
        absent = one.fetched([one.path(route, unknown=True) for route in named])
        for route, (status, text), (other_status, unknown) in zip(named, foreign, absent, strict=True):
            assert (status, VARYING.sub("…", text)) == (other_status, VARYING.sub("…", unknown)), route
            assert status == 404 or one.tells(text, other) == [], route
        asked = one.fetched([one.query(query, of=other.jobs, sha256=other.ids["sha256"]) for query in QUERIES])
        nothing = dict.fromkeys(other.jobs, UNKNOWN["job_id"])
        absent = one.fetched([one.query(query, of=nothing, sha256=UNKNOWN["sha256"]) for query in QUERIES])
        typed = re.compile(
            "|".join([*other.jobs.values(), other.ids["sha256"], UNKNOWN["job_id"], UNKNOWN["sha256"]])
        )
        for query, (status, text), (other_status, unknown) in zip(QUERIES, asked, absent, strict=True):
            without = [typed.sub("…", VARYING.sub("…", each)) for each in (text, unknown)]
            assert (status, without[0]) == (other_status, without[1]), query
        one.here.page.goto(one.here.url + other.path("/projects/{project_id}/jobs/{job_id}"))
        assert one.here.page.get_by_role("heading", name="Not Found").is_visible()
        one.here.forget_refusals()


def test_no_number_of_a_page_changes_when_another_project_works(
    grounds: Grounds, window: Callable[..., BrowserWindow]
) -> None:
    bob, installation = both(grounds, window)[1], grounds.installation
    paths = [bob.path(route) for route in ROUTES]
    ctx = installation.served.ctx
    chain_rows(ctx)  # else the server's loop numbers rows of the audit log in between
    before = bob.fetched(paths)
    for number in range(3):
        job, _ = submit(ctx, ANN, train(four_pictures(ctx, ANN), instance_prompt=f"sks {number}"), None)
    cancel(ctx, ANN, job.id)
    draw(installation, ANN, "an order of the studio", 2)
    after = bob.fetched(paths)
    for path, (_, text), (_, later) in zip(paths, before, after, strict=True):
        assert VARYING.sub("…", text) == VARYING.sub("…", later), path
    bob.here.forget_refusals()


@pytest.fixture(scope="module")
def grounds(museum: Furnished) -> Grounds:
    """Both projects with something of everything."""
    exhibits = exhibited(museum)
    order_id = draw(museum, BOB, "zinnober on linen", 2)
    ctx = museum.served.ctx
    webhook = create_webhook(ctx, BOB, CreateWebhook(target="https://hooks.example/zinnober"))
    create_key(ctx, BOB, CreateKey(name="zinnober key", scopes=(Scope.JOBS_READ,)))
    set_secret(ctx, BOB, "zinnober_token", SetSecret(value="zinnober_not_shown"))
    studio = {"orders": exhibits.order_id, "grids": museum.grid_job, "compare": exhibits.sweep_id}
    return Grounds(
        installation=museum,
        jobs={
            PROJECT: {**studio, "jobs": museum.done_job},
            OTHER: {"jobs": museum.stranger_job, "orders": order_id},
        },
        ids={
            PROJECT: {"webhook_id": museum.webhook_id, "sha256": have(ctx, ANN, picture(1001))},
            OTHER: {"webhook_id": webhook.id, "sha256": have(ctx, BOB, picture(1002))},
        },
    )


def draw(installation: Furnished, caller: Caller, prompt: str, pictures: int) -> str:
    """An order of the project, of which each picture is drawn, with colors of its own."""
    ctx = replace(installation.served.ctx, memory=ProcessCache())
    rig = PictureRig(StoreRig(ctx, ctx.store, ctx.clock))  # type: ignore[arg-type]
    spec = {**generate_spec(pictures), "prompts": [prompt]}
    order_id = rig.order(spec=spec, project_id=caller.project_id, name=prompt, total_steps=pictures)
    lease = rig.lease(node=12, request_id=f"draws {prompt}")
    done = [rig.upload(lease, each, picture(len(prompt) * 7 + each.number)) for each in lease.pictures]
    rig.report(lease, done, complete=True)
    settle_orders(ctx)
    return order_id


def both(grounds: Grounds, window: Callable[..., BrowserWindow]) -> tuple[Person, Person]:
    """The owners of the two projects, each with a browser of the own."""
    installation = grounds.installation
    return (
        person(grounds, window(installation), installation.owner, PROJECT),
        person(grounds, window(installation), installation.stranger, OTHER),
    )


def person(grounds: Grounds, here: BrowserWindow, user: User, project_id: str) -> Person:
    here.sign_in(user)
    with grounds.installation.served.ctx.store.read() as tx:
        connection = tx.connection  # type: ignore[attr-defined]
        known = {user.email}
        for table, columns in TELLING.items():
            of = schema.metadata.tables[table]
            chosen = sa.select(*(of.c[name] for name in columns)).where(of.c.project_id == project_id)
            known |= {value for row in connection.execute(chosen) for value in row if value}
    return Person(
        here=here,
        project_id=project_id,
        jobs=grounds.jobs[project_id],
        ids={"name": "fox-samples.png", "number": "0", **grounds.ids[project_id]},
        known=frozenset(each for each in known if len(each) > SHORT and each not in OF_THE_PAGES),
    )
