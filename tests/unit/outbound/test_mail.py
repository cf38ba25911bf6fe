"""Mail by SMTP, against a real mail server that offers TLS."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from ipaddress import ip_address
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from giornata.control.ports.notifier import MessageRun, OutgoingMessage, RunOutcome
from giornata.domain.errors import InvalidInput
from giornata.outbound.background_notifier import BackgroundNotifier
from giornata.outbound.mail import MailSender, mail_sender
from giornata.outbound.public_addresses import AddressRule
from giornata.protocol.project.webhook_endpoints import WebhookFormat

MESSAGE = OutgoingMessage(id="evt_7", subject="Giornata: job.failed job_1", body="2026-11-23 job.failed job_1: é\n")
HOST = "127.0.0.1"
WAIT_S = 60.0
PASSWORD = "s%40cret"


@dataclass
class Mailbox:
    """Keeps mails, and says whether each came over TLS and after a login."""

    mails: list[EmailMessage] = field(default_factory=list)
    secured: list[bool] = field(default_factory=list)

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's name
        content = envelope.original_content
        assert content is not None
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.secured.append(session.ssl is not None and session.authenticated)
        return "250 OK"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of this machine that signs itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail of tests")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("mail") / "mail.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def login(_server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> AuthResult:
    good = isinstance(given, LoginPassword) and (given.login, given.password) == (b"me", b"s@cret")
    return AuthResult(success=good, handled=good)  # what is not handled gets the server's own 535


class OnFreePort(Controller):
    """Asks the system for a port, and tells it."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        super()._trigger_server()


@contextmanager
def mail_server(mailbox: Mailbox, certificate: Path | None, *, implicit: bool = False) -> Iterator[int]:
    """A mail server on a port of this machine; without a certificate it offers no TLS."""
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    more: dict[str, Any] = {"ssl_context": tls} if implicit else {"tls_context": tls}
    more["auth_require_tls"] = not implicit
    controller = OnFreePort(mailbox, hostname=HOST, port=0, authenticator=login, ready_timeout=WAIT_S, **more)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


def sender(port: int, certificate: Path | None, *, scheme: str = "smtp", password: str = PASSWORD) -> MailSender:
    trusts = ssl.create_default_context(cafile=None if certificate is None else str(certificate))
    return mail_sender(f"{scheme}://me:{password}@{HOST}:{port}", "giornata@example.org", trusts)


def sent(mail: MailSender, to: str = "ann@example.org") -> RunOutcome:
    notifier = BackgroundNotifier(AddressRule(), mail, connect=httpx.AsyncHTTPTransport, timeout_s=WAIT_S)
    notifier.check(WebhookFormat.MAIL, to, where="target")
    found: Queue[RunOutcome] = Queue()
    notifier.send(MessageRun(format=WebhookFormat.MAIL, target=to, secrets=(), messages=[MESSAGE]), found.put)
    outcome = found.get(timeout=WAIT_S)
    notifier.close()
    return outcome


def test_mail_goes_over_starttls_after_a_login(certificate: Path) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, certificate) as port:
        assert sent(sender(port, certificate)) == RunOutcome(sent=1)
    (mail,) = mailbox.mails
    assert (mail["To"], mail["From"], mail["Subject"]) == ("ann@example.org", "giornata@example.org", MESSAGE.subject)
    assert mail["Message-ID"] == "<evt_7@example.org>"
    assert mail.get_content().splitlines() == MESSAGE.body.splitlines()
    assert mailbox.secured == [True]


def test_mail_goes_over_tls_from_the_first_byte(certificate: Path) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, certificate, implicit=True) as port:
        assert sent(sender(port, certificate, scheme="smtps")) == RunOutcome(sent=1)
    assert len(mailbox.mails) == 1


def test_mail_is_not_sent_without_tls_to_a_stranger_or_with_a_wrong_password(certificate: Path) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, None) as port:
        plain = sent(sender(port, certificate))
    with mail_server(mailbox, certificate) as port:
        stranger = sent(sender(port, None))
        wrong = sent(sender(port, certificate, password="wrong"))
    failures = [each.failure for each in (plain, stranger, wrong)]
    assert [each is not None and each.message for each in failures] == [
        "the mail could not be sent (SMTPNotSupportedError)",
        "the mail could not be sent (SSLCertVerificationError)",
        "the mail server answered 535",
    ]
    assert mailbox.mails == []


def test_mail_server_that_is_away_is_a_failure_that_is_tried_again(certificate: Path) -> None:
    with mail_server(Mailbox(), certificate) as port:
        pass
    found = sent(sender(port, certificate))
    assert found.failure is not None
    assert (found.sent, found.failure.gone) == (0, False)


@pytest.mark.parametrize("address", ["ann", "ann@example.org\nBcc: all@example.org", "a b@example.org", "ann@"])
def test_target_that_is_no_mail_address_is_refused(address: str, certificate: Path) -> None:
    notifier = BackgroundNotifier(AddressRule(), sender(25, certificate), connect=httpx.AsyncHTTPTransport)
    with pytest.raises(InvalidInput, match="is not a mail address"):
        notifier.check(WebhookFormat.MAIL, address, where="target")
    notifier.close()


def test_every_fault_of_the_settings_is_told() -> None:
    with pytest.raises(InvalidInput) as refusal:
        mail_sender("https://mail.example", "nobody", ssl.create_default_context())
    assert [each.where for each in refusal.value.faults] == ["smtp_url", "mail_from"]
