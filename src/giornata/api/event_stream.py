"""Stream a page that goes on as server-sent events (WHATWG HTML, section 9.2).

Each item is one message with its `id`; `Last-Event-ID` takes a stream up again behind it. A comment line is sent
when nothing else was for a while. After the job's end, or when it is paused, and everything was sent, comes a message
named `end`; a stream that closes without one is to be taken up again. A stream whose key was revoked closes so too.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Annotated, Any, Protocol

from fastapi import Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from giornata.api.body_limits import is_head
from giornata.api.settings import ApiSettings
from giornata.api.wakeup import Wakeup
from giornata.domain.errors import Unauthenticated
from giornata.protocol.events import EventType
from giornata.protocol.jobs import EventPage

MEDIA_TYPE = "text/event-stream"
PAGE = 500
ENDS = frozenset(
    {
        EventType.JOB_SUCCEEDED,
        EventType.JOB_FAILED,
        EventType.JOB_CANCELED,
        EventType.JOB_EXPIRED,
        EventType.JOB_IMPORTED,
    }
)
END_MESSAGE = b"event: end\ndata: {}\n\n"
KEEP_ALIVE = b": still here\n\n"

LastEventId = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, lt=2**63, description="Go on behind this event; wins over after.")
]


class Item(Protocol):
    """One element of a stream: it has an id and a JSON form."""

    @property
    def id(self) -> int: ...
    def model_dump_json(self) -> str: ...


class Page(Protocol):
    """A page of items in ascending order of their ids."""

    @property
    def items(self) -> Sequence[Item]: ...


class JobEndWatcher:
    """Watches a job's events for the one that ends it. `read_events` takes (after, limit)."""

    def __init__(self, read_events: Callable[[int, int], EventPage]) -> None:
        self._read_events, self._after, self._reached, self._paused = read_events, 0, False, False

    def reached(self) -> bool:
        """Return True when the job has ended, or is paused. Reads only what is new since the last time."""
        while not self._reached:
            items = self._read_events(self._after, PAGE).items
            if not items:
                break
            self._after = items[-1].id
            self._reached = any(item.type in ENDS for item in items)
            for item in items:
                self._paused = item.type == EventType.JOB_PAUSED or (
                    self._paused and item.type != EventType.JOB_RESUMED
                )
        return self._reached or self._paused


class Stream:
    """One client that follows one job. `read_page` takes (after, limit); the callables are synchronous.

    `require_standing` raises Unauthenticated when the client's key is good no more. `seat` is held until the last
    byte is sent or the client is gone.
    """

    def __init__(
        self,
        *,
        read_page: Callable[[int, int], Page],
        ending: JobEndWatcher,
        require_standing: Callable[[], None],
        after: int,
        settings: ApiSettings,
        wakeup: Wakeup,
        seat: AbstractContextManager[None],
    ) -> None:
        self._read_page, self._ending, self._after = read_page, ending, after
        self._require_standing = require_standing
        self._settings, self._wakeup, self._seat = settings, wakeup, seat

    async def respond(self) -> Response:
        """Return the reply. 204 when there is nothing left to send: it tells an EventSource not to come back.

        Raises TooMany when there is no seat.
        """
        with ExitStack() as held:
            held.enter_context(self._seat)
            sent, over = await self._wakeup.look(self._next)
            if over and not sent:
                return Response(status_code=204)
            headers = {"X-Accel-Buffering": "no"}
            messages = self._messages(sent, over)
            return _Seated(messages, media_type=MEDIA_TYPE, headers=headers, seat=held.pop_all())

    def _next(self) -> tuple[bytes, bool]:
        """Return the messages to send next, and whether the job has ended. For a thread: a page is work."""
        self._require_standing()
        # The end is looked for first, so that nothing written between the two reads is missed.
        over = self._ending.reached()
        items = self._read_page(self._after, PAGE).items
        if items:
            self._after = items[-1].id
        return b"".join(map(_message, items)), over

    async def _messages(self, sent: bytes, over: bool) -> AsyncIterator[bytes]:
        silent_s = 0.0
        yield KEEP_ALIVE
        with self._wakeup.listen() as listener:
            while not self._wakeup.closed:
                if sent:
                    yield sent
                    silent_s = 0.0
                elif over:
                    yield END_MESSAGE
                    return
                else:
                    await listener.wait(self._settings.stream_poll_s)
                    silent_s += self._settings.stream_poll_s
                    if silent_s >= self._settings.keep_alive_s:
                        yield KEEP_ALIVE
                        silent_s = 0.0
                try:
                    sent, over = await self._wakeup.look(self._next)
                except Unauthenticated:
                    return  # whoever takes the stream up again is told


class _Seated(StreamingResponse):
    """A response that leaves its seat also when the client went away before the first byte, so that no message was
    ever asked for.
    """

    def __init__(self, *content: Any, seat: AbstractContextManager[Any], **how: Any) -> None:
        super().__init__(*content, **how)
        self._seat = seat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._seat:
            await super().__call__(scope, receive, send)


def wants_stream(request: Request) -> bool:
    """Return True when the client asked for events rather than a page."""
    return MEDIA_TYPE in request.headers.get("accept", "") and not is_head(request)


def _message(item: Item) -> bytes:
    # JSON holds no line feed, so one data line carries the whole item.
    return f"id: {item.id}\ndata: {item.model_dump_json()}\n\n".encode()
