"""A shorter way for the requests that nodes send all day long and thousands at a time, and for submitting a job.

FastAPI's matching, dependencies and replies cost more than all the rest of such a request. The short way takes only a
request that is plainly in order, and calls the same function that FastAPI calls. Every other request goes on to
FastAPI, which knows how to refuse it.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from giornata.api.replies.problems import answer_to
from giornata.api.requests.body_limits import replayed
from giornata.api.requests.callers import known_attempt, known_caller
from giornata.control.context import Context
from giornata.control.jobs.submission.submit import IDEMPOTENCY_KEY
from giornata.domain.errors import GiornataError
from giornata.domain.protocol_versions import UNSAID
from giornata.protocol import PROTOCOL_HEADER, SPOKEN, VERSION
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.node_checks import NodeChecks
from giornata.protocol.node.pictures import PictureResults, PictureUploads
from giornata.protocol.node.work import (
    Claim,
    CommitArtifact,
    CommitCheckpoint,
    CompleteAttempt,
    FailAttempt,
    Heartbeat,
    LogLines,
    MetricBatch,
    NoticeReport,
    ReleaseAttempt,
)
from giornata.protocol.uploads import UploadRequest
from giornata.web.request_limits import counted_at_once
from giornata.web.visitors import origin_of

MEDIA_TYPE = b"application/json"
ATTEMPTS_PATH = "/v1/node/attempts/"
_NEGOTIATED = frozenset({"/v1/node/claim", "/v1/node/checks"})
_OF_AN_ATTEMPT = f"{ATTEMPTS_PATH}{{attempt_id}}/"
# The body of each route that has a short way, by its path.
BODIES: Mapping[str, type[BaseModel]] = {
    "/v1/jobs": SubmitJob,
    "/v1/node/claim": Claim,
    "/v1/node/checks": NodeChecks,
    f"{_OF_AN_ATTEMPT}heartbeat": Heartbeat,
    f"{_OF_AN_ATTEMPT}log": LogLines,
    f"{_OF_AN_ATTEMPT}metrics": MetricBatch,
    f"{_OF_AN_ATTEMPT}notice": NoticeReport,
    f"{_OF_AN_ATTEMPT}uploads": UploadRequest,
    f"{_OF_AN_ATTEMPT}checkpoints": CommitCheckpoint,
    f"{_OF_AN_ATTEMPT}artifacts": CommitArtifact,
    f"{_OF_AN_ATTEMPT}picture-uploads": PictureUploads,
    f"{_OF_AN_ATTEMPT}pictures": PictureResults,
    f"{_OF_AN_ATTEMPT}complete": CompleteAttempt,
    f"{_OF_AN_ATTEMPT}fail": FailAttempt,
    f"{_OF_AN_ATTEMPT}release": ReleaseAttempt,
}
_PROTOCOL, _SPOKEN, _UNSAID = PROTOCOL_HEADER.lower().encode(), str(SPOKEN).encode(), UNSAID.encode()
_READ = frozenset({b"authorization", b"content-type", b"idempotency-key", b"x-api-key", _PROTOCOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class FastRoute:
    """A route, the model of its body, and the names of its function's parameters, all of which `_called` knows."""

    route: APIRoute
    body: type[BaseModel]
    parameters: tuple[str, ...]
    waits: bool  # the function is a coroutine
    of_an_attempt: bool
    headers: Mapping[str, str]  # of each reply
    is_logged: bool  # in the audit log, with the place that the request came from


