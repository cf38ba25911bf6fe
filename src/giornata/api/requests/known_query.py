"""Refuse query parameters that the route does not know: each is a fault, listed with all the others."""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Header, Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from giornata.domain.errors import Fault

# A header carries what is unknown to where the framework collects faults. A client that sends the header is refused.
HEADER = "x-giornata-unknown-query"
MOST_SAID, LONGEST_SAID = 20, 64


async def only_known_query(
    unknown: Annotated[str | None, Header(alias=HEADER, max_length=0, include_in_schema=False)] = None,
) -> None:
    """Make every route refuse unknown parameters: this dependency's header is wrong when the query holds one."""


class KnownQuery:
    """ASGI middleware that looks at the queries of requests to `routers`, and marks requests with unknown names.

    Signed URLs are not among them: their signature covers the whole query.
    """

    def __init__(self, app: ASGIApp, *, routers: Iterable[APIRouter]) -> None:
        self._app = app
        self._routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a header that names its unknown parameters, if there are any."""
        if scope["type"] == "http" and scope["query_string"]:
            unknown = self._unknown(scope)
            if unknown:
                mark = (HEADER.encode(), json.dumps(unknown).encode())
                scope["headers"] = [*scope["headers"], mark]
        await self._app(scope, receive, send)

    def _unknown(self, scope: Scope) -> list[list[str]]:
        """Return [name, hint] of each parameter that the route does not have."""
        known = self._known(scope["method"], scope["path"])
        if known is None:
            return []
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        names = [name for name in dict(given) if name not in known]
        return [[name[:LONGEST_SAID], _hint(name, known)] for name in names[:MOST_SAID]]

    def _known(self, method: str, path: str) -> list[str] | None:
        for route in self._routes:
            if method in (route.methods or ()) and route.path_regex.match(path):
                return sorted(param.alias for param in route.dependant.query_params)
        return None


def unknown_query_faults(request: Request, error: Mapping[str, Any]) -> list[Fault] | None:
    """Return the faults that the mark stands for; None for an error that is not about the mark."""
    if tuple(error["loc"]) != ("header", HEADER):
        return None
    try:
        unknown = json.loads(request.headers.getlist(HEADER)[-1])
        message = "there is no such parameter"
        return [Fault(where=f"query.{name}", message=message, hint=hint) for name, hint in unknown]
    except (ValueError, TypeError):
        return [Fault(where=f"header.{HEADER}", message="is the server's own header", hint="leave it out")]


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"this route takes {', '.join(known)}" if known else "this route takes no parameters"
