"""Stream a page that goes on as server-sent events (WHATWG HTML, section 9.2).

Each item is one message with its `id`; `Last-Event-ID` takes a stream up again behind it. A comment line is sent
when nothing else was for a while, and, in a stream of events, when the job is at another step. After the job's end,
or when it is paused, and everything was sent, comes a message named `end`; a stream that closes without one is to be
taken up again. A stream whose key was revoked closes so too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol

from fastapi import Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from giornata.api.replies.followed_jobs import FollowedJobs, Follower, Positions
from giornata.api.requests.body_limits import is_head
from giornata.api.requests.callers import Ctx, User
from giornata.api.requests.open_connections import counted
from giornata.api.settings import ApiSettings
from giornata.api.wakeup import Wakeup
from giornata.control.access.authenticate import require_standing
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading import job_outputs
from giornata.control.jobs.reading.history_heads import HistoryPart, read_heads
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
NEW_STEP = b": step\n\n"
"""Tells pages to load again what shows how far the job is. Clients leave comments out."""

LastEventId = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID", ge=0, lt=2**63, description="Continue after this event. Takes precedence over `after`."
    ),
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

    @property
    def after(self) -> int:
        """The id of the last event that was read."""
        return self._after

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
    """One client that follows one part of one job. `read_page` takes (after, limit); the callables are synchronous.

    The stream ends when the `caller`'s key is revoked. `slot` counts it until the last byte is sent or the client is
    gone.
    """

    def __init__(
        self,
        *,
        part: HistoryPart,
        job_id: str,
        read_page: Callable[[int, int], Page],
        ending: JobEndWatcher,
        ctx: Context,
        caller: Caller,
        after: int,
        settings: ApiSettings,
        wakeup: Wakeup,
        followed: FollowedJobs,
        slot: AbstractContextManager[None],
    ) -> None:
        self._part, self._job_id, self._read_page = part, job_id, read_page
        self._ending, self._after, self._ctx, self._caller = ending, after, ctx, caller
        self._settings, self._wakeup, self._followed, self._slot = settings, wakeup, followed, slot

    async def respond(self) -> Response:
        """Return the reply. 204 when there is nothing left to send: it tells an EventSource not to come back.

        Raises TooMany when the quota of open streams is used up.
        """
        with ExitStack() as held:
            held.enter_context(self._slot)
            step = await self._wakeup.look(self._step)
            sent, over = await self._wakeup.look(self._next)
            if over and not sent:
                return Response(status_code=204)
            headers = {"X-Accel-Buffering": "no"}
            messages = self._messages(sent, over, step)
            return _LimitedResponse(messages, media_type=MEDIA_TYPE, headers=headers, slot=held.pop_all())

    def _step(self) -> int | None:
        """Return the step that the job is at now, in a stream that tells of later ones. For a thread."""
        if self._part is not HistoryPart.EVENTS:
            return None
        at = (HistoryPart.STEP, self._job_id)
        return read_heads(self._ctx, [at]).get(at)

    def _next(self) -> tuple[bytes, bool]:
        """Return the messages to send next, and whether the job has ended. For a thread: a page is work."""
        require_standing(self._ctx, self._caller)
        # The end is looked for first, so that nothing written between the two reads is missed.
        over = self._ending.reached()
        items = self._read_page(self._after, PAGE).items
        if items:
            self._after = items[-1].id
        return b"".join(map(_message, items)), over

    def _positions(self) -> Positions:
        return (HistoryPart.EVENTS, self._ending.after), (self._part, self._after)

    async def _messages(self, sent: bytes, over: bool, step: int | None) -> AsyncIterator[bytes]:
        now_s, keep_alive_s = asyncio.get_running_loop().time, self._settings.keep_alive_s
        follower = Follower(job_id=self._job_id, caller=self._caller, positions=self._positions, step=step)
        yield KEEP_ALIVE
        spoke_s = now_s()
        with self._followed.follow(follower):
            while not self._wakeup.closed:
                if sent:
                    yield sent
                    spoke_s = now_s()
                elif over:
                    yield END_MESSAGE
                    return
                elif not await follower.wait(spoke_s + keep_alive_s - now_s()):
                    yield KEEP_ALIVE
                    spoke_s = now_s()
                    continue
                elif follower.take_step():
                    yield NEW_STEP
                    spoke_s = now_s()
                    continue
                try:
                    sent, over = await self._wakeup.look(self._next)
                except Unauthenticated:
                    return  # whoever takes the stream up again is told


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """A request for a page or a stream of a job's history. Use as the dependency `Following`."""

    request: Request
    ctx: Context
    caller: Caller
    last_event_id: int | None

    @property
    def is_for_stream(self) -> bool:
        """True when the client asked for events rather than a page."""
        return MEDIA_TYPE in self.request.headers.get("accept", "") and not is_head(self.request)

    async def respond(
        self, part: HistoryPart, job_id: str, read_page: Callable[[int, int], Page], *, after: int
    ) -> Response:
        """Stream what lies behind Last-Event-ID, or else behind `after`. Raises Forbidden, NotFound, TooMany."""
        state = self.request.app.state
        stream = Stream(
            part=part,
            job_id=job_id,
            read_page=read_page,
            ending=JobEndWatcher(partial(job_outputs.read_events, self.ctx, self.caller, job_id)),
            ctx=self.ctx,
            caller=self.caller,
            after=after if self.last_event_id is None else self.last_event_id,
            settings=state.settings,
            wakeup=state.wakeup,
            followed=state.followed_jobs,
            slot=counted(state, state.streams, self.caller),
        )
        return await stream.respond()


async def _stream_request(
    request: Request, ctx: Ctx, caller: User, last_event_id: LastEventId = None
) -> StreamRequest:
    return StreamRequest(request=request, ctx=ctx, caller=caller, last_event_id=last_event_id)


Following = Annotated[StreamRequest, Depends(_stream_request)]


class _LimitedResponse(StreamingResponse):
    """A response that gives its stream's place back, also when the client went away before the first byte."""

    def __init__(self, *content: Any, slot: AbstractContextManager[Any], **how: Any) -> None:
        super().__init__(*content, **how)
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await super().__call__(scope, receive, send)


def _message(item: Item) -> bytes:
    # JSON holds no line feed, so one data line carries the whole item.
    return f"id: {item.id}\ndata: {item.model_dump_json()}\n\n".encode()
