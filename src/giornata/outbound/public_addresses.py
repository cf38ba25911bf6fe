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
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SPECIAL_NETWORKS: tuple[Network, ...] = (
    ipaddress.IPv4Network("168.63.129.16/32"),  # Azure answers its machines there
    ipaddress.IPv4Network("192.0.0.0/24"),  # protocol assignments (RFC 6890); a cloud's metadata are there, too
    ipaddress.IPv6Network("fec0::/10"),  # site-local, before there was fc00::/7 (RFC 3879)
)
"""Networks that are not public, though `ipaddress` of some versions of Python says that they are."""


def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host by the resolver of this machine."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: str) -> bool:
    """Return True for an address that everybody can reach; an IPv4 address inside an IPv6 one has to be, too."""
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    public = found.is_global and not found.is_multicast and not found.is_reserved
    special = any(found in network for network in SPECIAL_NETWORKS)
    return public and not special and (inner is None or is_public(str(inner)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRule:
    """The hosts that may be asked: public ones by HTTPS, and what the operator allows of the own network.

    `own_hosts` (`host:port`) are asked whatever their addresses are. A host whose addresses are all in
    `own_networks` is asked, too. Both may be asked by plain HTTP. `hint` tells users what to do instead.
    """

    own_hosts: frozenset[str] = frozenset()
    own_networks: tuple[Network, ...] = ()
    hint: str = "name a file that everybody can reach by https, or upload it"
    lookup: Lookup = field(default=addresses_of, repr=False)
    is_public: Callable[[str], bool] = field(default=is_public, repr=False)

    def request(
        self,
        url: httpx.URL,
        headers: dict[str, str],
        *,
        where: str,
        method: str = "GET",
        content: bytes | None = None,
    ) -> httpx.Request:
        """Return a request that goes to a judged address of the URL's host. Raises InvalidInput, Unavailable."""
        port = url.port or {"https": 443, "http": 80}.get(url.scheme, 0)
        if f"{url.host}:{port}" in self.own_hosts:
            return httpx.Request(method, url, headers=headers, content=content)
        address = self._judged(url, port, where=where)
        # TLS names and verifies the host itself, whatever address the connection goes to. The pool tells connections
        # apart by address alone, so each serves one request: it was verified for this host and for no other.
        named = {"Host": url.netloc.decode("ascii"), "Connection": "close", **headers}
        extensions = {"sni_hostname": url.host}
        there = url.copy_with(host=address)
        return httpx.Request(method, there, headers=named, content=content, extensions=extensions)

    def _judged(self, url: httpx.URL, port: int, *, where: str) -> str:
        if url.scheme not in {"https", "http"} or (url.scheme == "http" and not self.own_networks):
            raise self._refused(where, f"{url.scheme}://{url.host} is not asked: only https:// is")
        try:
            found = list(self.lookup(url.host, port))
        except (OSError, UnicodeError) as error:
            why = f"{url.host} cannot be looked up"
            raise Unavailable(f"{why}: {error}", public=why) from error
        foreign = [address for address in found if not self._is_own(address)]
        if not found or not all(self.is_public(address) for address in foreign):
            raise self._refused(where, f"{url.host} is no public address")
        if url.scheme == "http" and foreign:
            raise self._refused(where, f"http://{url.host} is not asked: only https:// is")
        return found[0]

    def _is_own(self, address: str) -> bool:
        found = ipaddress.ip_address(address.partition("%")[0])
        return any(found in network for network in self.own_networks)

    def _refused(self, where: str, message: str) -> InvalidInput:
        return InvalidInput([Fault(where=where, message=message, hint=self.hint)])
