"""Wait for an order's end inside a request: the `Prefer` header (RFC 7240), and how long it is heeded."""

from collections.abc import Callable, Sequence
from typing import Annotated

import anyio
from fastapi import Header, Request

from giornata.api.settings import ApiSettings
from giornata.api.wakeup import Wakeup
from giornata.domain.jobs.job import TERMINAL, JobState

MAX_WAIT_S = 300

Prefer = Annotated[
    list[str] | None,
    Header(
        max_length=16,
        description=f"`wait=60`: reply when all pictures are done, or after 60 seconds. Maximum: {MAX_WAIT_S}.",
    ),
]


def preferred_wait_s(headers: Sequence[str]) -> int | None:
    """Return the seconds that a client wants to wait; None when no header says. The first one counts, and what
    cannot be read is left aside, as RFC 7240 has it."""
    for preference in ",".join(headers).split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        seconds = value.strip().strip('"')
        if name.strip().lower() == "wait" and seconds.isascii() and seconds.isdigit():
            return min(int(seconds[:9]), MAX_WAIT_S)
    return None


async def wait_until_ended(request: Request, read_state: Callable[[], JobState], *, wait_s: float) -> JobState:
    """Return the state of an order when it has ended, or else after `wait_s`. A client that leaves, and a server that
    closes, end the wait too. `read_state` is synchronous.
    """
    wakeup: Wakeup = request.app.state.wakeup
    settings: ApiSettings = request.app.state.settings
    ends_s = anyio.current_time() + wait_s
    with wakeup.listen() as listener:
        while True:
            reached = await wakeup.look(read_state)
            left_s = ends_s - anyio.current_time()
            if reached in TERMINAL or left_s <= 0 or wakeup.closed or await request.is_disconnected():
                return reached
            await listener.wait(min(left_s, settings.stream_poll_s))
