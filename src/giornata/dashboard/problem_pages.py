"""Pages for what was refused. A page that a person may not see looks as if it were not there."""

import logging
from http import HTTPStatus
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse
from starlette.exceptions import HTTPException

from giornata.dashboard.rendering import render_bare
from giornata.dashboard.visit import ROOT
from giornata.domain.errors import Forbidden, GiornataError, InvalidInput, Unauthenticated
from giornata.web.error_status import status_of, wait_header

log = logging.getLogger("giornata.dashboard")
SIGN_IN = f"{ROOT}/sign-in"
NOT_FOUND = "There is no such page, or you may not see it."


def on_domain_error(request: Request, error: Exception) -> Response:
    """Return the page for one of our errors."""
    assert isinstance(error, GiornataError)  # noqa: S101  (registered for this class alone)
    if isinstance(error, Unauthenticated):
        return _to_sign_in(request)
    status = HTTPStatus.NOT_FOUND if isinstance(error, Forbidden) else status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("%s %s: %s", request.method, request.url.path, error)
    if status == HTTPStatus.NOT_FOUND:
        return _refused(request, status, NOT_FOUND)
    faults = error.faults if isinstance(error, InvalidInput) else ()
    response = _refused(request, status, error.public, faults)
    response.headers.update(wait_header(error))
    return response


def on_http_error(request: Request, error: Exception) -> Response:
    """Return the page for a path or a method that no route has."""
    assert isinstance(error, HTTPException)  # noqa: S101
    return _refused(request, HTTPStatus(error.status_code), NOT_FOUND)


def _refused(request: Request, status: HTTPStatus, sentence: str, faults: object = ()) -> Response:
    if "hx-request" in request.headers:
        return PlainTextResponse(sentence, status)
    return render_bare("problem.html", status=status, title=status.phrase, sentence=sentence, faults=faults)


def _to_sign_in(request: Request) -> Response:
    """Lead to the sign-in, and from there back to the page."""
    if "hx-request" in request.headers:
        return PlainTextResponse("signed out", HTTPStatus.UNAUTHORIZED, {"HX-Redirect": SIGN_IN})
    if request.method != "GET":
        return RedirectResponse(SIGN_IN, HTTPStatus.SEE_OTHER)
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{SIGN_IN}?{urlencode({'next': address})}", HTTPStatus.SEE_OTHER)
