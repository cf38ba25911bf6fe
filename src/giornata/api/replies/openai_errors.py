"""Errors in OpenAI's shape, for the routes whose clients expect it."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi.responses import JSONResponse

from giornata.api.replies.problems import RETRY_AFTER_S, problem_of
from giornata.domain.errors import GiornataError, InvalidInput
from giornata.protocol.orders.openai_images import ImageError, ImageErrorReply
from giornata.web.error_status import status_of, wait_header

PATHS = "/v1/images/"
TYPES = MappingProxyType(
    {HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error", HTTPStatus.PAYMENT_REQUIRED: "insufficient_quota"}
)
CODES = MappingProxyType(
    {
        "unauthenticated": "invalid_api_key",
        "over-budget": "insufficient_quota",
        "over-quota": "insufficient_quota",
        "rate-limited": "rate_limit_exceeded",
    }
)
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ImageErrorReply, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 402, 403, 408, 409, 413, 429, 500, 503)
}
"""The `responses` of a route in OpenAI's shape."""


def error_reply(error: GiornataError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the reply to a request that this error ended.

    OpenAI's clients repeat requests after 409 and 5xx. A repeat makes another order, so that the reply says when it
    may help.
    """
    status, faults = status_of(error), error.faults if isinstance(error, InvalidInput) else ()
    kind = TYPES.get(status, "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error")
    problem = problem_of(error)
    said = ImageError(
        message="; ".join(map(str, faults)) or problem.detail,
        type=kind,
        param=faults[0].where if faults else None,
        code=CODES.get(problem.code, problem.code),
    )
    again = status is HTTPStatus.TOO_MANY_REQUESTS
    retry = {"x-should-retry": str(again).lower()} | ({"Retry-After": str(RETRY_AFTER_S)} if again else {})
    retry |= wait_header(error)
    return JSONResponse(ImageErrorReply(error=said).model_dump(), status, headers={**retry, **(headers or {})})
