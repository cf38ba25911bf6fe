"""Browsers with a page of a job open: each follows the job's events, and loads parts of the page again in time."""

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

PARTS = (("/head", 30.0), ("/timeline", 120.0))
"""What a page of a running job loads again by the clock, and after how many seconds, as its template says."""
PASSWORD = "a long sentence of theirs"
START_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageServer:
    """Where a server is, and the cookie of an operator's session there."""

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


def sign_in(host: str, port: int, admin_key: str) -> PageServer:
    """Make an operator, and sign the operator in."""
    person = {"email": "operator@example.com", "password": PASSWORD}
    _posted(host, port, "/v1/users", person | {"operator": True}, {"Authorization": f"Bearer {admin_key}"})
    cookie = _posted(host, port, "/v1/session", person, {}).partition(";")[0]
    return PageServer(host=host, port=port, cookie=cookie)


def _posted(host: str, port: int, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
    connection = HTTPConnection(host, port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    reply = connection.getresponse()
    said = reply.read()
    connection.close()
    if reply.status != 201:
        raise RuntimeError(f"{path}: {reply.status} {said!r}")
    return str(reply.headers.get("Set-Cookie", ""))


@contextmanager
def open_pages(server: PageServer, project_id: str, jobs: Sequence[str], count: int) -> Iterator[None]:
    """Keep so many pages of these jobs open in a process of its own, seen by people, until the end of the block."""
    context = multiprocessing.get_context("spawn")
    opened = context.Event()
    process = context.Process(target=_keep_open, args=(server, project_id, list(jobs), count, opened), daemon=True)
    process.start()
    try:
        if not opened.wait(120):
            raise RuntimeError("the pages did not open within two minutes")
        yield
        if not process.is_alive():
            raise RuntimeError("a page was closed")
    finally:
        process.terminate()
        process.join()


def _keep_open(server: PageServer, project_id: str, jobs: list[str], count: int, opened: Any) -> None:
    asyncio.run(_all_open(server, project_id, jobs, count, opened))


async def _all_open(server: PageServer, project_id: str, jobs: list[str], count: int, opened: Any) -> None:
    ready = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for number, job_id in zip(range(count), itertools.cycle(jobs), strict=False):
            group.create_task(_follow(server, project_id, job_id, ready))
            for part, period_s in PARTS:
                path = f"/dashboard/projects/{project_id}/jobs/{job_id}{part}"
                group.create_task(_poll(server, path, period_s, first_s=period_s * number / count))
        for _ in range(count):
            await ready.acquire()
        await asyncio.sleep(START_S)
        opened.set()


async def _follow(server: PageServer, project_id: str, job_id: str, ready: asyncio.Semaphore) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = f"Accept: text/event-stream\r\nX-Project: {project_id}\r\nLast-Event-ID: 0\r\n"
    writer.write(_request(server, f"/v1/jobs/{job_id}/events", head))
    if b" 200 " not in await reader.readline():
        raise RuntimeError(f"the events of {job_id} cannot be followed")
    ready.release()
    while await reader.read(65536):
        pass
    raise RuntimeError("a stream ended")


async def _poll(server: PageServer, path: str, period_s: float, *, first_s: float) -> None:
    await asyncio.sleep(first_s)
    while True:
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(_request(server, path, "Connection: close\r\n"))
        if b" 200 " not in await reader.readline():
            raise RuntimeError(f"{path} was not answered")
        while await reader.read(65536):
            pass
        writer.close()
        await asyncio.sleep(max(0.0, period_s - (time.monotonic() - began_s)))


def _request(server: PageServer, path: str, more: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {server.cookie}\r\n{more}\r\n".encode()
