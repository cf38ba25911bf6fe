"""Addresses that nobody reaches through a URL of theirs, in every spelling."""

import ipaddress
import socket

import httpx
import pytest

from giornata.domain.errors import InvalidInput, Unavailable
from giornata.outbound.public_addresses import AddressRule, addresses_of, is_public

PRIVATE = (
    "127.0.0.1",
    "127.8.9.1",
    "0.0.0.0",  # noqa: S104 - an address, not a socket
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe",
    "64:ff9b::7f00:1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::10.0.0.1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2001:0:53aa:64c::7f00:1",
    "fe80::1%eth0",
    "fc00::1",
    "fd00:ec2::254",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
)
PUBLIC = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "2002:5db8:d822::1")
LOOPBACK_SPELLINGS = ("2130706433", "0x7f000001", "017700000001", "0x7f.1", "127.1", "LOCALHOST", "[::1]")


def looked_up(*addresses: str) -> AddressRule:
    return AddressRule(lookup=lambda host, port: addresses)


def asked(rule: AddressRule, url: str) -> httpx.Request:
    return rule.request(httpx.URL(url), {}, where="target", method="POST", content=b"{}")


@pytest.mark.parametrize("address", PRIVATE)
def test_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(InvalidInput, match="no public address"):
        asked(looked_up("93.184.216.34", address), "https://hooks.example/")


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_the_one_that_the_connection_goes_to(address: str) -> None:
    request = asked(looked_up(address), "https://hooks.example:8443/in?x=1")
    assert request.url.host == address
    assert (request.url.port, request.url.path, request.headers["host"]) == (8443, "/in", "hooks.example:8443")
    assert (request.method, request.extensions["sni_hostname"]) == ("POST", "hooks.example")


@pytest.mark.parametrize("host", LOOPBACK_SPELLINGS)
def test_odd_spelling_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises((InvalidInput, Unavailable)):
        asked(AddressRule(), f"https://{host}/")


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1"])
def test_resolver_of_this_machine_reads_odd_spellings_as_addresses(host: str) -> None:
    try:
        found = addresses_of(host, 443)
    except socket.gaierror:
        pytest.skip("this resolver knows only the usual spelling")
    assert {ipaddress.ip_address(each).is_loopback for each in found} == {True}


def test_name_is_judged_anew_at_each_request() -> None:
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    rule = AddressRule(lookup=lambda host, port: next(answers))
    assert asked(rule, "https://hooks.example/").url.host == "93.184.216.34"
    with pytest.raises(InvalidInput, match="no public address"):
        asked(rule, "https://hooks.example/")


def test_network_of_the_operator_is_asked_also_without_tls() -> None:
    networks = (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8"))

    def rule(*addresses: str) -> AddressRule:
        return AddressRule(own_networks=networks, lookup=lambda host, port: addresses)

    assert asked(rule("10.1.2.3", "fd00::5"), "http://in.example/").url.host == "10.1.2.3"
    assert asked(rule("10.1.2.3"), "https://in.example/").url.scheme == "https"
    for addresses in (["10.2.0.1"], ["10.1.2.3", "10.2.0.1"], []):
        with pytest.raises(InvalidInput, match="no public address"):
            asked(rule(*addresses), "https://in.example/")
    with pytest.raises(InvalidInput, match="only https"):
        asked(rule("93.184.216.34"), "http://out.example/")
    with pytest.raises(InvalidInput, match="only https"):
        asked(looked_up("93.184.216.34"), "http://out.example/")
    with pytest.raises(InvalidInput, match="only https"):
        asked(rule("10.1.2.3"), "ftp://in.example/")
