"""Sign in by password or by a one-time link, and sign out.

A form that another site sends is refused by its Origin: before the sign-in there is no session, and so no CSRF token.
"""

import re
from functools import partial
from http import HTTPStatus
from urllib.parse import urlencode, urlsplit

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from starlette.routing import Route

from giornata.control.access.invitations import accept_invitation, read_invitation
from giornata.control.access.signing_in import sessions, sign_in
from giornata.control.access.signing_in.oidc_sign_in import PendingSignIn, begin_oidc, provider_name
from giornata.control.access.signing_in.sessions import OpenedSession
from giornata.dashboard.rendering import render_bare
from giornata.dashboard.visit import ROOT, SubmittedForm, Visit, action, project_url, read_form
from giornata.domain.errors import GiornataError, InvalidInput, Unauthenticated
from giornata.protocol.account.people import AcceptInvitation, SignIn
from giornata.protocol.account.sign_in import BeginSignIn
from giornata.web.addresses import CALLBACK_PATH, page_url
from giornata.web.error_status import status_of
from giornata.web.session_cookies import clear_cookie, session_secret, set_cookie, set_provider_cookie
from giornata.web.visitors import visitor_of, with_password, with_provider

HOME = f"{ROOT}/"
# The page of a device that waits for a person is the API's, and leads here to sign in.
OWN_PAGE = re.compile(rf"({ROOT}/|/device(?=$|\?))[A-Za-z0-9/_.~%?=&+:-]*", re.ASCII)
LONGEST_NEXT = 1000
LONGEST_SECRET = 256
PROVIDER_PATH = "/sign-in/provider"  # of the API, which leads to the provider and back
OTHER_SITE = "The form came from another site. Load this page again, and sign in here."


async def show(request: Request) -> Response:
    """Show the form; a person who is signed in already may use it to become another."""
    return _form(request, SubmittedForm(), request.query_params.get("next", ""))


async def lead(request: Request) -> Response:
    """Lead from the plain sign-in page of the API to this one, and from here to where that one would have led.

    Whoever wants no page, such as a person who has just come back from the provider, gets the first one.
    """
    request.scope["route"] = PLAIN_SIGN_IN
    wanted = request.query_params.get("return_to", "")
    target = f"{ROOT}/sign-in?{urlencode({'next': own_page(wanted)})}" if wanted else HOME
    return RedirectResponse(target, HTTPStatus.SEE_OTHER)


async def submit(request: Request) -> Response:
    """Sign in with address and password."""
    form = await read_form(request)
    following = form.get("next")
    if not _from_here(request):
        return _form(request, form, following, sentence=OTHER_SITE, status=HTTPStatus.FORBIDDEN)
    try:
        asked = SignIn.model_validate({"email": form.get("email"), "password": form.get("password")})
    except ValidationError as error:
        faults = {str(each["loc"][0]): _FAULTS[str(each["loc"][0])] for each in error.errors()}
        return _form(request, form, following, faults=faults, status=HTTPStatus.BAD_REQUEST)
    verb = partial(sign_in.sign_in, request.app.state.context, asked, visitor_of(request))
    try:
        opened = await with_password(request, partial(verb, earlier=session_secret(request)))
    except GiornataError as error:
        return _form(request, form, following, sentence=_sentence(error), status=status_of(error))
    return _entered(request, opened, following)


async def enter(request: Request) -> Response:
    """Sign the operator of this machine in by a one-time link."""
    state, secret = request.app.state, request.query_params.get("link", "")
    if state.sign_in_links is None or not secret:
        raise Unauthenticated(sessions.REFUSAL)
    verb = partial(state.sign_in_links.enter, state.context, secret[:200], visitor_of(request))
    try:
        opened = await with_password(request, partial(verb, earlier=session_secret(request)))
    except GiornataError as error:
        return _form(request, SubmittedForm(), "", sentence=_sentence(error), status=status_of(error))
    return _entered(request, opened, "")


async def show_invitation(request: Request) -> Response:
    """Show the form of an invitation, whose secret stands behind the # of the link and reaches no server's log."""
    return _invitation(request, SubmittedForm())


async def accept(request: Request) -> Response:
    """Join a project by an invitation, and sign in."""
    form = await read_form(request)
    if not _from_here(request):
        return _invitation(request, form, sentence=OTHER_SITE, status=HTTPStatus.FORBIDDEN)
    given = {name: form.get(name) for name in ("email", "password", "secret")} | {"name": form.get("name") or None}
    try:
        asked = AcceptInvitation.model_validate(given)
    except ValidationError as error:
        faults = {str(each["loc"][0]): _FAULTS.get(str(each["loc"][0]), f"{each['msg']}.") for each in error.errors()}
        return _invitation(request, form, faults=faults, status=HTTPStatus.BAD_REQUEST)
    verb = partial(accept_invitation, request.app.state.context, asked, visitor_of(request))
    try:
        opened = await with_password(request, partial(verb, earlier=session_secret(request)))
    except InvalidInput as error:
        faults = {each.where: f"{each.message}." for each in error.faults}
        return _invitation(request, form, faults=faults, status=HTTPStatus.BAD_REQUEST)
    except GiornataError as error:
        return _invitation(request, form, sentence=_sentence(error), status=status_of(error))
    following = HOME if opened.reply.project_id is None else project_url(opened.reply.project_id)
    return _entered(request, opened, following)


