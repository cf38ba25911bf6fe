"""The cookie that carries a session's secret between a browser and the server."""

from fastapi import Request, Response

from giornata.control.access.sessions import SESSION_MS, OpenedSession

# The prefix has browsers refuse a cookie that another host of the domain, or plain http, would plant.
COOKIE = "__Host-giornata-session"
LOOPBACK_COOKIE = "giornata-session"
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


def _cookie_name(request: Request) -> str:
    """Return the name of the cookie. Only plain http on this machine itself does without `Secure`."""
    plain = request.url.scheme == "http" and request.url.hostname in LOOPBACK
    return LOOPBACK_COOKIE if plain else COOKIE
