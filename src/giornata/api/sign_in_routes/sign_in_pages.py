"""Pages for a browser: sign in, come back from the OpenID provider, and approve a device.

They hold no script and no style. A dashboard may take their place: all that they decide is in the use cases.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from giornata.api.replies.problems import input_faults, log_defect, problem_of
from giornata.api.requests.callers import (
    Ctx,
    Settings,
)
from giornata.api.requests.forms import Fields, message_of
from giornata.api.settings import ApiSettings
from giornata.control.access import me
from giornata.control.access.authenticate import signed_in
from giornata.control.access.signing_in import device_sign_in, oidc_sign_in, sessions, sign_in
from giornata.control.access.signing_in.oidc_sign_in import ProviderCallback
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.domain.accounts.sign_in import local_path
from giornata.domain.errors import Forbidden, GiornataError, InvalidInput, SignInDelayed, Unauthenticated
from giornata.protocol.account.people import SignIn
from giornata.protocol.account.sign_in import ApproveDevice, BeginSignIn, DeviceRequest, FindDevice
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.web.addresses import CALLBACK_PATH, DEVICE_PATH, SIGN_IN_PATH, page_url
from giornata.web.error_status import status_of
from giornata.web.session_cookies import provider_cookie, session_secret, set_cookie, set_provider_cookie
from giornata.web.visitors import visitor_of, with_password, with_provider

SEE_OTHER = 303
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
}


class PageRoute(APIRoute):
    """A route whose errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its errors turned into pages."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _error_page(request, InvalidInput(input_faults(request, error)))
            except GiornataError as error:
                return _error_page(request, error)

        return handled


