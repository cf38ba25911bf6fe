"""Sign in at an OpenID provider: the browser goes there and comes back with a code.

What belongs to a sign-in travels sealed in a cookie of the browser that began it. An account of the provider is known
by issuer and subject, never by its address, and whatever groups and roles the provider names are of no account here:
who comes for the first time is in no project.
"""

import hmac
import json
import re
from dataclasses import asdict, dataclass, replace

from giornata.control.access.invitations import open_invitation, use_invitation
from giornata.control.access.keys import secret_hash
from giornata.control.access.signing_in.sessions import OpenedSession, Visitor, open_session, require_person, visiting
from giornata.control.access.users import new_user
from giornata.control.audit_log.record import record
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.identity_provider import AuthorizationRequest, ProviderIdentity
from giornata.control.ports.store import Transaction
from giornata.control.text_limits import CONTROL
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.accounts.sign_in import is_allowed_email, local_path
from giornata.domain.errors import Conflict, Forbidden, Unauthenticated, Unavailable
from giornata.protocol.account.sign_in import BeginSignIn
from giornata.protocol.project.admin import ROOT_PROJECT

SIGN_IN_TTL_S = 600
# Sealed together with the content: no secret of a project can be put into the cookie.
PURPOSE = "sign-in at a provider"
ERROR_WORD = re.compile(r"[a-z_]{1,40}", re.ASCII)
EMAIL = re.compile(r"[^@\s\x00-\x1f\x7f]{1,64}@[^@\s\x00-\x1f\x7f]{1,189}")
REFUSAL = "this sign-in is unknown, was used, or has expired; begin again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSignIn:
    """A sign-in on its way. `cookie` is for the browser that began it, `authorization_url` where it goes now."""

    authorization_url: str
    cookie: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCallback:
    """The parameters with which the provider sends the browser back (RFC 6749, section 4.1.2; RFC 9207)."""

    state: str = ""
    code: str = ""
    error: str = ""
    issuer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedSignIn:
    """A session, and the path of this server that the browser goes to."""

    opened: OpenedSession
    return_to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cookie:
    """The content of the cookie."""

    request: AuthorizationRequest
    return_to: str
    invitation_sha256: str | None
    link_user_id: str | None
    expires_at_ms: int


def begin_oidc(ctx: Context, request: BeginSignIn, *, redirect_uri: str, caller: Caller | None) -> PendingSignIn:
    """Begin a sign-in. `redirect_uri` is this server's page that the provider sends the browser back to. With `link`
    the account of the provider is added to the person of `caller`.

    Raises NotFound without a provider, and for an invitation that is of no use; Unauthenticated and Forbidden for a
    link without a person; Unavailable. Asks the provider: for a thread.
    """
    link_user_id, invitation_sha256 = None, None
    if request.link:
        if caller is None:
            raise Unauthenticated("sign in before you link an account of the provider")
        link_user_id = require_person(caller)
    if request.invitation is not None:
        invitation_sha256 = secret_hash(request.invitation.get_secret_value())
        with ctx.store.read() as tx:
            open_invitation(ctx, tx, invitation_sha256)
    asked = AuthorizationRequest(
        state=ctx.names.secret(),
        nonce=ctx.names.secret(),
        code_verifier=f"{ctx.names.secret()}{ctx.names.secret()}"[:128],
        redirect_uri=redirect_uri,
    )
    cookie = _Cookie(
        request=asked,
        return_to=local_path(request.return_to),
        invitation_sha256=invitation_sha256,
        link_user_id=link_user_id,
        expires_at_ms=ctx.clock.now_ms() + SIGN_IN_TTL_S * 1000,
    )
    url = ctx.identity_provider.authorization_url(asked)
    return PendingSignIn(authorization_url=url, cookie=ctx.sealer.seal(json.dumps([PURPOSE, asdict(cookie)])))


def finish_oidc(
    ctx: Context, callback: ProviderCallback, visitor: Visitor, *, cookie: str | None, earlier: str | None
) -> CompletedSignIn:
    """Exchange the code for the account of the provider, and open a session for its person. The session of the
    secret `earlier` ends.

    Raises Unauthenticated for a sign-in that another browser began, that expired, or that the provider refuses;
    Forbidden for an address that may have no account; Conflict for one that another account has; NotFound for an
    invitation that is of no use any more; Unavailable. Asks the provider: for a thread.
    """
    known = _opened(ctx, cookie)
    if not hmac.compare_digest(known.request.state.encode(), callback.state.encode()):
        raise Unauthenticated(REFUSAL)
    if callback.issuer is not None and callback.issuer != ctx.identity_provider.issuer:
        raise Unauthenticated(REFUSAL)
    if callback.error or not callback.code:
        word = callback.error if ERROR_WORD.fullmatch(callback.error) else "no code"
        raise Unauthenticated(f"the provider signed nobody in: {word}")
    found = ctx.identity_provider.identity(known.request, callback.code, at_ms=ctx.clock.now_ms())
    with ctx.store.begin() as tx:
        user_id = _person(ctx, tx, found, known, visitor)
        project_id = _join(ctx, tx, user_id, known, visitor)
        opened = open_session(ctx, tx, user_id, visitor, earlier=earlier)
    ctx.memory.forget_callers()
    opened = replace(opened, reply=opened.reply.model_copy(update={"project_id": project_id}))
    return CompletedSignIn(opened=opened, return_to=known.return_to)


