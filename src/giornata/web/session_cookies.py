"""The cookies between a browser and the server: that of a session, and that of a sign-in at the OpenID provider."""

from fastapi import Request, Response

from giornata.control.access.signing_in.oidc_sign_in import SIGN_IN_TTL_S
from giornata.control.access.signing_in.sessions import SESSION_MS, OpenedSession

# The prefix has browsers refuse a cookie that another host of the domain, or plain http, would plant.
COOKIE = "__Host-giornata-session"
LOOPBACK_COOKIE = "giornata-session"
PROVIDER_COOKIE = "__Host-giornata-provider"
LOOPBACK_PROVIDER_COOKIE = "giornata-provider"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def session_secret(request: Request) -> str | None:
    """Return the secret of the session's cookie, if there is one."""
    return request.cookies.get(_cookie_name(request)) or None


def set_cookie(request: Request, response: Response, opened: OpenedSession) -> None:
    """Hand the session to the browser: to no script, and with no request that another site makes."""
    name = _cookie_name(request)
    response.set_cookie(
        name, opened.secret, max_age=SESSION_MS // 1000, secure=name == COOKIE, httponly=True, samesite="lax"
    )


def clear_cookie(request: Request, response: Response) -> None:
    """Have the browser forget the session."""
    name = _cookie_name(request)
    response.delete_cookie(name, secure=name == COOKIE, httponly=True, samesite="lax")


def provider_cookie(request: Request) -> str | None:
    """Return what belongs to a sign-in that is on its way to the OpenID provider, if there is one."""
    return request.cookies.get(_provider_cookie_name(request)) or None


def set_provider_cookie(request: Request, response: Response, sealed: str) -> None:
    """Hand the browser what belongs to a sign-in at the provider; an empty text has the browser forget it."""
    name = _provider_cookie_name(request)
    response.set_cookie(
        name,
        sealed,
        max_age=SIGN_IN_TTL_S if sealed else 0,
        secure=name == PROVIDER_COOKIE,
        httponly=True,
        samesite="lax",  # the provider's page leads back here
    )


def _cookie_name(request: Request) -> str:
    return LOOPBACK_COOKIE if _is_plain(request) else COOKIE


def _provider_cookie_name(request: Request) -> str:
    return LOOPBACK_PROVIDER_COOKIE if _is_plain(request) else PROVIDER_COOKIE


def _is_plain(request: Request) -> bool:
    """Return True on this machine itself by plain http, where alone cookies do without `Secure`."""
    return request.url.scheme == "http" and request.url.hostname in LOOPBACK
