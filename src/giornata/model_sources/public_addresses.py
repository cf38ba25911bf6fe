"""Requests to public addresses only: nobody reaches the server's own network through a URL that they name.

The name of a host is looked up once, every address that it has is judged, and the connection goes to an address that
was judged. A second look-up could give another answer. Each hop of a redirect is judged anew.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import httpx

from giornata.domain.errors import Fault, InvalidInput, Unavailable

Lookup = Callable[[str, int], Iterable[str]]
"""(host, port) → its addresses; raises OSError when there are none."""


def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host by the resolver of this machine."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRule:
    """The hosts that may be asked: public ones by HTTPS, and `own_hosts` (`host:port`) of the operator's network."""

    own_hosts: frozenset[str] = frozenset()
    lookup: Lookup = field(default=addresses_of, repr=False)

    def request(self, url: httpx.URL, headers: dict[str, str], *, where: str) -> httpx.Request:
        """Return a GET that goes to a judged address of the URL's host. Raises InvalidInput, Unavailable."""
        port = url.port or {"https": 443, "http": 80}.get(url.scheme, 0)
        if f"{url.host}:{port}" in self.own_hosts:
            return httpx.Request("GET", url, headers=headers)
        if url.scheme != "https":
            raise _refused(where, f"{url.scheme}://{url.host} is not fetched from: only https:// is")
        address = self._public(url.host, port, where=where)
        named = {"Host": url.netloc.decode("ascii"), **headers}
        # TLS names and verifies the host itself, whatever address the connection goes to.
        extensions = {"sni_hostname": url.host}
        return httpx.Request("GET", url.copy_with(host=address), headers=named, extensions=extensions)

    def _public(self, host: str, port: int, *, where: str) -> str:
        try:
            found = list(self.lookup(host, port))
        except (OSError, UnicodeError) as error:
            raise Unavailable(f"{host} cannot be looked up: {error}", public=f"{host} cannot be looked up") from error
        private = [address for address in found if not _is_public(address)]
        if private or not found:
            raise _refused(where, f"{host} is no public address")
        return found[0]


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    public = found.is_global and not found.is_multicast and not found.is_reserved
    return public and (inner is None or _is_public(str(inner)))


def _refused(where: str, message: str) -> InvalidInput:
    hint = "name a file that everybody can reach by https, or upload it"
    return InvalidInput([Fault(where=where, message=message, hint=hint)])