def _join(ctx: Context, tx: Transaction, user_id: str, known: _Cookie, visitor: Visitor) -> str | None:
    """Accept the invitation with which the sign-in began; return its project, or None where there was none."""
    if known.invitation_sha256 is None:
        return None
    invitation = open_invitation(ctx, tx, known.invitation_sha256)
    role, verb = use_invitation(ctx, tx, user_id, invitation), AuditVerb.INVITATION_ACCEPT
    actor, now_ms, project_id = visiting(tx.users.get(user_id), visitor), ctx.clock.now_ms(), invitation.project_id
    record(tx, actor, verb, invitation.id, at_ms=now_ms, project_id=project_id, changes={"role": role})
    return project_id


def _opened(ctx: Context, cookie: str | None) -> _Cookie:
    """Return the content of the cookie. Raises Unauthenticated for one that is not good now."""
    try:
        purpose, content = json.loads(ctx.sealer.unseal(cookie or ""))
        known = _Cookie(**{**content, "request": AuthorizationRequest(**content["request"])})
    except (Unavailable, ValueError, TypeError, KeyError):
        raise Unauthenticated(REFUSAL) from None
    if purpose != PURPOSE or known.expires_at_ms <= ctx.clock.now_ms():
        raise Unauthenticated(REFUSAL)
    return known


def _person(ctx: Context, tx: Transaction, found: ProviderIdentity, known: _Cookie, visitor: Visitor) -> str:
    """Return the person behind the provider's account, who may be new."""
    email = _allowed_email(ctx, found)
    linked = tx.identities.user_of(found.issuer, found.subject)
    if known.link_user_id is not None and linked not in {None, known.link_user_id}:
        raise Conflict("this account of the provider belongs to another account here")
    if linked is not None:
        return linked
    user_id, now_ms = known.link_user_id, ctx.clock.now_ms()
    if user_id is None:
        # A name of strange characters is no reason to keep somebody out.
        name = CONTROL.sub("", found.name or "").strip()[:128] or None
        user = replace(new_user(ctx, email, name, "", created_by=None), password_hash="")
        if not tx.users.add(user):
            # The same person may have come in by another window a moment ago.
            if (linked := tx.identities.user_of(found.issuer, found.subject)) is not None:
                return linked
            raise Conflict(
                f"there is an account {user.email} already; sign in with its password, and link the provider to it"
            )
        user_id = user.id
        _record(tx, AuditVerb.USER_CREATE, user_id, visitor, at_ms=now_ms)
    if not tx.identities.add(found.issuer, found.subject, user_id=user_id, at_ms=now_ms):
        raise Conflict("this account of the provider has just signed in; sign in again")
    _record(tx, AuditVerb.IDENTITY_LINK, user_id, visitor, at_ms=now_ms)
    return user_id


def _record(tx: Transaction, verb: AuditVerb, user_id: str, visitor: Visitor, *, at_ms: int) -> None:
    actor = visiting(tx.users.get(user_id), visitor)
    record(tx, actor, verb, user_id, at_ms=at_ms, project_id=ROOT_PROJECT, changes={"by": "provider"})


def _allowed_email(ctx: Context, found: ProviderIdentity) -> str:
    """Return the account's address. Raises Forbidden for one that may have no account here."""
    email = found.email or ""
    if EMAIL.fullmatch(email) is None:
        raise Forbidden("the provider sent no mail address; ask the operator to add the scope email to oidc_scopes")
    if not found.email_verified and not ctx.policy.unverified_email:
        raise Forbidden("the provider has not verified your mail address")
    if not is_allowed_email(email, ctx.policy.email_domains):
        raise Forbidden("addresses of this domain have no account here; ask the operator")
    return email


def provider_name(ctx: Context) -> str | None:
    """Return the word on the button that leads to the provider; None where there is no provider."""
    return ctx.identity_provider.name or None
