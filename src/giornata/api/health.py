"""Serve `/healthz`, `/readyz` and `/metrics` to the operator's tools. None of them needs a key."""

import logging
from collections.abc import Callable, Mapping, Sequence

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from giornata.api.metrics import Metrics
from giornata.api.replies.openapi import refusals
from giornata.control.loops import LoopStatus
from giornata.domain.errors import GiornataError
from giornata.protocol.model import Reply

log = logging.getLogger("giornata.api")

Check = Callable[[], None]


class Health(Reply):
    """The answer of a process that is up."""

    status: str = "ok"


class LoopHealth(Reply):
    """The state of one of the server's loops."""

    name: str
    runs: int
    errors: int
    last_success_age_s: float
    late: bool


class Readiness(Reply):
    """The readiness of the server to do its work. `checks` says `ok`, or what is wrong."""

    ready: bool
    checks: dict[str, str]
    loops: tuple[LoopHealth, ...] = ()


def health_routes(checks: Mapping[str, Check], loops_status: Callable[[], Sequence[LoopStatus]]) -> APIRouter:
    """Return the routes. A check raises a GiornataError when what it looks at is not well."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz", responses=refusals())
    async def healthz() -> Health:
        """Answer that the process is up."""
        return Health()

    @router.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready; the body says why."}})
    def readyz(response: Response) -> Readiness:
        """Check that the store answers, its schema is current, blobs can be written, and no vital loop is late."""
        said = {name: _asked(check) for name, check in checks.items()}
        loops = tuple(_loop_health(status) for status in loops_status())
        ready = all(answer == "ok" for answer in said.values()) and not any(
            each.late and each.vital for each in loops_status()
        )
        response.status_code = 200 if ready else 503
        return Readiness(ready=ready, checks=said, loops=loops)

    @router.get(
        "/metrics",
        response_class=Response,
        responses=refusals() | {200: {"description": "Prometheus' text format.", "content": {"text/plain": {}}}},
    )
    def metrics(request: Request) -> Response:
        """Return counts and gauges for Prometheus."""
        own: Metrics = request.app.state.metrics
        return Response(own.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def _asked(check: Check) -> str:
    try:
        check()
    except GiornataError as error:
        log.warning("not ready: %s", error)
        return error.public
    return "ok"


def _loop_health(status: LoopStatus) -> LoopHealth:
    return LoopHealth(
        name=status.name,
        runs=status.runs,
        errors=status.errors,
        last_success_age_s=round(status.last_success_age_s, 3),
        late=status.late,
    )
