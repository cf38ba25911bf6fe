"""What pages load again by the clock, however many are open."""

import re

import pytest

from giornata.dashboard.rendering import HERE

CLOCKED = re.compile(r'hx-trigger="[^"]*every (\d+)s')
PAGES = {
    "a running job": (("job.html", "job_head.html"), 4.5),
    "Home": (("home.html", "home_active.html"), 20),
    "Jobs": (("jobs.html", "job_list.html"), 6),
    "the fleet": (("fleet.html", "node_list.html"), 12),
}
"""Templates of a page with all of its parts, and how often a minute they may load something."""


@pytest.mark.parametrize("page", PAGES)
def test_page_reloads_few_parts_by_the_clock(page: str) -> None:
    names, most_a_minute = PAGES[page]
    texts = [(HERE / "templates" / name).read_text() for name in names]
    if page == "a running job":
        texts = [re.sub(r'.*id="job-pretraining".*', "", text) for text in texts]
    periods_s = [int(found) for text in texts for found in CLOCKED.findall(text)]
    assert periods_s
    assert sum(60 / period_s for period_s in periods_s) <= most_a_minute


def test_part_of_a_hidden_page_is_loaded_when_the_page_is_seen_again() -> None:
    """After a change of the page's visibility, dashboard.js tells `shown`, `fresh` and `changed`."""
    texts = [each.read_text() for each in (HERE / "templates").glob("*.html")]
    clocked = [line for text in texts for line in text.splitlines() if CLOCKED.search(line)]
    assert len(clocked) > 8
    assert [line for line in clocked if "from:body" not in line] == []


def test_no_page_loads_itself_whole() -> None:
    found = [each.name for each in (HERE / "templates").glob("*.html") if "hx-select" in each.read_text()]
    assert found == []
