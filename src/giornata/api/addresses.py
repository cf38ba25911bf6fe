"""The addresses of this server's own pages, as browsers and devices reach them."""

from fastapi import Request

from giornata.api.settings import ApiSettings

DEVICE_PATH = "/device"
SIGN_IN_PATH = "/sign-in"
CALLBACK_PATH = "/sign-in/callback"


def page_url(request: Request, settings: ApiSettings, path: str) -> str:
    """Return the URL of a page: below the setting `public_url`, else where this request came to."""
    return (settings.base_url or str(request.base_url)).rstrip("/") + path
