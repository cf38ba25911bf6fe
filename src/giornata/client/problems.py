"""Problem documents (RFC 9457) back to the error classes of `giornata.domain.errors`."""

from collections.abc import Iterator
from typing import Any

import httpx

from giornata.domain.errors import (
    Conflict,
    Fault,
    Forbidden,
    GiornataError,
    InvalidInput,
    NotFound,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

# For answers that are no problem documents: a proxy's HTML page, an empty body.
BY_STATUS: dict[int, type[GiornataError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    413: TooLarge,
    425: Unavailable,
    429: Unavailable,
}
LONGEST_QUOTE = 500


def _tree(root: type[GiornataError]) -> Iterator[type[GiornataError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def _by_code(code: str) -> type[GiornataError] | None:
    return next((each for each in _tree(GiornataError) if each.code == code and each is not GiornataError), None)


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _faults(document: dict[str, Any], fallback: str) -> tuple[Fault, ...]:
    listed = document.get("faults")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    faults = tuple(
        Fault(where=str(row.get("where", "")), message=str(row.get("message", "")), hint=str(row.get("hint", "")))
        for row in rows
    )
    return faults or (Fault(where="request", message=fallback),)


def _class_of(response: httpx.Response, document: dict[str, Any]) -> type[GiornataError]:
    named = _by_code(str(document.get("code", "")))
    if named is not None:
        return named
    status = response.status_code
    if status == httpx.codes.CONFLICT and "code" not in document:
        return Unavailable  # ours say what it is that conflicts: this was not ours, or was spoiled on its way
    return BY_STATUS.get(status, Unavailable if status >= 500 else InvalidInput)


def error_of(response: httpx.Response) -> GiornataError:
    """The error that a response of status >= 400 stands for; the body must have been read.

    A known `code` decides, whatever the status; else the status does. 5xx, 408, 425, 429 and a 409 that says nothing
    become Unavailable, which may be tried again.
    """
    document = _document(response)
    said = document.get("detail") or document.get("title") or response.text[:LONGEST_QUOTE].strip()
    message = str(said) if said else f"the server answered {response.status_code}"
    kind = _class_of(response, document)
    if issubclass(kind, InvalidInput):
        return kind(_faults(document, message))
    return kind(message)


def raise_for_problem(response: httpx.Response) -> None:
    """Raise what `error_of` says when the status is 300 or more; a redirect is not followed and is an error."""
    if response.is_success:
        return
    if response.is_redirect:
        place = response.headers.get("location", "?")
        raise Unavailable(f"the server redirects to {place}", hint="Give the URL that it redirects to.")
    raise error_of(response)
