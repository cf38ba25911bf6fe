"""People who have five pages open each: Home, Jobs, a running job, Generate with its gallery, and the fleet."""

import asyncio
import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from benchmarks.rig.browser_page import OpenPage, PageTraffic, PersonOfPages

PASSWORD = "a long sentence of theirs"
START_S = 10.0
OPENED_AT_ONCE = 4
OPERATOR_OF = 20
"""One of so many people is an operator, whose Home and fleet have more parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServer:
    """Where a server is, and the cookie of a person's session there."""

    host: str
    port: int
    cookie: str

    def first_byte(self, path: str) -> tuple[float, bytes]:
        """Ask for a page on a connection of its own; the seconds until its head has come, and the page."""
        connection = HTTPConnection(self.host, self.port, timeout=60)
        connection.connect()
        try:
            began_s = time.perf_counter()
            connection.request("GET", path, headers={"Cookie": self.cookie})
            reply = connection.getresponse()
            first_s = time.perf_counter() - began_s
            body = reply.read()
            if reply.status != 200:
                raise RuntimeError(f"{path}: {reply.status} {body[:200]!r}")
            return first_s, body
        finally:
            connection.close()


def sign_in(
    host: str, port: int, admin_key: str, name: str = "operator", *, member_of: str | None = None
) -> PageServer:
    """Make a person and sign the person in: a member of that project, or an operator without one."""
    person = {"email": f"{name}@example.com", "password": PASSWORD}
    key = {"Authorization": f"Bearer {admin_key}"}
    _, made = _sent(host, port, ("POST", "/v1/users"), person | {"operator": member_of is None}, key)
    if member_of is not None:
        path = f"/v1/projects/{member_of}/members/{json.loads(made)['id']}"
        _sent(host, port, ("PUT", path), {"role": "member"}, key)
    cookie, _ = _sent(host, port, ("POST", "/v1/session"), person, {})
    return PageServer(host=host, port=port, cookie=cookie.partition(";")[0])


def _sent(
    host: str, port: int, request: tuple[str, str], body: dict[str, Any], headers: dict[str, str]
) -> tuple[str, bytes]:
    """Send JSON; return the cookie that is set, if one is, and the reply."""
    connection = HTTPConnection(host, port, timeout=60)
    connection.request(*request, json.dumps(body), {"Content-Type": "application/json", **headers})
    reply = connection.getresponse()
    said = reply.read()
    connection.close()
    if reply.status not in {200, 201}:
        raise RuntimeError(f"{request}: {reply.status} {said!r}")
    return str(reply.headers.get("Set-Cookie", "")), said


def sign_in_people(host: str, port: int, admin_key: str, project_id: str, count: int) -> list[PageServer]:
    """Sign so many people in, of whom one in OPERATOR_OF is an operator."""
    project_of = [None if number % OPERATOR_OF == 0 else project_id for number in range(count)]
    return [
        sign_in(host, port, admin_key, f"person-{number}", member_of=project)
        for number, project in enumerate(project_of)
    ]


def pages_of_people(
    people: Sequence[PageServer], project_id: str, running: Sequence[str], count: int
) -> list[tuple[PageServer, str]]:
    """Return `count` pages, five of each person: who has it open, and its path."""
    here, found = f"/dashboard/projects/{project_id}", list[tuple[PageServer, str]]()
    for person, job_id in zip(people, itertools.cycle(running), strict=False):
        found += [(person, f"{here}{path}") for path in ("", "/jobs", f"/jobs/{job_id}", "/generate", "/fleet")]
    return found[:count]


@contextmanager
def open_pages(pages: Sequence[tuple[PageServer, str]]) -> Iterator[PageTraffic]:
    """Keep these pages open in a process of its own, seen by people, until the end of the block.

    What they asked for in the block is there at its end.
    """
    context = multiprocessing.get_context("spawn")
    opened, counts, traffic = context.Event(), context.Array("q", 3), PageTraffic()
    process = context.Process(target=_keep_open, args=(list(pages), opened, counts), daemon=True)
    process.start()
    try:
        while not opened.wait(1):
            if not process.is_alive():
                raise RuntimeError("a page did not open; what stopped it stands above")
        before = list(counts)
        yield traffic
        if not process.is_alive():
            raise RuntimeError("a page was closed")
        asked = [after - earlier for after, earlier in zip(counts, before, strict=True)]
        traffic.requests, traffic.unchanged, traffic.received_bytes = asked
    finally:
        process.terminate()
        process.join()


def _keep_open(pages: list[tuple[PageServer, str]], opened: Any, counts: Any) -> None:
    asyncio.run(_all_open(pages, opened, counts))


async def _all_open(pages: list[tuple[PageServer, str]], opened: Any, counts: Any) -> None:
    traffic, few = PageTraffic(), asyncio.Semaphore(OPENED_AT_ONCE)
    visitors = {
        person: PersonOfPages(host=person.host, port=person.port, cookie=person.cookie, traffic=traffic)
        for person, _ in pages
    }

    async def open_one(number: int, group: asyncio.TaskGroup) -> None:
        person, path = pages[number]
        async with few:
            await OpenPage(visitors[person], path, phase=number / len(pages)).open(group)

    async with asyncio.TaskGroup() as group:
        async with asyncio.TaskGroup() as opening:
            for number in range(len(pages)):
                opening.create_task(open_one(number, group))
        began_s = time.monotonic()
        while True:
            counts[:] = (traffic.requests, traffic.unchanged, traffic.received_bytes)
            if time.monotonic() > began_s + START_S:
                opened.set()
            await asyncio.sleep(0.1)
