"""Errors become problem documents, and come back as what they were."""

import httpx
import pytest

from giornata.api.replies.problems import problem_of, respond
from giornata.client.problems import error_of
from giornata.domain.errors import Fault, GiornataError, InvalidInput, TooMany, Unavailable
from giornata.web.error_status import STATUS


def tree(kind: type[GiornataError]) -> list[type[GiornataError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in tree(child))]


def made(kind: type[GiornataError]) -> GiornataError:
    if issubclass(kind, InvalidInput):
        return kind([Fault(where="a", message="is b", hint="do c"), Fault(where="d", message="is e")])
    return kind("because of this")


ERRORS = [kind for kind in tree(GiornataError) if kind.__module__ == GiornataError.__module__]


def test_every_error_has_a_status_of_its_own() -> None:
    assert set(STATUS) == set(ERRORS)


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind is not GiornataError])
def test_an_error_survives_the_way(kind: type[GiornataError]) -> None:
    error = made(kind)
    reply = respond(problem_of(error))
    back = error_of(httpx.Response(reply.status_code, content=reply.body, headers=dict(reply.headers)))
    assert type(back) is kind
    assert getattr(back, "faults", None) == getattr(error, "faults", None)
    if not isinstance(error, InvalidInput):
        assert str(back) == str(error)


def test_problem_codes_and_their_http_statuses_are_stable() -> None:
    rows = {kind.code: int(STATUS[kind]) for kind in ERRORS}
    assert rows == {
        "internal": 500,
        "invalid-input": 400,
        "unauthenticated": 401,
        "forbidden": 403,
        "not-found": 404,
        "conflict": 409,
        "illegal-transition": 409,
        "lease-lost": 409,
        "protocol-mismatch": 409,
        "blob-missing": 409,
        "blob-mismatch": 409,
        "idempotency-in-flight": 409,
        "idempotency-mismatch": 422,
        "over-budget": 402,
        "over-quota": 403,
        "too-large": 413,
        "unavailable": 503,
        "unreachable": 503,
        "instance-gone": 404,
        "fleet-refused": 409,
        "fleet-unavailable": 503,
        "too-many": 429,
        "rate-limited": 429,
        "sign-in-delayed": 429,
        "too-slow": 408,
    }


def test_problem_of_retryable_error_has_retry_after_header() -> None:
    for error in (Unavailable("busy"), TooMany("full")):
        problem = problem_of(error)
        assert problem.retryable
        assert respond(problem).headers["retry-after"] == "5"