class FastNodeRoutes:
    """ASGI middleware behind `BodyLimits`, before the routes of `routers`."""

    def __init__(self, app: ASGIApp, *, ctx: Context, routers: Iterable[APIRouter]) -> None:
        self._app, self._ctx = app, ctx
        routes = [
            _fast(route)
            for router in routers
            for route in router.routes
            if isinstance(route, APIRoute) and route.path in BODIES and route.methods == {"POST"}
        ]
        self._routes = {each.route.path.replace(_OF_AN_ATTEMPT, ATTEMPTS_PATH): each for each in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        fast, attempt_id = self._found(scope)
        if fast is None or (asker := self._asker(scope, fast, attempt_id)) is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        body = _body(message, fast)
        request = Request(scope, receive, send)
        try:
            if body is None or not (fast.of_an_attempt or counted_at_once(scope, self._ctx, asker["caller"])):
                await self._app(scope, replayed(message, receive), send)
                return
            scope["route"] = fast.route
            reply = await self._called(fast, request, asker | {"body": body})
        except GiornataError as error:
            reply = answer_to(request, error)
        await reply(scope, receive, send)

    def _found(self, scope: Scope) -> tuple[FastRoute | None, str]:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return None, ""
        path: str = scope["path"]
        if not path.startswith(ATTEMPTS_PATH):
            return self._routes.get(path), ""
        attempt_id, _, verb = path.removeprefix(ATTEMPTS_PATH).partition("/")
        return self._routes.get(ATTEMPTS_PATH + verb), attempt_id

    def _asker(self, scope: Scope, fast: FastRoute, attempt_id: str) -> dict[str, Any] | None:
        """Return the parameters that say who asks; None when that cannot be told without the database."""
        said = [header for header in scope["headers"] if header[0] in _READ]
        headers = dict(said)
        if len(said) != len(headers) or headers.get(b"content-type") != MEDIA_TYPE:
            return None
        if fast.headers and headers.get(_PROTOCOL, _UNSAID) != _SPOKEN:
            return None
        given: dict[str, Any] = {"idempotency_key": None}
        if b"idempotency-key" in headers and "idempotency_key" in fast.parameters:
            given["idempotency_key"] = key = headers[b"idempotency-key"].decode("latin-1")
            if IDEMPOTENCY_KEY.fullmatch(key) is None:
                return None
        scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme != "Bearer":
            return None
        if fast.of_an_attempt:
            return given | {"attempt_id": attempt_id} if known_attempt(self._ctx, attempt_id, secret) else None
        caller = known_caller(self._ctx, secret)
        return None if caller is None else given | {"caller": caller}

    async def _called(self, fast: FastRoute, request: Request, given: dict[str, Any]) -> Response:
        state, says = request.app.state, Response(headers=fast.headers)  # what the route has to say besides its reply
        given |= {"ctx": self._ctx, "request": request, "response": says}
        given |= {"settings": state.settings, "wakeup": state.wakeup}
        if fast.is_logged:
            given["caller"] = replace(given["caller"], origin=origin_of(request))
        arguments = {name: given[name] for name in fast.parameters}
        if fast.waits:
            reply = await fast.route.endpoint(**arguments)
        else:
            reply = await run_in_threadpool(fast.route.endpoint, **arguments)
        content = None if reply is None else reply.model_dump_json(by_alias=True)
        usual = fast.route.status_code or HTTPStatus.OK
        status = says.status_code if "response" in fast.parameters else usual
        headers = {name: value for name, value in says.headers.items() if name != "content-length"}
        return Response(content, status, headers, media_type=MEDIA_TYPE.decode())


def _fast(route: APIRoute) -> FastRoute:
    return FastRoute(
        route=route,
        body=BODIES[route.path],
        parameters=tuple(inspect.signature(route.endpoint).parameters),
        waits=inspect.iscoroutinefunction(route.endpoint),
        of_an_attempt=route.path.startswith(_OF_AN_ATTEMPT),
        headers={PROTOCOL_HEADER: str(VERSION)} if route.path in _NEGOTIATED else {},
        is_logged=BODIES[route.path] is SubmitJob,
    )


def _body(message: Mapping[str, Any], fast: FastRoute) -> BaseModel | None:
    if message["type"] != "http.request":
        return None
    try:
        return fast.body.model_validate_json(message["body"], strict=True)
    except ValidationError:
        return None
