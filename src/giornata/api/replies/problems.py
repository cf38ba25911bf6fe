"""Turn errors into HTTP, here alone: RFC 9457 problem documents with a stable `code`."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from giornata.api.requests.known_query import unknown_query_faults
from giornata.control.timestamps import instant
from giornata.domain.errors import (
    Fault,
    GiornataError,
    InvalidInput,
    NotFound,
    QuotaFault,
    TooLarge,
    TooMany,
)
from giornata.protocol.jobs import FaultReply
from giornata.protocol.model import Reply
from giornata.protocol.project.quotas import QuotaRefusal
from giornata.web.error_status import status_of, wait_header

log = logging.getLogger("giornata.api")

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:giornata:problem:"

# What the framework itself refuses, before one of our errors could be raised.
CODE_OF_STATUS: Mapping[int, str] = MappingProxyType(
    {
        HTTPStatus.BAD_REQUEST: InvalidInput.code,
        HTTPStatus.NOT_FOUND: NotFound.code,
        HTTPStatus.METHOD_NOT_ALLOWED: "method-not-allowed",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: TooLarge.code,
    }
)

RETRY_AFTER_S = 5

_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "int_type": "send a whole number without quotes",
        "float_type": "send a number without quotes",
        "bool_type": "send true or false without quotes",
    }
)


class Problem(Reply):
    """The body of every error response. `code` is stable; `detail` is for people.

    `retryable` says that the very same request may succeed later. `faults` lists all that is wrong with the input.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool = False
    faults: tuple[FaultReply, ...] = ()


class QuotaProblem(Problem):
    """The body of a refusal by limits of the project, alone or among other faults."""

    quotas: tuple[QuotaRefusal, ...]


def problem_of(error: GiornataError) -> Problem:
    """Return the problem document that describes `error`."""
    faults = error.faults if isinstance(error, InvalidInput) else ()
    if isinstance(error, TooMany) and error.quota is not None:
        faults = (error.quota,)
    detail = f"{len(faults)} things are wrong" if len(faults) > 1 else error.public
    problem = _problem(status_of(error), error.code, detail, retryable=error.retryable, faults=faults)
    quotas = tuple(_quota_refusal(fault) for fault in faults if isinstance(fault, QuotaFault))
    return QuotaProblem(**dict(problem), quotas=quotas) if quotas else problem


def _quota_refusal(fault: QuotaFault) -> QuotaRefusal:
    return QuotaRefusal(quota=fault.quota, limit=fault.limit, used=fault.used, free_at=instant(fault.free_at_ms))


def respond(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the reply that carries a problem, with the headers that its status calls for."""
    own = dict(headers or {})
    if problem.status == HTTPStatus.UNAUTHORIZED:
        own["WWW-Authenticate"] = "Bearer"
    if problem.status == HTTPStatus.REQUEST_TIMEOUT:
        own["Connection"] = "close"  # what is still to come would be taken for the next request
    if problem.status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}:
        own.setdefault("Retry-After", str(RETRY_AFTER_S))
    return JSONResponse(problem.model_dump(mode="json"), problem.status, headers=own, media_type=MEDIA_TYPE)


def answer_to(request: Request, error: GiornataError) -> JSONResponse:
    """Return the reply to a request that one of our errors ended; what is not the client's fault is logged."""
    log_defect(request, error)
    return respond(problem_of(error), wait_header(error))


def log_defect(request: Request, error: GiornataError) -> None:
    """Log an error that is not the client's fault."""
    if status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("%s %s: %s", request.method, request.url.path, error)


def internal_problem(request_id: str) -> Problem:
    """Return the answer to a client after a defect of ours: where to look, and nothing of what went wrong."""
    detail = f"the server failed; its log says why under request {request_id}"
    return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, GiornataError.code, detail, retryable=True)


def faults_of(errors: Iterable[Mapping[str, Any]]) -> tuple[Fault, ...]:
    """Return pydantic's errors as faults; `where` is the path in the body, or `query.limit` and the like."""
    return tuple(_fault(error) for error in errors)


def input_faults(request: Request, error: RequestValidationError) -> list[Fault]:
    """Return the faults of a request that the framework refuses, those of its query among them."""
    faults: list[Fault] = []
    for each in error.errors():
        unknown = unknown_query_faults(request, each)
        faults += faults_of([each]) if unknown is None else unknown
    return faults


def install_handlers(app: FastAPI) -> None:
    """Make the app answer every error with a problem document."""
    app.add_exception_handler(GiornataError, _on_domain_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)


def _problem(
    status: HTTPStatus, code: str, detail: str, *, retryable: bool = False, faults: Sequence[Fault] = ()
) -> Problem:
    return Problem(
        type=TYPE_PREFIX + code,
        title=status.phrase,
        status=status,
        detail=detail,
        code=code,
        retryable=retryable,
        faults=tuple(FaultReply(where=fault.where, message=fault.message, hint=fault.hint) for fault in faults),
    )


def _fault(error: Mapping[str, Any]) -> Fault:
    kind, where = error["type"], [str(part) for part in error["loc"]]
    if kind == "json_invalid":
        message = f"not JSON at character {where[-1]}: {error['ctx']['error']}"
        return Fault(where="body", message=message, hint="send one JSON object as application/json")
    if where[0] == "body" and len(where) > 1:
        del where[0]
    if kind == "extra_forbidden":
        return Fault(where=".".join(where), message="there is no such field", hint="see /openapi.json")
    hint = "send JSON with Content-Type: application/json" if where == ["body"] else _HINTS.get(kind, "")
    return Fault(where=".".join(where), message=str(error["msg"]).removeprefix("Value error, "), hint=hint)


def _on_domain_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GiornataError)  # noqa: S101  (registered for this class alone)
    return answer_to(request, error)


def _on_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    return respond(problem_of(InvalidInput(input_faults(request, error))))


def _allowed(request: Request) -> str:
    """Return every method that the path takes: the framework names those of one of its routes only."""
    methods: set[str] = set()
    for template, operations in request.app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), request.url.path):
            methods |= {method.upper() for method in operations}
    methods |= {"HEAD"} if "GET" in methods else set()
    return ", ".join(sorted(methods))


def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101
    status = HTTPStatus(error.status_code)
    code = CODE_OF_STATUS.get(status, status.phrase.lower().replace(" ", "-"))
    details = {
        HTTPStatus.NOT_FOUND: "there is no such path; /openapi.json lists all there are",
        HTTPStatus.METHOD_NOT_ALLOWED: "this path does not take this method; the Allow header says which it takes",
    }
    headers = dict(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = _allowed(request) or headers.get("Allow", "")
    return respond(_problem(status, code, details.get(status, str(error.detail))), headers)