async def accept_elsewhere(request: Request) -> Response:
    """Join a project by an invitation with an account of the OpenID provider."""
    form, ctx = await read_form(request), request.app.state.context
    if not _from_here(request):
        return _invitation(request, form, sentence=OTHER_SITE, status=HTTPStatus.FORBIDDEN)
    secret = form.get("secret")[:LONGEST_SECRET]
    if not secret:
        return _invitation(request, form, faults={"secret": _FAULTS["secret"]}, status=HTTPStatus.BAD_REQUEST)

    def begin() -> PendingSignIn:
        project_id = read_invitation(ctx, secret).project_id
        asked = BeginSignIn.model_validate({"invitation": secret, "return_to": project_url(project_id)})
        return begin_oidc(ctx, asked, redirect_uri=page_url(request, CALLBACK_PATH), caller=None)

    try:
        pending = await with_provider(request, begin)
    except GiornataError as error:
        return _invitation(request, form, sentence=_sentence(error), status=status_of(error))
    return to_provider(request, pending)


def to_provider(request: Request, pending: PendingSignIn) -> Response:
    """Return a page that leads the browser to the OpenID provider.

    The page is needed after a form: the policy `form-action` lets no browser follow a redirect to another site.
    """
    name = provider_name(request.app.state.context)
    response = render_bare("to_provider.html", provider=name, provider_url=pending.authorization_url)
    set_provider_cookie(request, response, pending.cookie)
    return response


def leave(visit: Visit) -> Response:
    """Sign out: the session of this browser ends."""
    sessions.end_session(visit.ctx, visit.caller, visit.caller.key_id)
    response = RedirectResponse(f"{ROOT}/sign-in", HTTPStatus.SEE_OTHER)
    clear_cookie(visit.request, response)
    return response


def link_url(server_url: str, secret: str) -> str:
    """Return the address of a one-time link."""
    return f"{server_url}{ROOT}/enter?{urlencode({'link': secret})}"


def own_page(address: str) -> str:
    """Return the address when it is a page of the dashboard; else the first page."""
    is_own = len(address) <= LONGEST_NEXT and OWN_PAGE.fullmatch(address) is not None and "//" not in address
    return address if is_own else HOME


def _form(
    request: Request,
    form: SubmittedForm,
    following: str,
    *,
    sentence: str = "",
    faults: dict[str, str] | None = None,
    status: int = HTTPStatus.OK,
) -> Response:
    wanted = own_page(following)
    provider = provider_name(request.app.state.context)
    return render_bare(
        "sign_in.html",
        status=status,
        given={"email": form.get("email"), "next": wanted},
        sentence=sentence,
        faults=faults or {},
        provider=provider,
        provider_url=f"{PROVIDER_PATH}?{urlencode({'return_to': wanted})}",
    )


def _invitation(
    request: Request,
    form: SubmittedForm,
    *,
    sentence: str = "",
    faults: dict[str, str] | None = None,
    status: int = HTTPStatus.OK,
) -> Response:
    return render_bare(
        "invitation.html",
        status=status,
        given={name: form.get(name) for name in ("email", "name", "secret")},
        sentence=sentence,
        faults=faults or {},
        provider=provider_name(request.app.state.context),
    )


def _entered(request: Request, opened: OpenedSession, following: str) -> Response:
    response = RedirectResponse(own_page(following), HTTPStatus.SEE_OTHER)
    set_cookie(request, response, opened)
    return response


def _from_here(request: Request) -> bool:
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site", "none") in {"none", "same-origin"}
    return urlsplit(origin).netloc == request.headers.get("host")


def _sentence(error: GiornataError) -> str:
    text = error.public
    return f"{text[:1].upper()}{text[1:]}."


_FAULTS = {
    "email": "Type a mail address, such as ann@example.com.",
    "password": "Type your password.",
    "secret": "The link is not whole. Open it again, as it was sent to you.",
}
PLAIN_SIGN_IN = Route("/sign-in", lead, methods=["GET"], include_in_schema=False)
ROUTES = (
    Route("/sign-in", show, methods=["GET"]),
    Route("/sign-in", submit, methods=["POST"]),
    Route("/enter", enter, methods=["GET"]),
    Route("/invitation", show_invitation, methods=["GET"]),
    Route("/invitation", accept, methods=["POST"]),
    Route("/invitation/provider", accept_elsewhere, methods=["POST"]),
    action("/sign-out", leave),
)
