"""A shorter way to the routes by which nodes speak, all day long and thousands at a time, and to submitting a job.

FastAPI's own way, through matching, dependencies and replies, costs more than all the rest of a request. The short
way takes only a request that is plainly in order, and calls the very function that FastAPI would. Whatever else comes
goes the long way, which knows how to refuse it.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Request, Response
from fastapi.params import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from giornata.api.callers import Attempt, User, known_attempt, known_caller
from giornata.api.intake import replayed
from giornata.api.jobs import IdempotencyKey
from giornata.api.problems import answer_to
from giornata.control.context import Context
from giornata.control.submit import IDEMPOTENCY_KEY
from giornata.domain.errors import GiornataError

MEDIA_TYPE = b"application/json"
ATTEMPTS_PATH = "/v1/node/attempts/"
_READ = frozenset({b"authorization", b"content-type", b"idempotency-key", b"x-api-key"})
_OF_AN_ATTEMPT = f"{ATTEMPTS_PATH}{{attempt_id}}/"

Provider = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One route, and the names by which its function takes what it wants."""

    route: APIRoute
    body: tuple[str, type[BaseModel]]
    caller: str | None = None
    attempt_id: str | None = None
    request: str | None = None
    response: str | None = None
    idempotency_key: str | None = None
    provided: Mapping[str, Provider] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return self.route.status_code or HTTPStatus.OK


class Express:
    """ASGI middleware behind `Intake`, before the routes of `routers`."""

    def __init__(self, app: ASGIApp, *, ctx: Context, routers: Iterable[APIRouter]) -> None:
        self._app, self._ctx = app, ctx
        ways = [way for router in routers for route in router.routes if (way := way_of(route)) is not None]
        self._own = {way.route.path: way for way in ways if way.attempt_id is None}
        self._of_attempts = {way.route.path.removeprefix(_OF_AN_ATTEMPT): way for way in ways if way.attempt_id}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        way, attempt_id = self._found(scope)
        if way is None or (asker := self._asker(scope, way, attempt_id)) is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        body = _body(message, way)
        if body is None:
            await self._app(scope, replayed(message, receive), send)
            return
        scope["route"] = way.route
        request = Request(scope, receive, send)
        try:
            reply = await _called(way, request, asker | {way.body[0]: body})
        except GiornataError as error:
            reply = answer_to(request, error)
        await reply(scope, receive, send)

    def _found(self, scope: Scope) -> tuple[Way | None, str]:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return None, ""
        path: str = scope["path"]
        if not path.startswith(ATTEMPTS_PATH):
            return self._own.get(path), ""
        attempt_id, _, verb = path.removeprefix(ATTEMPTS_PATH).partition("/")
        return self._of_attempts.get(verb), attempt_id

    def _asker(self, scope: Scope, way: Way, attempt_id: str) -> dict[str, Any] | None:
        """Who asks, by the name under which the route wants it; None for whoever is not known at once."""
        said = [header for header in scope["headers"] if header[0] in _READ]
        headers = dict(said)
        if len(said) != len(headers) or headers.get(b"content-type") != MEDIA_TYPE:
            return None
        given: dict[str, Any] = {}
        if b"idempotency-key" in headers and way.idempotency_key is not None:
            given[way.idempotency_key] = key = headers[b"idempotency-key"].decode("latin-1")
            if IDEMPOTENCY_KEY.fullmatch(key) is None:
                return None
        scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme != "Bearer":
            return None
        if way.attempt_id is not None:
            return {way.attempt_id: attempt_id} if known_attempt(self._ctx, attempt_id, secret) else None
        caller = known_caller(self._ctx, secret)
        return None if caller is None or way.caller is None else given | {way.caller: caller}


def way_of(route: object) -> Way | None:
    """The short way of a route that wants nothing but a body, who asks, and what the app itself provides."""
    if not isinstance(route, APIRoute) or route.methods != {"POST"}:
        return None
    wanted: dict[str, Any] = {"provided": {}}
    for name, hint in get_type_hints(route.endpoint, include_extras=True).items():
        if name == "return":
            continue
        if hint in (User, Attempt):
            wanted["caller" if hint == User else "attempt_id"] = name
        elif (model := _model(hint)) is not None:
            wanted["body"] = (name, model)
        elif hint == IdempotencyKey:
            wanted["idempotency_key"] = name
        elif hint in (Request, Response):
            wanted["request" if hint is Request else "response"] = name
        elif (provider := _provider(hint)) is not None:
            wanted["provided"][name] = provider
        else:
            return None
    return Way(route=route, **wanted) if "body" in wanted else None


def _model(hint: Any) -> type[BaseModel] | None:
    """The model of a body, which comes as `Json[…]`."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return kind if inspect.isclass(kind) and issubclass(kind, BaseModel) else None


def _provider(hint: Any) -> Provider | None:
    """The dependency of an annotation, if all that it asks for is the request."""
    if get_origin(hint) is not Annotated:
        return None
    dependency = next((each.dependency for each in get_args(hint)[1:] if isinstance(each, Depends)), None)
    if dependency is None or not inspect.iscoroutinefunction(dependency):
        return None
    return dependency if list(inspect.signature(dependency).parameters) == ["request"] else None


def _body(message: Mapping[str, Any], way: Way) -> BaseModel | None:
    if message["type"] != "http.request":
        return None
    try:
        return way.body[1].model_validate_json(message["body"], strict=True)
    except ValidationError:
        return None


async def _called(way: Way, request: Request, given: dict[str, Any]) -> Response:
    for name, provider in way.provided.items():
        given[name] = await provider(request)
    if way.request is not None:
        given[way.request] = request
    says = Response()  # what the route has to say besides its reply
    if way.response is not None:
        given[way.response] = says
    endpoint = way.route.endpoint
    if inspect.iscoroutinefunction(endpoint):
        reply = await endpoint(**given)
    else:
        reply = await run_in_threadpool(endpoint, **given)
    content = None if reply is None else reply.model_dump_json(by_alias=True)
    status = way.status if way.response is None else says.status_code
    headers = {name: value for name, value in says.headers.items() if name != "content-length"}
    return Response(content, status, headers, media_type=MEDIA_TYPE.decode())
