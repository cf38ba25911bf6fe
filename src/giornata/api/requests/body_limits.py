"""Limits of requests: bounded bodies, text that every layer below can hold, and JSON as the standard has it.

HEAD works wherever GET does, with the same status and headers and no body (RFC 9110, section 9.3.2).
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from giornata.api.replies import openai_errors
from giornata.api.replies.problems import problem_of, respond
from giornata.api.requests.connection import BodyPace
from giornata.domain.errors import Fault, GiornataError, InvalidInput, TooLarge
from giornata.web.streaming import BLOBS_PATH, DRAINED_BYTES, is_streamed

DATASETS_PATH = "/v1/datasets"
ORDER_PATHS = ("/v1/jobs", "/v1/jobs:estimate", "/v1/generations")
"""Where an order of thousands of prompts may come."""
# Nothing but these bytes can make a JSON document that Python reads and that the standard, or a database, does not.
_SUSPECTS = (b"\\u0000", b"\\ud", b"\\uD", b"NaN", b"Infinity", b"\x00")
# An exponent of three digits, or hundreds of digits in a row (looked at from their first one only: a body full of
# nearly as many must not cost more than it weighs).
_LARGE = re.compile(rb"[0-9][eE]\+?[0-9]{3}|(?<![0-9])[0-9]{300}")
_IS_HEAD = "giornata.head"


class BodyLimits:
    """ASGI middleware that reads the whole body, at most `max_json_bytes`, before the app sees the request.

    A path of `max_bytes_by_path` may have as many bytes as that says.

    Bytes for `/v1/blobs/` and for uploads of pages pass by: they are streamed, and bounded by what the upload was
    opened for. All of them have to keep the `pace`.
    """

    def __init__(
        self, app: ASGIApp, *, max_json_bytes: int, max_bytes_by_path: Mapping[str, int], pace: BodyPace
    ) -> None:
        self._app, self._pace = app, pace
        self._max_json_bytes, self._max_bytes_by_path = max_json_bytes, max_bytes_by_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with the problem that it has."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            _check_address(scope)
            receive = self._pace.kept(receive)
            if not is_streamed(scope["method"], scope["path"]):
                most = self._max_bytes_by_path.get(scope["path"], self._max_json_bytes)
                receive = await self._bounded(receive, most)
        except GiornataError as error:
            close = {"Connection": "close"}
            openai = scope["path"].startswith(openai_errors.PATHS)
            reply = openai_errors.error_reply(error, close) if openai else respond(problem_of(error), close)
            await reply(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _bounded(self, receive: Receive, most_bytes: int) -> Receive:
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return replayed(message, receive)
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > most_bytes:
                await drain(receive, more=more)
                raise TooLarge(f"the body is larger than {most_bytes} bytes; send less at once")
        check_json_text(bytes(body))
        return replayed({"type": "http.request", "body": bytes(body), "more_body": False}, receive)


async def drain(receive: Receive, *, more: bool) -> None:
    """Read what the client still sends, up to DRAINED_BYTES, and forget it.

    A client that is cut off while it sends may never get to read why.
    """
    drained_bytes = 0
    while more and drained_bytes < DRAINED_BYTES:
        message = await receive()
        drained_bytes += len(message.get("body", b""))
        more = message.get("more_body", False)


def check_json_text(body: bytes) -> None:
    """Raise InvalidInput for NaN, infinities (also 1e999), NUL characters and lone surrogates in a JSON body.

    A body that is not JSON at all is left to whoever parses it.
    """
    if not any(suspect in body for suspect in _SUSPECTS) and _LARGE.search(body) is None:
        return
    try:
        value = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return
    _check_strings(value)


def _check_address(scope: Scope) -> None:
    # Databases refuse the one, and no route matches the other.
    if "\x00" in scope["path"] or "\n" in scope["path"] or b"%00" in scope["query_string"]:
        message = "a NUL character or a line break has no place in an address"
        raise InvalidInput([Fault(where="path", message=message)])


def _check_strings(value: Any) -> None:
    # A stack of our own: the depth of what came in is not ours to trust.
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and not _plain(item):
            message = f"{item[:40]!r} holds a NUL character or half of a surrogate pair"
            raise InvalidInput([Fault(where="body", message=message, hint="send plain Unicode text")])


def _plain(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidInput([Fault(where="body", message=f"{name} is not JSON", hint="leave the field out")])


def replayed(first: Message, receive: Receive) -> Receive:
    """Return `receive`, with a message before it that was received already."""
    waiting = [first]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InvalidInput([Fault(where="body", message=f"{digits[:40]} is too large a number")])
    return value


class Head:
    """ASGI middleware that shows routes a GET for a HEAD; those of blobs, whose bodies are large, see the HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and leave the body of the reply out."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].startswith(BLOBS_PATH):
            await self._app(scope, receive, send)
            return

        async def send_bodiless(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        # The server that runs the app looks at its own scope, and must find the HEAD there.
        as_get: Scope = {**scope, "method": "GET", _IS_HEAD: True}
        try:
            await self._app(as_get, receive, send_bodiless)
        finally:
            scope.update({name: as_get[name] for name in ("route",) if name in as_get})


def is_head(request: Request) -> bool:
    """Return True when the client wants headers alone, though the method says GET."""
    return bool(request.scope.get(_IS_HEAD))
