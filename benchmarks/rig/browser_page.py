"""One page that is open in a browser. What it loads by itself is read from its HTML, as htmx and our scripts do."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html.parser import HTMLParser

EVERY = re.compile(r"every (\d+)s")
FRESH_S, CHANGED_S = 1.0, 5.0
"""How long after an event the page tells its parts, as dashboard.js says."""
LOG_LINES, POINTS = 500, 1000
Attributes = dict[str, str]


@dataclass(slots=True)
class PageTraffic:
    """Requests of the pages of one process, streams left out, those of them answered by 304, and received bytes."""

    requests: int = 0
    unchanged: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonOfPages:
    """A person's browser: the server, the cookie of the session, and what is counted.

    Like a browser it keeps connections for further requests; each stream has one of its own.
    """

    host: str
    port: int
    cookie: str
    traffic: PageTraffic = field(default_factory=PageTraffic, compare=False)
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list, compare=False)

    async def get(self, path: str, headers: Attributes) -> tuple[int, Attributes, str]:
        """Return status, headers and body. Raises RuntimeError for what is neither 200, 204 nor 304."""
        message = request_of(self, path, headers)
        while True:
            kept = bool(self._idle)
            reader, writer = self._idle.pop() if kept else await asyncio.open_connection(self.host, self.port)
            try:
                writer.write(message)
                head = await reader.readuntil(b"\r\n\r\n")
                break
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()
                if not kept:  # the server closes a connection that was idle for long
                    raise
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(found.get("content-length", 0)))
        self._idle.append((reader, writer))
        status = int(first.split(" ")[1])
        if status not in {200, 204, 304}:
            raise RuntimeError(f"{path}: {first} {body[:300]!r}")
        self.traffic.requests += 1
        self.traffic.unchanged += status == 304
        self.traffic.received_bytes += len(head) + len(body)
        return status, found, body.decode()


@dataclass(slots=True, kw_only=True)
class PagePart:
    """A part of the page that is loaded again: after how many seconds, and after which events."""

    url: str
    loads: bool
    period_s: float | None
    events: frozenset[str]
    headers: Attributes
    polls: bool = True
    mark: str | None = None


class _PageReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Attributes] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.found.append({name: value or "" for name, value in attrs})


@lru_cache(64)
def elements_of(html: str) -> Sequence[Attributes]:
    """Return the attributes of all elements. A part that many pages load is read once: browsers have machines of
    their own, and are not to take time from the server.
    """
    reader = _PageReader()
    reader.feed(html)
    return reader.found


def parts_of(elements: Sequence[Attributes]) -> Iterator[PagePart]:
    """Return what these elements load by themselves: fragments, the log, and the points of charts."""
    for each in elements:
        trigger = each.get("hx-trigger", "")
        period, loads = EVERY.search(trigger), re.search(r"\bload\b", trigger) is not None
        events = frozenset(name for name in ("fresh", "changed") if f"{name} from:body" in trigger)
        project = {"X-Project": each.get("data-project", "")}
        if "hx-get" in each and (period or loads or events):
            period_s = float(period[1]) if period else None
            yield PagePart(
                url=each["hx-get"],
                loads=loads,
                period_s=period_s,
                events=events,
                headers={},
                polls="data-poll" in each,
            )
        if log := each.get("data-log"):
            url = f"{log}?limit={LOG_LINES}&after=0"
            yield PagePart(url=url, loads=True, period_s=None, events=frozenset({"fresh"}), headers=project)
        if chart := each.get("data-chart"):
            url = f"{chart}?after_step=-1&points={POINTS}"
            yield PagePart(url=url, loads=True, period_s=None, events=frozenset({"fresh"}), headers=project)


def request_of(visitor: PersonOfPages, path: str, headers: Attributes) -> bytes:
    """Return the bytes of a GET."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {visitor.cookie}\r\n{lines}\r\n".encode()


class OpenPage:
    """A page that somebody sees. `phase`, from 0 to 1, says how far its clocks are when it is opened."""

    def __init__(self, visitor: PersonOfPages, path: str, *, phase: float) -> None:
        self._visitor, self._path, self._phase = visitor, path, phase
        self._parts: dict[str, PagePart] = {}
        self._pending: dict[str, asyncio.TimerHandle] = {}
        self._told: set[asyncio.Task[None]] = set()

    async def open(self, group: asyncio.TaskGroup) -> None:
        """Load the page with its parts, and keep it live by tasks of the group."""
        _, _, html = await self._visitor.get(self._path, {})
        elements = elements_of(html)
        await self._add(elements, group)
        for each in elements:
            if "data-follow" in each:
                await self._follow(each, group)

    async def _add(self, elements: Sequence[Attributes], group: asyncio.TaskGroup) -> None:
        new = [each for each in parts_of(elements) if each.url not in self._parts]
        self._parts |= {each.url: each for each in new}
        for part in {each.url: each for each in new}.values():
            if part.loads:
                await self._load(part, group)
            if part.period_s is not None:
                group.create_task(self._poll(part, part.period_s, group))

    async def _load(self, part: PagePart, group: asyncio.TaskGroup) -> None:
        known = {"If-None-Match": part.mark} if part.polls and part.mark else {}
        status, headers, body = await self._visitor.get(part.url, part.headers | {"HX-Request": "true"} | known)
        if status == 200:
            part.mark = headers.get("etag")
            if headers.get("content-type", "").startswith("text/html"):
                await self._add(elements_of(body), group)

    async def _poll(self, part: PagePart, period_s: float, group: asyncio.TaskGroup) -> None:
        await asyncio.sleep(period_s * (1 - self._phase))
        while True:
            began_s = time.monotonic()
            await self._load(part, group)
            await asyncio.sleep(max(0.0, period_s - (time.monotonic() - began_s)))

    async def _follow(self, element: Attributes, group: asyncio.TaskGroup) -> None:
        reader, writer = await asyncio.open_connection(self._visitor.host, self._visitor.port)
        headers = {"Accept": "text/event-stream", "X-Project": element["data-project"]}
        headers["Last-Event-ID"] = element["data-after"]
        writer.write(request_of(self._visitor, element["data-follow"], headers))
        if b" 200 " not in await reader.readline():
            raise RuntimeError(f"{element['data-follow']} cannot be followed")
        group.create_task(self._read_stream(reader, writer, group))

    async def _read_stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, group: asyncio.TaskGroup
    ) -> None:
        self._refresh(group)
        while line := await reader.readline():
            if line.startswith(b"id: "):
                self._refresh(group)
            elif line == b": step\n":
                self._soon("fresh", FRESH_S, group)
        writer.close()
        raise RuntimeError(f"the stream of {self._path} ended")

    def _refresh(self, group: asyncio.TaskGroup) -> None:
        self._soon("fresh", FRESH_S, group)
        self._soon("changed", CHANGED_S, group)

    def _soon(self, name: str, after_s: float, group: asyncio.TaskGroup) -> None:
        if name not in self._pending:
            self._pending[name] = asyncio.get_running_loop().call_later(after_s, self._tell, name, group)

    def _tell(self, name: str, group: asyncio.TaskGroup) -> None:
        del self._pending[name]
        for part in self._parts.values():
            if name in part.events:
                group.create_task(self._load(part, group))
