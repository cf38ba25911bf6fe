"""The person's own account: what signs the person in."""

from functools import partial

import anyio.to_thread
from fastapi import Request, Response
from starlette.routing import Route

from giornata.control.access.authenticate import signed_in
from giornata.control.access.signing_in.linked_identities import list_identities, unlink_identity
from giornata.control.access.signing_in.oidc_sign_in import begin_oidc, provider_name
from giornata.control.access.signing_in.sessions import REFUSAL, require_csrf
from giornata.dashboard.forms import sentence_of, status_of_page
from giornata.dashboard.rendering import render
from giornata.dashboard.sign_in_pages import to_provider
from giornata.dashboard.visit import CSRF_FIELD, ROOT, Visit, action, page, read_form, see
from giornata.domain.errors import Conflict, Unauthenticated
from giornata.protocol.account.people import CSRF_HEADER
from giornata.protocol.account.sign_in import BeginSignIn
from giornata.web.addresses import CALLBACK_PATH, page_url
from giornata.web.session_cookies import session_secret
from giornata.web.visitors import with_provider

HERE = "/account"


def show(visit: Visit, *, refusal: str = "") -> Response:
    """Show the accounts at the OpenID provider that sign the person in."""
    return render(
        visit,
        "account.html",
        status=status_of_page(None, refusal),
        linked=list_identities(visit.ctx, visit.caller),
        provider=provider_name(visit.ctx),
        refusal=refusal,
    )


def unlink(visit: Visit) -> Response:
    """Unlink an account of the provider. The last way to sign in is refused."""
    try:
        unlink_identity(visit.ctx, visit.caller, visit.path("identity_id"))
    except Conflict as error:
        return show(visit, refusal=sentence_of(error))
    return see(f"{ROOT}{HERE}?said=removed")


async def link(request: Request) -> Response:
    """Lead the person to the provider, whose account is linked when the browser comes back."""
    form, secret = await read_form(request), session_secret(request)
    if secret is None:
        raise Unauthenticated(REFUSAL)
    require_csrf(secret, form.get(CSRF_FIELD) or request.headers.get(CSRF_HEADER))
    state = request.app.state
    caller = await anyio.to_thread.run_sync(signed_in, state.context, secret, None, limiter=state.page_threads)
    asked = BeginSignIn(link=True, return_to=f"{ROOT}{HERE}")
    begin = partial(begin_oidc, state.context, asked, redirect_uri=page_url(request, CALLBACK_PATH), caller=caller)
    return to_provider(request, await with_provider(request, begin))


ROUTES = (
    page(HERE, show),
    action(f"{HERE}/identities/{{identity_id}}/unlink", unlink),
    Route(f"{HERE}/link", link, methods=["POST"]),
)
