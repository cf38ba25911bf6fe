"""Follows a job's events, log lines or pictures over a connection that may break, without loss or repeat."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from giornata.client.connection import Connection
from giornata.domain.errors import GiornataError, Unavailable
from giornata.protocol.jobs import Event, LogLine
from giornata.protocol.orders.order_pictures import OrderPicture

I = TypeVar("I", Event, LogLine, OrderPicture)  # noqa: E741

MAX_MESSAGE_BYTES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSentEvent:
    """One message of a stream. `name` is empty for an unnamed one."""

    name: str
    data: str


def follow(connection: Connection, path: str, item: type[I], *, after: int) -> Iterator[I]:
    """Every item behind `after`, until the job has ended or is paused, and all was sent.

    Connects again where it stopped whenever the stream breaks. Raises the server's error, and Unavailable when it
    stays away for longer than the backoff lasts.
    """
    failures = 0
    while True:
        try:
            with connection.stream(path, after=after) as response:
                if response.status_code == 204:
                    return
                for message in messages(response.iter_bytes()):
                    if message.name == "end":
                        return
                    got = _parsed(message, item)
                    if got.id > after:
                        after, failures = got.id, 0
                        yield got
        except GiornataError as error:
            failures += 1
            if not error.retryable or failures > connection.backoff.retries:
                raise
        connection.backoff.pause(max(1, failures))


def messages(chunks: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """The messages of a stream of server-sent events (WHATWG HTML, section 9.2.6). Comments are left out."""
    name, data = "", list[str]()
    for line in _lines(chunks):
        if not line:
            if data:
                yield ServerSentEvent(name=name, data="\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    # By line feeds alone: a log line may hold what str.splitlines takes for the end of a line, such as U+2028.
    decode, rest = codecs.getincrementaldecoder("utf-8")("replace").decode, ""
    for chunk in chunks:
        *whole, rest = (rest + decode(chunk)).split("\n")
        if len(rest) > MAX_MESSAGE_BYTES:
            raise Unavailable("the event stream sent a line that is too long")
        yield from (line.removesuffix("\r") for line in whole)


def _parsed(message: ServerSentEvent, item: type[I]) -> I:
    try:
        return item.model_validate_json(message.data)
    except ValidationError as error:
        raise Unavailable(f"the event stream sent something that is not {item.__name__}: {error}") from error
