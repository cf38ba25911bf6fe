"""What is seen of every request: an access line, a count, and a problem document where we failed."""

import itertools
import json
import logging
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from giornata.api.metrics import Metrics
from giornata.api.problems import internal_problem, respond
from giornata.domain.telemetry import request_id as log_request_id

OF_ATTEMPT, OF_JOB = "/v1/node/attempts/{attempt_id}", "/v1/jobs/{job_id}"

access = logging.getLogger("giornata.access")
log = logging.getLogger("giornata.api")


class Observed:
    """ASGI middleware, around everything else.

    The access line is one JSON object. It holds the route rather than the address, with the id of the job or attempt,
    and no query: signatures and names of objects do not belong in a log.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._origin, self._numbers = secrets.token_hex(8), itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and note how it went."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, status, began_s = f"{self._origin}{next(self._numbers):016x}", 0, time.perf_counter()
        log_request_id.set(request_id)

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception:  # the supervisor of requests
            log.exception("request %s failed: %s %s", request_id, scope["method"], scope["path"])
            if status:
                raise  # the reply has begun: all that is left is to cut the connection
            await respond(internal_problem(request_id))(scope, receive, noting_send)
        finally:
            self._note(scope, status, request_id, time.perf_counter() - began_s)

    def _note(self, scope: Scope, status: int, request_id: str, took_s: float) -> None:
        route, method = getattr(scope.get("route"), "path", "unmatched"), scope["method"]
        self._metrics.requests.observe(route, method, status, took_s)
        line = {
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "took_ms": round(took_s * 1000, 1),
        }
        if route.startswith(OF_ATTEMPT):
            line["attempt"] = scope["path"].split("/", 5)[4]
        elif route.startswith(OF_JOB):
            line["job"] = scope["path"].split("/", 4)[3]
        access.info(json.dumps(line))
