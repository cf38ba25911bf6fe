"""Mail by SMTP, always with TLS: from the first byte (smtps://), or after STARTTLS (smtp://)."""

import re
import smtplib
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from urllib.parse import unquote, urlsplit

from giornata.control.ports.notifier import OutgoingMessage
from giornata.domain.errors import Fault, InvalidInput

ADDRESS = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?", re.ASCII
)
PORTS = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSender:
    """Sends mails through one SMTP server. `tls` verifies the server."""

    host: str
    port: int
    tls: ssl.SSLContext = field(repr=False)
    implicit_tls: bool
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)

    def send(self, to: str, message: OutgoingMessage, *, timeout_s: float) -> None:
        """Send one mail. Raises OSError and its subclass smtplib.SMTPException; without TLS nothing is sent."""
        with self._connected(timeout_s) as smtp:
            if self.user:
                smtp.login(self.user, self.password)
            smtp.send_message(self._mail(to, message))

    def _connected(self, timeout_s: float) -> smtplib.SMTP:
        if self.implicit_tls:
            return smtplib.SMTP_SSL(self.host, self.port, timeout=timeout_s, context=self.tls)
        smtp = smtplib.SMTP(self.host, self.port, timeout=timeout_s)
        try:
            smtp.starttls(context=self.tls)
        except BaseException:
            smtp.close()
            raise
        return smtp

    def _mail(self, to: str, message: OutgoingMessage) -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = self.sender, to, message.subject
        mail["Date"] = format_datetime(datetime.now(UTC))
        # The same at each try, so that a mailbox may recognize a mail that comes twice.
        mail["Message-ID"] = f"<{message.id}@{self.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.body)
        return mail


def mail_sender(url: str, sender: str, tls: ssl.SSLContext) -> MailSender:
    """Return the sender that the settings `smtp_url` and `mail_from` describe. Raises InvalidInput."""
    faults = []
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in PORTS or not parts.hostname:
        hint = "smtps://USER:PASSWORD@HOST, or smtp://USER:PASSWORD@HOST for STARTTLS"
        faults.append(Fault(where="smtp_url", message="is not the URL of a mail server", hint=hint))
    if ADDRESS.fullmatch(sender) is None:
        faults.append(Fault(where="mail_from", message="is not a mail address", hint="such as giornata@example.org"))
    if faults:
        raise InvalidInput(faults)
    return MailSender(
        host=parts.hostname or "",
        port=port or PORTS[parts.scheme],
        tls=tls,
        implicit_tls=parts.scheme == "smtps",
        sender=sender,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )
