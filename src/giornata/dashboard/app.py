"""Mount the dashboard on the app of the API: its routes, its static files and its security headers."""

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from anyio import CapacityLimiter
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from giornata.control.access.signing_in.sign_in_links import SignInLinks
from giornata.dashboard import component_pages, fleet_pages, home_pages, reference_pages, sign_in_pages
from giornata.dashboard.job_pages import compare_page, job_page, jobs_pages, sample_sheets, train_page
from giornata.dashboard.picture_pages import gallery_page, generate_page, grid_pages, uploads_page
from giornata.dashboard.problem_pages import on_domain_error, on_http_error
from giornata.dashboard.project_area import account_page, audit_log_page, limit_pages, money_pages, project_pages
from giornata.dashboard.rendering import STATIC, static_url
from giornata.dashboard.shared_parts import SharedParts
from giornata.dashboard.visit import ROOT
from giornata.domain.errors import GiornataError

# `default-src` does not stand for the last three; without them a page would allow more.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)
LEADING = {
    "/": f"{ROOT}/",
    ROOT: f"{ROOT}/",
    "/ui": f"{ROOT}/ui",
    "/docs": f"{ROOT}/api",
    "/invitation": f"{ROOT}/invitation",  # where the links of invitations have always led
}
PAGE_THREADS = 4
FOR_EVER = b"public, max-age=31536000, immutable"

PAGES: Sequence[BaseRoute] = (
    *sign_in_pages.ROUTES,
    *home_pages.ROUTES,
    *jobs_pages.ROUTES,
    *job_page.ROUTES,
    *sample_sheets.ROUTES,
    *compare_page.ROUTES,
    *fleet_pages.ROUTES,
    *generate_page.ROUTES,
    *grid_pages.ROUTES,
    *gallery_page.ROUTES,
    *project_pages.ROUTES,
    *limit_pages.ROUTES,
    *audit_log_page.ROUTES,
    *train_page.ROUTES,
    *component_pages.ROUTES,
    *reference_pages.ROUTES,
    *account_page.ROUTES,
    *money_pages.ROUTES,
    *uploads_page.ROUTES,
)


def mount_dashboard(app: FastAPI, *, links: SignInLinks | None = None) -> None:
    """Add the dashboard below /dashboard to an app of `create_app`; the paths of LEADING lead there.

    `links` are the one-time links that sign the operator of this machine in.
    """
    app.state.page_threads = CapacityLimiter(PAGE_THREADS)
    app.state.upload_threads = CapacityLimiter(uploads_page.MOST_AT_ONCE)
    app.state.sign_in_links = links
    app.state.shared_parts = SharedParts(app.state.context.clock)
    app.state.style_sheet = static_url("dashboard.css")
    # Pages are sent as they are: the length of a compressed page tells of the CSRF token in it (BREACH).
    files = Mount("/static", app=GZipMiddleware(StaticFiles(directory=Path(STATIC)), compresslevel=6))
    pages = Router([*PAGES, files], redirect_slashes=False)
    handled = ExceptionMiddleware(pages, handlers={GiornataError: on_domain_error, HTTPException: on_http_error})
    app.router.routes.insert(app.state.before_pages, sign_in_pages.PLAIN_SIGN_IN)
    for path, target in LEADING.items():
        app.router.routes.append(_leading(path, target))
    # First of all routes: pages that are open ask often, and the routes of the API are many.
    app.router.routes.insert(0, Mount(ROOT, app=_SecurityHeaders(handled)))


def _leading(path: str, target: str) -> Route:
    async def lead(request: Request) -> Response:
        request.scope["route"] = route
        return RedirectResponse(target, HTTPStatus.TEMPORARY_REDIRECT)

    route = Route(path, lead, methods=["GET"], include_in_schema=False)
    return route


class _SecurityHeaders:
    """ASGI middleware that says what a page may load, and for how long a browser may keep it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await PlainTextResponse("this is no page", HTTPStatus.NOT_FOUND)(scope, receive, send)
            return
        is_file = scope["path"].startswith(f"{ROOT}/static/")
        kept = FOR_EVER if is_file and scope["query_string"].startswith(b"v=") else b"no-cache"

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message.get("headers", [])
                known = {name.lower() for name, _ in given}
                added = [*HEADERS, (b"cache-control", kept if is_file else b"no-store")]
                message["headers"] = [*given, *(pair for pair in added if pair[0] not in known)]
            await send(message)

        await self._app(scope, receive, sent)
