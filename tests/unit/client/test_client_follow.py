"""Streams that break, and go on."""

import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.client import Backoff, Client
from giornata.client.follow import ServerSentEvent, messages
from giornata.domain.errors import NotFound, Unavailable

AT = "2026-01-01T00:00:00Z"
END = b"event: end\ndata: {}\n\n"


def event(number: int, line: str = "hello") -> bytes:
    body = {"id": number, "attempt": 1, "at": AT, "line": line}
    return f"id: {number}\ndata: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


class Broken(httpx.SyncByteStream):
    """Sends its chunks, and then the connection is gone."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        raise httpx.RemoteProtocolError("peer closed connection")


def client(*answers: httpx.Response | type[httpx.TransportError], retries: int = 3) -> tuple[Client, list[str]]:
    waiting, asked = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["Last-Event-ID"])
        given = waiting.pop(0)
        if isinstance(given, type):
            raise given("said the script", request=request)
        return given

    http = httpx.Client(transport=httpx.MockTransport(answer))
    return Client(
        "http://server.test", "gk_x", http=http, backoff=Backoff(retries=retries, sleep=lambda _: None)
    ), asked


def test_a_broken_stream_goes_on_without_loss_or_repeat() -> None:
    sdk, asked = client(
        httpx.Response(200, stream=Broken(event(1), event(2), event(3)[:20])),
        httpx.ConnectError,
        httpx.Response(503, json={"code": "unavailable", "detail": "starting"}),
        httpx.Response(200, content=event(2) + event(3)),  # closed without an end: the server went away politely
        httpx.Response(200, content=event(4) + END),
    )
    assert [line.id for line in sdk.logs("job_1", follow=True)] == [1, 2, 3, 4]
    assert asked == ["0", "2", "2", "2", "3"]


def test_following_ends_after_the_last_event() -> None:
    sdk, asked = client(httpx.Response(204))
    assert list(sdk.logs("job_1", follow=True, after=7)) == []
    assert asked == ["7"]


def test_a_refusal_is_not_tried_again() -> None:
    sdk, asked = client(httpx.Response(404, json={"code": "not-found", "detail": "no such job"}))
    with pytest.raises(NotFound, match="no such job"):
        list(sdk.events("job_1", follow=True))
    assert len(asked) == 1


def test_a_server_that_stays_away_is_an_error() -> None:
    sdk, asked = client(*[httpx.ConnectError] * 3, retries=2)
    with pytest.raises(Unavailable):
        list(sdk.events("job_1", follow=True))
    assert len(asked) == 3


def test_line_separators_of_other_kinds_are_text() -> None:
    line = "a\u2028b\u0085c\x0bd\x1ce"
    sdk, _ = client(httpx.Response(200, content=event(1, line) + END))
    assert [each.line for each in sdk.logs("job_1", follow=True)] == [line]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))), st.integers(1, 9))
def test_messages_do_not_depend_on_how_they_are_cut(texts: list[str], size: int) -> None:
    stream = b"".join(f": note\nevent: e\ndata: {text}\n\n".encode() for text in texts)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert list(messages(chunks)) == [ServerSentEvent(name="e", data=text) for text in texts]


def test_carriage_returns_and_several_data_lines() -> None:
    assert list(messages([b"data: a\r\n", b"data:b\r\n\r\n", b"data: cut off\n"])) == [
        ServerSentEvent(name="", data="a\nb")
    ]