router = APIRouter(route_class=PageRoute, include_in_schema=False)
Text = Annotated[str, Query(max_length=4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVisitor:
    """The person whose session came with a request for a page."""

    caller: Caller
    csrf_token: str
    email: str


def _visitor(request: Request, ctx: Ctx) -> PageVisitor | None:
    secret = session_secret(request)
    try:
        caller = None if secret is None else signed_in(ctx, secret, None)
        if secret is None or caller is None:
            return None
        person = sessions.read_session(ctx, caller, secret).user
    except Unauthenticated:
        return None
    return PageVisitor(caller=caller, csrf_token=sessions.csrf_token(secret), email=person.email)


def _callback(
    state: Text = "", code: Text = "", error: Text = "", iss: Annotated[str | None, Query(max_length=512)] = None
) -> ProviderCallback:
    return ProviderCallback(state=state, code=code, error=error, issuer=iss)


Callback = Annotated[ProviderCallback, Depends(_callback)]
Visit = Annotated[PageVisitor | None, Depends(_visitor)]


@router.get(SIGN_IN_PATH)
def sign_in_page(request: Request, ctx: Ctx, visit: Visit, return_to: Text = "") -> HTMLResponse:
    """Show a form for address and password, and the way to the provider if there is one."""
    path = escape(local_path(return_to), quote=True)
    said = "" if visit is None else f"<p>You are signed in as {escape(visit.email)}.</p>"
    name = oidc_sign_in.provider_name(ctx)
    provider = ""
    if name is not None:
        target = f"{SIGN_IN_PATH}/provider?return_to={quote(local_path(return_to), safe='')}"
        provider = f'<p><a href="{escape(target, quote=True)}">Sign in with {escape(name)}</a></p>'
    form = f"""{said}{provider}<form method="post" action="{SIGN_IN_PATH}">
<input type="hidden" name="return_to" value="{path}">
<p><label>Mail address <input name="email" type="email" autocomplete="username" required></label></p>
<p><label>Password <input name="password" type="password" autocomplete="current-password" required></label></p>
<p><button class="button">Sign in</button></p></form>"""
    return _page(request, "Sign in", form)


@router.post(SIGN_IN_PATH)
async def sign_in_by_form(request: Request, ctx: Ctx, settings: Settings, fields: Fields) -> RedirectResponse:
    """Sign in with address and password, and go on to `return_to`."""
    _require_own_form(request, settings)
    person = message_of(SignIn, {name: fields.get(name, "") for name in ("email", "password")})
    earlier = session_secret(request)
    opened = await with_password(request, partial(sign_in.sign_in, ctx, person, visitor_of(request), earlier=earlier))
    response = _to(local_path(fields.get("return_to")))
    set_cookie(request, response, opened)
    return response


@router.get(f"{SIGN_IN_PATH}/provider")
async def go_to_provider(request: Request, ctx: Ctx, return_to: Text = "") -> RedirectResponse:
    """Send the browser to the OpenID provider."""
    asked, redirect_uri = BeginSignIn(return_to=local_path(return_to)), page_url(request, CALLBACK_PATH)
    begin = partial(oidc_sign_in.begin_oidc, ctx, asked, redirect_uri=redirect_uri, caller=None)
    pending = await with_provider(request, begin)
    response = _to(pending.authorization_url)
    set_provider_cookie(request, response, pending.cookie)
    return response


@router.get(CALLBACK_PATH)
async def come_back(request: Request, ctx: Ctx, callback: Callback) -> RedirectResponse:
    """Take the browser back from the provider, signed in."""
    finish = partial(
        oidc_sign_in.finish_oidc,
        ctx,
        callback,
        visitor_of(request),
        cookie=provider_cookie(request),
        earlier=session_secret(request),
    )
    done = await with_provider(request, finish)
    response = _to(done.return_to)
    set_provider_cookie(request, response, "")
    set_cookie(request, response, done.opened)
    return response


@router.get(DEVICE_PATH)
def device_page(request: Request, visit: Visit, user_code: Annotated[str, Query(max_length=32)] = "") -> Response:
    """Show a form for the code of a device."""
    if visit is None:
        return _to_sign_in(request)
    form = f"""<p>You are signed in as {escape(visit.email)}.</p>
<form method="post" action="{DEVICE_PATH}">{_hidden(csrf_token=visit.csrf_token)}
<p><label>Code that your device shows
<input name="user_code" value="{escape(user_code, quote=True)}" autocomplete="off" required></label></p>
<p><button class="button">Continue</button></p></form>"""
    return _page(request, "Sign a device in", form)


@router.post(DEVICE_PATH)
def confirm_device(request: Request, ctx: Ctx, visit: Visit, fields: Fields) -> Response:
    """Show what the device asks for, or do what the person decided."""
    if visit is None:
        return _to_sign_in(request)
    _require_csrf(visit, fields)
    asked, visitor = message_of(FindDevice, {"user_code": fields.get("user_code", "")}), visitor_of(request)
    decision = fields.get("decision")
    if decision == "approve":
        chosen = {name: fields[name] for name in ("user_code", "project_id") if fields.get(name)}
        done = device_sign_in.approve_device(ctx, visit.caller, message_of(ApproveDevice, chosen), visitor)
        scopes = escape(" ".join(done.scopes))
        said = f"<p>{escape(done.host_name)} may use the project {escape(done.project_id or '')}: {scopes}.</p>"
        return _page(request, "The device is signed in", said + "<p>You may close this page.</p>")
    if decision == "deny":
        device_sign_in.deny_device(ctx, visit.caller, asked, visitor)
        return _page(request, "The device is not signed in", "<p>You may close this page.</p>")
    found = device_sign_in.find_device(ctx, visit.caller, asked, visitor)
    return _page(request, "Sign this device in?", _question(ctx, visit, found))


def _question(ctx: Context, visit: PageVisitor, found: DeviceRequest) -> str:
    age_s = max(0, ctx.clock.now_ms() // 1000 - int(found.created_at.timestamp()))
    rows = {
        "Code": found.user_code,
        "Device": f"{found.host_name} (as it says itself)",
        "Address": found.address,
        "Asked": f"{age_s} seconds ago",
        "Asks for": " ".join(found.scopes),
        "For": f"{found.key_expires_in_s // 86_400} days" if found.key_expires_in_s >= 86_400 else "less than a day",
    }
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows.items())
    hidden = _hidden(csrf_token=visit.csrf_token, user_code=found.user_code)
    return f"""<p>Approve only a device that you have just started yourself, and that shows this very code.
It will act as {escape(visit.email)}.</p><dl class="details">{shown}</dl>
<form method="post" action="{DEVICE_PATH}">{hidden}{_projects(ctx, visit, found)}
<p><button class="button" name="decision" value="approve">Approve</button>
<button class="button quiet" name="decision" value="deny">Deny</button></p></form>"""


def _projects(ctx: Context, visit: PageVisitor, found: DeviceRequest) -> str:
    """Return the choice of the key's project, or the one that the device asked for."""
    if found.project_id is not None:
        return f"<p>Project {escape(found.project_id)}</p>"
    person = me.read_me(ctx, visit.caller)
    names = [each.project_id for each in person.projects]
    names += [ROOT_PROJECT] if person.operator and ROOT_PROJECT not in names else []
    if not names:
        return "<p>You are in no project yet; ask for an invitation to one.</p>"
    options = "".join(f'<option value="{escape(each, quote=True)}">{escape(each)}</option>' for each in names)
    return f'<p><label>Project <select name="project_id">{options}</select></label></p>'


def _require_csrf(visit: PageVisitor, fields: Mapping[str, str]) -> None:
    if not sessions.is_csrf_token(visit.csrf_token, fields.get("csrf_token", "")):
        raise Forbidden("this form is not one of this session; open the page again")


def _require_own_form(request: Request, settings: ApiSettings) -> None:
    """Raises Forbidden for a form of another site, which would sign a person in as somebody else."""
    origin = request.headers.get("origin")
    own = {request.url.netloc, urlsplit(settings.base_url or "").netloc} - {""}
    if origin is None:
        same = request.headers.get("sec-fetch-site") == "same-origin"
    else:
        same = urlsplit(origin).netloc in own
    if not same:
        raise Forbidden("this form is not one of this server; open the sign-in page and try again")


def _hidden(**fields: str) -> str:
    return "".join(f'<input type="hidden" name="{name}" value="{escape(text)}">' for name, text in fields.items())


def _to_sign_in(request: Request) -> RedirectResponse:
    here = request.url.path + (f"?{request.url.query}" if request.method == "GET" and request.url.query else "")
    return _to(f"{SIGN_IN_PATH}?return_to={quote(here, safe='')}")


def _to(url: str) -> RedirectResponse:
    return RedirectResponse(url, SEE_OTHER, headers=HEADERS)


def _error_page(request: Request, error: GiornataError) -> HTMLResponse:
    log_defect(request, error)
    faults = error.faults if isinstance(error, InvalidInput) else ()
    said = "; ".join(map(str, faults)) or problem_of(error).detail
    back = f'<p><a href="{SIGN_IN_PATH}">Sign in</a> or <a href="{DEVICE_PATH}">enter a code</a> again.</p>'
    response = _page(request, "This did not work", f"<p>{escape(said)}</p>{back}", status=status_of(error))
    if isinstance(error, SignInDelayed):
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _page(request: Request, title: str, body: str, status: int = 200) -> HTMLResponse:
    """Return a page. It looks like those of the dashboard where the dashboard is mounted."""
    sheet = getattr(request.app.state, "style_sheet", None)
    style = "" if sheet is None else f'<link rel="stylesheet" href="{escape(sheet, quote=True)}">'
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - Giornata</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">{style}</head>
<body><main class="bare"><p class="brand">Giornata</p><h1>{escape(title)}</h1>{body}</main></body></html>"""
    return HTMLResponse(text, status, headers=HEADERS)
