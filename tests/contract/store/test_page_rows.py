"""How many rows a page of the dashboard reads does not depend on how many jobs and pictures there are."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.rig.page_data import fill
from tests.fixtures.dashboard import PROJECT, Furnished, forget_parts, furnished, pages_of
from tests.fixtures.people import browser_of
from tests.fixtures.rows_read import rows_read, sent_statements

LITTLE, MUCH = 400, 4_000
NODES = 20
"""So few that the attempts of each node grow with the jobs."""
COUNTS_ALL = {"operator-installation"}
"""It counts all jobs by their state, for all operators together once in some seconds."""


def read_by_pages(installation: Furnished) -> dict[str, list[tuple[int, str]]]:
    """The rows that each statement of each page reads."""
    browser = browser_of(installation.served, installation.operator)
    found = {}
    for name, path in pages_of(installation).items():
        forget_parts(installation)
        with sent_statements() as sent:
            assert browser.call("GET", path).status_code == 200, name
        found[name] = rows_read(installation.served.ctx.store, sent)  # type: ignore[arg-type]
    return found


def read_by_search(installation: Furnished) -> list[tuple[int, str]]:
    """Return the rows that each statement of a search for a job reads that is not there."""
    browser = browser_of(installation.served, installation.operator)
    with sent_statements() as sent:
        assert "Search older jobs" in browser.call("GET", f"{pages_of(installation)['jobs']}?match=no+such+name").text
    return rows_read(installation.served.ctx.store, sent)  # type: ignore[arg-type]


def test_ten_times_as_many_jobs_are_not_read_by_any_page(new_postgres: Callable[[], str], tmp_path: Path) -> None:
    url = new_postgres()
    with furnished(tmp_path, database=url) as installation:
        fill(url, PROJECT, 1, LITTLE, pictures=20, nodes=NODES)
        before = read_by_pages(installation)
        fill(url, PROJECT, LITTLE + 1, MUCH, pictures=20, nodes=NODES)
        after = read_by_pages(installation)
        searched = read_by_search(installation)
    assert max(searched)[0] <= installation.served.ctx.policy.max_searched_jobs < MUCH, max(searched)
    said = []
    for name in before.keys() - COUNTS_ALL:
        little, much = (sum(rows for rows, _ in each[name]) for each in (before, after))
        if much > 1.5 * little + 100:
            worst = max(after[name])
            said.append(f"{name}: {little} rows, then {much}; {worst[0]} by {worst[1]}")
    assert said == []
