"""A URL with the wrong scheme is told at once, and with the right one."""

import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from giornata.client import Backoff, Client
from giornata.domain.errors import InvalidInput, Unreachable


class Answers(BaseHTTPRequestHandler):
    """Each request gets the server's `status` and `content`."""

    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(self.server.content)  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def listening(
    *, tls: ssl.SSLContext | None = None, status: int = 200, content: bytes = b'{"items": []}'
) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.status, server.content = status, content  # type: ignore[attr-defined]
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Of this machine, signed by nobody whom anybody trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins.replace(year=2099))
        .add_extension(x509.SubjectAlternativeName([here]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file: Path = tmp_path_factory.mktemp("tls") / "both.pem"
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    file.write_bytes(private + made.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def refused(url: str) -> Unreachable:
    """What a client says that must not try again."""

    def never(_seconds: float) -> None:
        raise AssertionError("it tried again")

    with (
        Client(url, "gk_1", backoff=Backoff(sleep=never)) as client,
        pytest.raises(Unreachable) as told,
    ):
        list(client.jobs())
    return told.value


def test_https_against_a_server_without_tls_says_http() -> None:
    with listening() as port:
        error = refused(f"https://127.0.0.1:{port}")
    assert "does not speak TLS" in str(error)
    assert error.hint == f"Use http://127.0.0.1:{port}"


def test_http_against_a_server_with_tls_says_https(certificate: ssl.SSLContext) -> None:
    with listening(tls=certificate) as port:
        error = refused(f"http://127.0.0.1:{port}")
    assert "speaks TLS only" in str(error)
    assert error.hint == f"Use https://127.0.0.1:{port}"


def test_the_page_of_a_proxy_that_wants_https_is_understood() -> None:
    page = b"<center>The plain HTTP request was sent to HTTPS port</center>"
    with listening(status=400, content=page) as port:
        assert refused(f"http://127.0.0.1:{port}").hint == f"Use https://127.0.0.1:{port}"
    with listening(status=400, content=b"<center>Bad request</center>") as port:
        client = Client(f"http://127.0.0.1:{port}", "gk_1")
        with client, pytest.raises(InvalidInput, match="Bad request"):
            list(client.jobs())


def test_a_certificate_that_nobody_trusts_is_named(certificate: ssl.SSLContext) -> None:
    with listening(tls=certificate) as port:
        error = refused(f"https://127.0.0.1:{port}")
    assert "is not trusted" in str(error)
    assert "SSL_CERT_FILE" in error.hint
