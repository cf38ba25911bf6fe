"""What each page asks of the database and sends, in numbers that no clock touches."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.dashboard import PROJECT, Furnished, furnished, pages_of
from tests.fixtures.people import Browser, browser_of

from giornata.control.access.keys import create_key
from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.caller import Caller
from giornata.control.jobs.submission.submit import submit
from giornata.dashboard.rendering import STATIC, static_url
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.work import Claim, NodeInfo
from giornata.protocol.project.admin import ROOT_PROJECT, CreateKey, Scope

MOST_STATEMENTS, MOST_ROWS, MOST_BYTES = 8, 200, 150_000
MANY = 120
NODE = Caller(project_id=ROOT_PROJECT, scopes=Scope.NODE.reach, key_id="key_node")


@dataclass(slots=True)
class PageCost:
    """Of one page: the statements, and the rows that came back."""

    statements: list[str] = field(default_factory=list)
    rows: int = 0


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Furnished]:
    """A house with many jobs, nodes and keys."""
    with furnished(tmp_path_factory.mktemp("crowded")) as installation:
        ctx = installation.served.ctx
        owner = Caller(project_id=PROJECT, scopes=Scope.ADMIN.reach, key_id="key_owner")
        for number in range(MANY):
            submit(ctx, owner, SubmitJob(kind="x-count", spec={"steps": number}), None)
            create_key(ctx, owner, CreateKey(name=f"key {number}"))
            node = NodeInfo(node_id=f"node_{number + 100:08d}", machine_id=f"crowd-{number}", name=f"crowd-{number}")
            claim_once(ctx, NODE, Claim(request_id=f"request-{number:06d}", node=node, kinds=("x-other",)))
        yield installation


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


def test_a_page_costs_at_most_8_statements_and_200_rows_however_much_there_is(crowded: Furnished) -> None:
    browser = browser_of(crowded.served, crowded.operator)
    said = []
    for name, path in pages_of(crowded).items():
        assert browser.call("GET", path).status_code == 200  # the caller is remembered from here on
        with counted() as cost:
            browser.call("GET", path)
        if len(cost.statements) > MOST_STATEMENTS or cost.rows > MOST_ROWS:
            said.append(f"{name}: {len(cost.statements)} statements, {cost.rows} rows")
        assert cost.statements or name in {"components", "reference"}, name
    assert said == []


def test_the_counting_finds_statements_and_rows(crowded: Furnished) -> None:
    browser = browser_of(crowded.served, crowded.operator)
    path = pages_of(crowded)["jobs"]
    with counted() as cost:
        browser.call("GET", path)
    assert len(cost.statements) > 3
    assert cost.rows > 25


def test_a_page_with_its_files_has_at_most_150_kilobytes(crowded: Furnished) -> None:
    browser = browser_of(crowded.served, crowded.operator)
    for name, path in pages_of(crowded).items():
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
