"""The port through which messages leave the server: to webhooks by HTTP, to people by mail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.project.webhook_endpoints import WebhookFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """One message: a JSON body for a URL, or the subject and text of a mail. `id` is the same at each try."""

    id: str
    body: str
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRun:
    """Messages to one target, sent one after the other until one fails. Each of `secrets` signs each message."""

    format: WebhookFormat
    target: str = field(repr=False)
    secrets: Sequence[str] = field(repr=False)
    messages: Sequence[OutgoingMessage]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailure:
    """Why a message was not taken. `gone`: the target wants no message any more."""

    message: str
    status: int | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The first `sent` messages of a run were taken.

    Without a failure, and with fewer than all messages sent, there was no time for the rest.
    """

    sent: int
    status: int | None = None
    failure: SendFailure | None = None


class Notifier(Protocol):
    """Sends messages in the background."""

    @property
    def room(self) -> int:
        """The number of runs that may begin now."""

    @property
    def longest_run_s(self) -> float:
        """The seconds within which every run has ended."""

    def check(self, format: WebhookFormat, target: str, *, where: str) -> None:
        """Raises InvalidInput for a target to which this server sends nothing."""

    def send(self, run: MessageRun, done: Callable[[RunOutcome], None]) -> None:
        """Begin a run, and return at once. `done` is called from another thread, once."""


class NoNotifier:
    """The notifier of an installation that sends nothing, such as a simulated one."""

    room = 0
    longest_run_s = 0.0

    def check(self, format: WebhookFormat, target: str, *, where: str) -> None:
        """Raises InvalidInput, whatever the target is."""
        del format, target
        raise InvalidInput([Fault(where=where, message="this server sends no webhooks")])

    def send(self, run: MessageRun, done: Callable[[RunOutcome], None]) -> None:
        """Never called, because there is no room."""
        raise NotImplementedError
