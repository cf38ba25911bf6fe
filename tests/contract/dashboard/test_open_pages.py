"""What a minute of open pages asks of the server: requests and statements, by a clock that the test moves."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from benchmarks.rig.browser_page import PagePart, elements_of, parts_of
from tests.fixtures.dashboard import PROJECT, Furnished, pages_of
from tests.fixtures.people import Browser, browser_of, new_person
from tests.fixtures.rows_read import sent_statements

from giornata.control.memory.process_cache import ProcessCache
from giornata.dashboard.shared_parts import SharedParts
from giornata.protocol.account.people import Role

MINUTE_S = 60
MOST_REQUESTS = 21
"""Of a person with five pages open, in a minute."""
MOST_STATEMENTS = 200
"""Of the pages of any number of people of a project, in a minute, but for the heads of jobs that they watch."""
MOST_OF_HEAD = 8
"""Statements for a head, which each page of a running job loads once in a minute when nothing happens."""


class ClockOfPages:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.at_ms = time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        return self.at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPart:
    """A part of an open page, and the second of each period at which it is loaded."""

    browser: Browser
    part: PagePart
    period_s: int
    phase_s: int


@pytest.fixture
def clock(installation: Furnished) -> Iterator[ClockOfPages]:
    """Of the server while it answers pages."""
    state, moved = installation.served.app.state, ClockOfPages()
    known = state.context, state.shared_parts
    state.context = replace(installation.served.ctx, clock=moved, memory=ProcessCache())
    state.shared_parts = SharedParts(moved)
    yield moved
    state.context, state.shared_parts = known


def open_pages(installation: Furnished, count: int) -> list[LoadedPart]:
    """Open five pages for each of so many people, at different moments; return what the pages load by the clock."""
    pages, loaded = pages_of(installation), list[LoadedPart]()
    for number in range(count):
        person = new_person(installation.served.ctx, f"of-{count}-{number}", {PROJECT: Role.MEMBER})
        browser = browser_of(installation.served, person)
        for page, name in enumerate(("home", "jobs", "job-running", "generate", "fleet")):
            html = browser.call("GET", pages[name]).text
            parts = {each.url: each for each in parts_of(elements_of(html))}
            for each in parts.values():
                if each.loads:
                    browser.call("GET", each.url, headers=each.headers)
                if each.period_s is not None:
                    period_s = round(each.period_s)
                    phase_s = (7 * number + 3 * page) % period_s
                    loaded.append(LoadedPart(browser=browser, part=each, period_s=period_s, phase_s=phase_s))
    return loaded


@dataclass(slots=True)
class MinuteOfPages:
    """What came of it. `heads` are requests for heads of jobs."""

    requests: int = 0
    heads: int = 0
    statements: int = 0


def watch(clock: ClockOfPages, loaded: list[LoadedPart]) -> MinuteOfPages:
    """Let a minute pass, in which the pages load what is due."""
    found = MinuteOfPages()
    with sent_statements() as sent:
        for second in range(MINUTE_S):
            for each in loaded:
                if second % each.period_s != each.phase_s:
                    continue
                known = {"If-None-Match": each.part.mark} if each.part.mark else {}
                reply = each.browser.call("GET", each.part.url, headers={"HX-Request": "true"} | known)
                assert reply.status_code in {200, 304}
                each.part.mark = reply.headers.get("etag", each.part.mark)
                found.requests += 1
                found.heads += each.part.url.endswith("/head")
            clock.at_ms += 1000
    found.statements = len([each for each, _ in sent.statements if re.search(r"\bFROM\b", each)])
    return found


@pytest.mark.parametrize("people", [1, 4, 16])
def test_minute_of_open_pages_costs_few_requests_each_and_no_more_statements_for_more_people(
    installation: Furnished, clock: ClockOfPages, people: int
) -> None:
    loaded = open_pages(installation, people)
    watch(clock, loaded)
    minute = watch(clock, loaded)
    assert minute.requests <= MOST_REQUESTS * people
    assert minute.heads <= people
    assert minute.statements - MOST_OF_HEAD * minute.heads <= MOST_STATEMENTS
