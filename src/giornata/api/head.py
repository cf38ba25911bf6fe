"""HEAD works wherever GET does: the same status and headers, and no body (RFC 9110, section 9.3.2)."""

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from giornata.api.intake import BLOBS_PATH

_IS_HEAD = "giornata.head"


class Head:
    """ASGI middleware. The routes behind it see a GET; those of blobs, whose bodies are large, see the HEAD."""

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
    """Whether the client wants headers alone, though the method says GET."""
    return bool(request.scope.get(_IS_HEAD))
