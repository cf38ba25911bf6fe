"""What each page asks of the database and sends, in numbers that no clock touches."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from benchmarks.rig.page_addresses import NOT_MEASURED
from starlette.routing import Route
from tests.fixtures.dashboard import PROJECT, Furnished, furnished, pages_of
from tests.fixtures.people import Browser, browser_of
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.store_rig import StoreRig
from tests.fixtures.users import new_dataset

from giornata.control.access.keys import create_key
from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.caller import Caller
from giornata.control.jobs.reading.job_outputs import read_artifacts, read_checkpoints
from giornata.control.jobs.submission.submit import submit
from giornata.control.jobs.submission.submit_sweep import submit_sweep
from giornata.dashboard.app import PAGES
from giornata.dashboard.rendering import STATIC, static_url
from giornata.dashboard.visit import ROOT
from giornata.domain.jobs.audits import AuditState
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.work import Claim, NodeInfo
from giornata.protocol.project.admin import ROOT_PROJECT, CreateKey, Scope
from giornata.protocol.sweeps import SubmitSweep
from giornata.store import schema

MOST_STATEMENTS, MOST_ROWS, MOST_BYTES = 8, 200, 150_000
MANY, MANY_FILES = 120, 250
ROUTES = [each for each in PAGES if isinstance(each, Route) and "GET" in (each.methods or ())]
WITHOUT_SESSION = {"/sign-in", "/invitation"}
WHOLE = {"audit-log-as-file"}
"""A file that holds every row. It is read in parts of 500 rows, so that its statements grow with them."""
NODE = Caller(project_id=ROOT_PROJECT, scopes=Scope.NODE.reach, key_id="key_node")


@dataclass(slots=True)
class PageCost:
    """Of one page: the statements, and the rows that came back."""

    statements: list[str] = field(default_factory=list)
    rows: int = 0


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    """A house with many jobs, nodes, keys, checkpoints, sheets and audits."""
    with furnished(tmp_path_factory.mktemp("crowded")) as installation:
        ctx = installation.served.ctx
        owner = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_owner")
        for number in range(MANY):
            submit(ctx, owner, SubmitJob(kind="x-count", spec={"steps": number}), None)
            create_key(ctx, owner, CreateKey(name=f"key {number}"))
            node = NodeInfo(node_id=f"node_{number + 100:08d}", machine_id=f"crowd-{number}", name=f"crowd-{number}")
            claim_once(ctx, NODE, Claim(request_id=f"request-{number:06d}", node=node, kinds=("x-other",)))
        with ctx.store.begin() as tx:
            _crowd_job(tx.connection, installation.done_job)  # type: ignore[attr-defined]
        yield installation


def _crowd_job(connection: sa.Connection, job_id: str) -> None:
    """Give a job MANY_FILES more checkpoints, sheets and audits, with the bytes that it has."""
    of_job = (each.select().where(each.c.job_id == job_id) for each in (schema.checkpoints, schema.artifacts))
    checkpoint, sheet = (dict(connection.execute(query).first()._mapping) for query in of_job)  # type: ignore[union-attr]
    audit = {name: sheet[name] for name in ("job_id", "project_id", "attempt_id")}
    audit |= {"attempt_number": 1, "machine_id": "machine-1", "fleet": "", "device": "", "versions": {}, "runs": []}
    audit |= {"claimed_sha256": "a" * 64, "state": AuditState.CONFIRMED, "created_at_ms": 1}
    steps = range(1000, 1000 + MANY_FILES)
    sheets = [sheet | {"name": f"fox-samples-{step:08d}.png"} for step in steps]
    connection.execute(schema.checkpoints.insert(), [checkpoint | {"step": step} for step in steps])
    connection.execute(schema.artifacts.insert(), sheets)
    stretches = [{"id": f"audit_{step}", "from_step": step - 1, "to_step": step} for step in steps]
    connection.execute(schema.audits.insert(), [audit | each for each in stretches])


@pytest.fixture(scope="module")
def more_pages(crowded: Furnished) -> dict[str, str]:
    """Pages of a sweep and of an order, of which there is none in a furnished house."""
    ctx, studio = crowded.served.ctx, f"/dashboard/projects/{PROJECT}"
    owner = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_owner")
    spec = {"model": "some/model", "dataset": new_dataset(ctx, owner).id, "instance_prompt": "sks"}
    grid = {"rank": tuple(range(4, 12)), "learning_rate": (1e-4, 2e-4, 3e-4, 4e-4)}
    sweep_id, _ = submit_sweep(ctx, owner, SubmitSweep(spec=spec, grid=grid), None)
    rig = PictureRig(StoreRig(ctx, ctx.store, ctx.clock))  # type: ignore[arg-type]
    order_id = rig.order(spec=generate_spec(MANY_FILES), project_id=PROJECT)
    return {
        "sweep": f"{studio}/compare/{sweep_id}",
        "order": f"{studio}/orders/{order_id}",
        "order-in-generate": f"{studio}/generate?order={order_id}",
        "job-of-order": f"{studio}/jobs/{order_id}",
        "costs-as-file": f"{studio}/settings/money/days.csv",
        "audit-log-as-file": f"{studio}/settings/audit-log/export",
    }


def served_by(path: str) -> str:
    """Return the path of the route that answers at this address, both below /dashboard."""
    found = path.removeprefix(ROOT).partition("?")[0]
    return next(each.path for each in ROUTES if each.path_regex.match(found))


def test_cost_of_each_route_that_shows_something_is_counted(crowded: Furnished, more_pages: dict[str, str]) -> None:
    counted_too = set(map(served_by, {**pages_of(crowded), **more_pages}.values()))
    left_out = {each.path for each in ROUTES} - counted_too
    assert left_out == (NOT_MEASURED.keys() | WITHOUT_SESSION) - counted_too


@contextmanager
def counted() -> Iterator[PageCost]:
    """Count what every SQLite engine of this process is asked, and the rows that it gives back."""
    cost = PageCost()

    def one_more(_cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        cost.rows += 1
        return row

    def note(_connection: object, cursor: sqlite3.Cursor, statement: str, *_: object) -> None:
        cost.statements.append(statement)
        cursor.row_factory = one_more

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield cost
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def cost_of(browser: Browser, path: str) -> PageCost:
    """What one call of the page costs whose parts nobody has loaded lately."""
    for project_id in (PROJECT, ROOT_PROJECT):
        browser.served.app.state.shared_parts.forget(project_id)
    with counted() as cost:
        browser.call("GET", path)
    return cost


def test_a_page_costs_at_most_8_statements_and_200_rows_however_much_there_is(
    crowded: Furnished, more_pages: dict[str, str]
) -> None:
    browser = browser_of(crowded.served, crowded.operator)
    said = []
    for name, path in {**pages_of(crowded), **more_pages}.items():
        assert browser.call("GET", path).status_code == 200
        # The caller is remembered from the first call on, for some seconds; a slow machine may need another try.
        cost = min((cost_of(browser, path) for _ in range(2)), key=lambda each: len(each.statements))
        if len(cost.statements) > MOST_STATEMENTS or (cost.rows > MOST_ROWS and name not in WHOLE):
            said.append(f"{name}: {len(cost.statements)} statements, {cost.rows} rows")
        assert cost.statements or name in {"components", "reference", "operator-loops"}, name
    assert said == []


def test_page_of_many_files_says_how_many_it_leaves_out_and_links_to_them(crowded: Furnished) -> None:
    browser, pages = browser_of(crowded.served, crowded.operator), pages_of(crowded)
    part = browser.call("GET", pages["job-files"]).text
    assert "The first 60 by name; there are more." in part
    assert "The latest 30; there are more." in part
    assert "The latest 60 sheets" in browser.call("GET", pages["job-pictures"]).text
    assert "Those of the latest steps" in browser.call("GET", pages["job-audits"]).text
    assert "fox-samples" in browser.call("GET", pages["job-newest"]).text
    ctx, viewer = crowded.served.ctx, Caller(project_id=PROJECT, scopes=Scope.JOBS_READ.reach, key_id="key_viewer")
    results = [each.name for each in read_artifacts(ctx, viewer, crowded.done_job).items]
    steps = [f"{each.step:,}" for each in read_checkpoints(ctx, viewer, crowded.done_job).items]
    assert min(len(results), len(steps)) > MANY_FILES
    for word, names, expected in (
        ("Further results", r">(fox[-.\w]+)</a>", results),
        ("Earlier checkpoints", r">step ([^<]+)</a>", steps),
    ):
        seen, path = list[str](), pages["job-all-files"]
        while path:
            text = browser.call("GET", path).text
            seen += re.findall(names, text)
            following = re.search(rf'href="([^"]+)" rel="next">{word}<', text)
            path = unescape(following[1]) if following else ""
        assert [each.replace("\u202f", ",") for each in seen] == expected, word


def test_the_api_gives_the_same_parts_of_many_files_and_of_a_curve(crowded: Furnished) -> None:
    browser, job = browser_of(crowded.served, crowded.viewer, PROJECT), f"/v1/jobs/{crowded.done_job}"
    few = browser.call("GET", f"{job}/checkpoints?limit=2&below_step=1100").json()
    assert ([each["step"] for each in few["items"]], few["next"]) == ([1099, 1098], "1098")
    files = browser.call("GET", f"{job}/artifacts?limit=2&after=fox-samples-00001100.png").json()
    assert [each["name"] for each in files["items"]] == [f"fox-samples-0000{step}.png" for step in (1101, 1102)]
    assert files["next"] == "fox-samples-00001102.png"
    assert browser.call("GET", f"{job}/checkpoints").json()["next"] is None
    curve = browser.call("GET", f"{job}/metrics?points=10").json()
    assert (len(curve["items"]) <= 10, curve["items"][-1]["step"], curve["every"]) == (True, 400, 100)
    for wrong in ("metrics?points=9", "checkpoints?limit=0", "checkpoints?below_step=-1", "artifacts?limit=501"):
        assert browser.call("GET", f"{job}/{wrong}").status_code in {400, 422}, wrong


def test_the_counting_finds_statements_and_rows(crowded: Furnished) -> None:
    browser = browser_of(crowded.served, crowded.operator)
    path = pages_of(crowded)["jobs"]
    with counted() as cost:
        browser.call("GET", path)
    assert len(cost.statements) > 3
    assert cost.rows > 25


def test_a_page_with_its_files_has_at_most_150_kilobytes(crowded: Furnished, more_pages: dict[str, str]) -> None:
    browser = browser_of(crowded.served, crowded.operator)
    for name, path in {**pages_of(crowded), **more_pages}.items():
        if name in WHOLE:
            continue
        text = browser.call("GET", path).text
        files = set(re.findall(r"/dashboard/static/[^\"']+", text))
        sent = {file: sent_bytes(browser, file) for file in files}
        assert len(text.encode()) + sum(sent.values()) <= MOST_BYTES, (name, len(text.encode()), sent)


def sent_bytes(browser: Browser, path: str) -> int:
    """Return the bytes of a static file as they are sent to a browser."""
    url = browser.served.url + path
    with browser.served.http.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as response:
        assert response.status_code == 200, path
        return sum(len(chunk) for chunk in response.iter_raw())


def test_files_are_sent_compressed_and_pages_are_not(crowded: Furnished) -> None:
    browser = browser_of(crowded.served, crowded.operator)
    file = static_url("dashboard.css")
    assert browser.call("GET", file).headers["content-encoding"] == "gzip"
    assert sent_bytes(browser, file) < (Path(STATIC) / "dashboard.css").stat().st_size / 2
    assert "content-encoding" not in browser.call("GET", "/dashboard/ui").headers
