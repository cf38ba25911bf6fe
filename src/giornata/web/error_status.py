"""The HTTP status of each error of ours, and when a refused request may come again."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from giornata.domain.errors import (
    BlobMismatch,
    BlobMissing,
    Conflict,
    FleetRefused,
    FleetUnavailable,
    Forbidden,
    GiornataError,
    IdempotencyMismatch,
    IllegalTransition,
    InstanceGone,
    InvalidInput,
    KeyInFlight,
    LeaseLost,
    NotFound,
    OverBudget,
    OverQuota,
    ProtocolMismatch,
    RateLimited,
    SignInDelayed,
    TooLarge,
    TooMany,
    TooSlow,
    Unauthenticated,
    Unavailable,
    Unreachable,
)

STATUS: Mapping[type[GiornataError], HTTPStatus] = MappingProxyType(
    {
        InvalidInput: HTTPStatus.BAD_REQUEST,
        Unauthenticated: HTTPStatus.UNAUTHORIZED,
        Forbidden: HTTPStatus.FORBIDDEN,
        NotFound: HTTPStatus.NOT_FOUND,
        Conflict: HTTPStatus.CONFLICT,
        IllegalTransition: HTTPStatus.CONFLICT,
        LeaseLost: HTTPStatus.CONFLICT,
        BlobMissing: HTTPStatus.CONFLICT,
        BlobMismatch: HTTPStatus.CONFLICT,
        ProtocolMismatch: HTTPStatus.CONFLICT,
        KeyInFlight: HTTPStatus.CONFLICT,
        IdempotencyMismatch: HTTPStatus.UNPROCESSABLE_ENTITY,
        OverBudget: HTTPStatus.PAYMENT_REQUIRED,
        OverQuota: HTTPStatus.FORBIDDEN,
        TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        InstanceGone: HTTPStatus.NOT_FOUND,
        FleetRefused: HTTPStatus.CONFLICT,
        FleetUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
        TooMany: HTTPStatus.TOO_MANY_REQUESTS,
        RateLimited: HTTPStatus.TOO_MANY_REQUESTS,
        SignInDelayed: HTTPStatus.TOO_MANY_REQUESTS,
        TooSlow: HTTPStatus.REQUEST_TIMEOUT,
        Unreachable: HTTPStatus.SERVICE_UNAVAILABLE,
        Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
        GiornataError: HTTPStatus.INTERNAL_SERVER_ERROR,
    }
)


def wait_header(error: GiornataError) -> dict[str, str]:
    """Return the header that says when the same request may succeed, where the error knows it."""
    return {"Retry-After": str(error.retry_after_s)} if isinstance(error, RateLimited | SignInDelayed) else {}


def status_of(error: GiornataError) -> HTTPStatus:
    """Return the status of the nearest class of the error's own tree that has a row."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
