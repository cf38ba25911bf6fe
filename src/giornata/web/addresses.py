"""The addresses of this server's own pages, as browsers and devices reach them."""

from fastapi import Request

DEVICE_PATH = "/device"
SIGN_IN_PATH = "/sign-in"
CALLBACK_PATH = "/sign-in/callback"


def page_url(request: Request, path: str) -> str:
    """Return the URL of a page: below the setting `public_url`, else where this request came to."""
    return (request.app.state.settings.base_url or str(request.base_url)).rstrip("/") + path
