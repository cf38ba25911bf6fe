"""Tells when a URL says http and the server speaks https, or the other way round: no retry mends that."""

import socket
import ssl
from urllib.parse import urlsplit

import httpx

from giornata.domain.errors import Unreachable

NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")
NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
PLAIN_TO_TLS = ("plain http request was sent to https port", "http request to an https server")
PROBE_TIMEOUT_S = 3.0


def wrong_scheme(base_url: str, error: httpx.RequestError) -> Unreachable | None:
    """Return the error for a request that failed because of its scheme or certificate; None for other reasons."""
    said = str(error).replace(" ", "_").upper()
    if base_url.startswith("https:"):
        if any(word in said for word in NO_TLS):
            return Unreachable(f"{base_url} does not speak TLS", hint=f"Use {_with_scheme(base_url, 'http')}")
        if NOT_TRUSTED in said:
            hint = "Name the file of its certificate authority in SSL_CERT_FILE, or check the host's name."
            return Unreachable(f"the certificate of {base_url} is not trusted: {error}", hint=hint)
        return None
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and speaks_tls(base_url):
        return _needs_https(base_url)
    return None


def wrong_scheme_in(base_url: str, response: httpx.Response) -> Unreachable | None:
    """The same for an answer: what a web server says to plain HTTP on its port for TLS."""
    if response.status_code != httpx.codes.BAD_REQUEST or base_url.startswith("https:"):
        return None
    said = response.text[:2000].lower()
    return _needs_https(base_url) if any(words in said for words in PLAIN_TO_TLS) else None


def speaks_tls(base_url: str) -> bool:
    """Return True when a TLS handshake succeeds there. Nothing is sent, so no certificate has to be trusted."""
    url = urlsplit(base_url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((url.hostname or "", url.port or 80), timeout=PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=url.hostname),
        ):
            return True
    except (OSError, ValueError):
        return False


def _needs_https(base_url: str) -> Unreachable:
    return Unreachable(f"{base_url} speaks TLS only", hint=f"Use {_with_scheme(base_url, 'https')}")


def _with_scheme(base_url: str, scheme: str) -> str:
    return f"{scheme}://{base_url.partition('://')[2]}"
