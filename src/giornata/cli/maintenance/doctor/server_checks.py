"""Checks of servers: whether they answer, their loops, clocks and certificates, and the files that they may open."""

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlsplit

import httpx

from giornata.cli.maintenance.doctor.examined import ExaminedInstallation
from giornata.cli.maintenance.doctor.findings import DoctorFinding, Harm, NotChecked
from giornata.cli.maintenance.doctor.storage_checks import skew_of
from giornata.cli.operate.open_files import FEWEST_CONNECTIONS, OWN_FILES, connections_within, files_of, open_files
from giornata.cli.ui.text import duration

HTTPS_PORT = 443
DAY_S = 86_400
OK = 200
NOBODY_KNOWN = "no server is known: none runs on the data folder; name one with --server"


def check_server_clocks(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find servers whose clocks are others than this machine's."""
    for address in _known(examined):
        reply = _asked(examined, address, "/healthz")
        if isinstance(reply, httpx.Response):
            yield from skew_of(examined, reply, f"the server {address}")


def check_loops(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find servers that do not answer, are not ready, or whose loops are late."""
    for address in _known(examined):
        reply = _asked(examined, address, "/readyz")
        if isinstance(reply, str):
            # Whether nodes reach the public address is another check.
            if address != (examined.public_url or "").rstrip("/"):
                fix = "start the server, or remove server.json if it runs no more"
                yield DoctorFinding(
                    check="loops", harm=Harm.STOPPED, message=f"{address} does not answer: {reply}", fix=fix
                )
            continue
        try:
            said = reply.json()
            checks, loops = dict(said["checks"]), list(said["loops"])
        except (ValueError, KeyError, TypeError):
            continue  # no server of Giornata; `check_public_url` says so of the public address
        for name, answer in checks.items():
            if answer != "ok":
                yield _loops(f"{address}: {name}: {answer}", "the server's log says more")
        for loop in loops:
            if loop["late"]:
                age = duration(loop["last_success_age_s"])
                message = f"{address}: the loop {loop['name']} has not succeeded for {age}"
                yield _loops(message, f"look for 'loop {loop['name']} failed' in the server's log")


def check_open_files(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find a limit of open files that is too low for the bound on connections: each stream and open page is one.

    It is the limit of the server that runs on the data folder, or of one that is started as this command was.
    """
    process = examined.own_process()
    files, whose = None if process is None else files_of(process), f"the server (process {process})"
    if files is None:
        files, whose = open_files().hard, "a server that is started here"
    needed = examined.max_connections + OWN_FILES
    if files >= needed:
        return
    taken, most = connections_within(files), examined.max_connections_per_project
    message = (
        f"{whose} may open {files} files and needs {needed}: it takes {taken} connections, streams and open pages "
        f"included, not the {examined.max_connections} of max_connections"
    )
    if taken <= most:
        message += f"; one project may hold all of them, by max_connections_per_project ({most})"
    fix = (
        f"raise the hard limit (ulimit -Hn {needed}, LimitNOFILE={needed} of the systemd unit, "
        f"--ulimit nofile={needed} of the container) and start the server anew; or lower max_connections to {taken}"
    )
    runs_out = files < OWN_FILES + FEWEST_CONNECTIONS
    harm = Harm.STOPPED if runs_out else Harm.DEGRADED
    yield DoctorFinding(check="open-files", harm=harm, message=message, fix=fix)


def check_public_url(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find a public URL that nodes on other machines cannot reach."""
    url = (examined.public_url or examined.own_server() or "").rstrip("/")
    if not url:
        raise NotChecked(NOBODY_KNOWN)
    if examined.has_fleets and _is_of_this_machine(urlsplit(url).hostname or ""):
        message = f"nodes of fleets cannot reach {url}, which is an address of this machine alone"
        yield _public(message, "set public_url to the address by which nodes reach the server")
        return
    if examined.public_url is None:
        return
    reply = _asked(examined, url, "/healthz")
    if isinstance(reply, str):
        yield _public(f"nodes cannot reach {url}: {reply}", "check DNS, firewall, proxy and the setting public_url")
    elif not _is_healthy(reply):
        message = f"{url}/healthz answers {reply.status_code}, and not as a server of Giornata does"
        yield _public(message, "check the proxy's route and the setting public_url")


def check_certificates(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find certificates that are not trusted, have run out, or soon do."""
    endpoint = dict(parse_qsl(urlsplit(examined.blobs).query)).get("endpoint", "")
    addresses = [each for each in (*examined.addresses(), endpoint) if urlsplit(each).scheme == "https"]
    if not addresses:
        raise NotChecked("no address has https")
    for address in dict.fromkeys(addresses):
        yield from _certificate(examined, address)


def _certificate(examined: ExaminedInstallation, address: str) -> Iterator[DoctorFinding]:
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or HTTPS_PORT
    fix = f"renew the certificate of {host}; nodes and users refuse one that has run out"
    try:
        with (
            socket.create_connection((host, port), timeout=examined.limits.timeout_s) as plain,
            examined.tls.wrap_socket(plain, server_hostname=host) as secured,
        ):
            certificate = secured.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        message = f"the certificate of {address} is refused: {error.verify_message}"
        yield DoctorFinding(check="certificates", harm=Harm.STOPPED, message=message, fix=fix)
        return
    except OSError:
        return  # nobody answers there, which other checks say
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
    left_s = (ends - datetime.fromtimestamp(examined.clock.now_ms() / 1000, UTC)).total_seconds()
    if left_s < examined.limits.certificate_days * DAY_S:
        message = f"the certificate of {address} runs out in {left_s / DAY_S:.1f} days"
        yield DoctorFinding(check="certificates", harm=Harm.DEGRADED, message=message, fix=fix)


def _known(examined: ExaminedInstallation) -> tuple[str, ...]:
    addresses = examined.addresses()
    if not addresses:
        raise NotChecked(NOBODY_KNOWN)
    return addresses


def _asked(examined: ExaminedInstallation, address: str, path: str) -> httpx.Response | str:
    """Return the reply, or in words why there is none."""
    try:
        return examined.http.get(address + path, timeout=examined.limits.timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return str(error) or type(error).__name__


def _is_healthy(reply: httpx.Response) -> bool:
    try:
        return reply.status_code == OK and reply.json().get("status") == "ok"
    except (ValueError, AttributeError):
        return False


def _is_of_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _loops(message: str, fix: str) -> DoctorFinding:
    return DoctorFinding(check="loops", harm=Harm.STOPPED, message=message, fix=fix)


def _public(message: str, fix: str) -> DoctorFinding:
    return DoctorFinding(check="public-url", harm=Harm.STOPPED, message=message, fix=fix)
