"""Sends messages in the background: any number of targets wait at one time, in one thread."""

import asyncio
import logging
import smtplib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from giornata.control.ports.notifier import MessageRun, OutgoingMessage, RunOutcome, SendFailure
from giornata.domain.errors import Fault, InvalidInput
from giornata.outbound.mail import ADDRESS, MailSender
from giornata.outbound.public_addresses import AddressRule
from giornata.outbound.webhook_requests import WebhookRequests
from giornata.protocol.project.webhook_endpoints import WebhookFormat

log = logging.getLogger("giornata.webhooks")

MOST_RUNS = 512
RESOLVERS = 64
MAIL_THREADS = 8
NOTING_THREADS = 4
TIMEOUT_S = 15.0
RUN_S = 30.0
WEBHOOK_HINT = "name a host that everybody can reach by https; the operator may allow networks: webhook_networks"


class BackgroundNotifier:
    """Implements `giornata.control.ports.notifier.Notifier` with HTTP requests and mails.

    A run takes at most RUN_S and one more message, so that a slow target gives back what was not sent.
    """

    longest_run_s = RUN_S + TIMEOUT_S

    def __init__(
        self,
        rule: AddressRule,
        mail: MailSender | None,
        *,
        connect: Callable[[], httpx.AsyncBaseTransport],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._resolvers = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="webhook-names")
        self._mailers = ThreadPoolExecutor(MAIL_THREADS, thread_name_prefix="mail")
        self._noting = ThreadPoolExecutor(NOTING_THREADS, thread_name_prefix="webhook-outcomes")
        self._mail, self._timeout_s = mail, timeout_s
        self._requests = WebhookRequests(connect=connect, rule=rule, resolvers=self._resolvers, timeout_s=timeout_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="webhooks", daemon=True)
        self._lock, self._runs, self._closed = threading.Lock(), 0, False

    @property
    def room(self) -> int:
        """The number of runs that may begin now."""
        with self._lock:
            return 0 if self._closed else MOST_RUNS - self._runs

    def check(self, format: WebhookFormat, target: str, *, where: str) -> None:
        """Raises InvalidInput for a target to which this server sends nothing."""
        if format is not WebhookFormat.MAIL:
            self._requests.check(target, where=where)
        elif self._mail is None:
            message, hint = "this server sends no mail", "its operator sets smtp_url and mail_from"
            raise InvalidInput([Fault(where=where, message=message, hint=hint)])
        elif ADDRESS.fullmatch(target) is None:
            raise InvalidInput([Fault(where=where, message="is not a mail address", hint="such as me@example.org")])

    def send(self, run: MessageRun, done: Callable[[RunOutcome], None]) -> None:
        """Begin a run, and return at once."""
        with self._lock:
            if self._closed:
                return  # the time for which the deliveries were taken runs out
            self._runs += 1
            if not self._thread.is_alive():
                self._thread.start()
        asyncio.run_coroutine_threadsafe(self._run(run, done), self._loop)

    def close(self) -> None:
        """Begin no more runs, and let go of those under way: their deliveries are made again later."""
        with self._lock:
            self._closed, started = True, self._thread.is_alive()
        if started:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        for each in (self._resolvers, self._mailers, self._noting):
            each.shutdown(wait=each is self._noting, cancel_futures=True)

    async def _stop(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _run(self, run: MessageRun, done: Callable[[RunOutcome], None]) -> None:
        try:
            outcome = await self._outcome(run)
            await self._loop.run_in_executor(self._noting, done, outcome)
        except Exception:  # the supervisor of runs: the deliveries are made again when their time has run out
            log.exception("the outcome of a webhook could not be noted, and the deliveries will be repeated")
        finally:
            with self._lock:
                self._runs -= 1

    async def _outcome(self, run: MessageRun) -> RunOutcome:
        ends_s = time.monotonic() + RUN_S
        sent, status = 0, None
        for message in run.messages:
            if sent and time.monotonic() > ends_s:
                break
            result = await self._send_one(run, message)
            if isinstance(result, SendFailure):
                return RunOutcome(sent=sent, status=status, failure=result)
            sent, status = sent + 1, result
        return RunOutcome(sent=sent, status=status)

    async def _send_one(self, run: MessageRun, message: OutgoingMessage) -> int | SendFailure | None:
        if run.format is not WebhookFormat.MAIL:
            return await self._requests.send(run, message)
        if self._mail is None:
            return SendFailure(message="this server sends no mail any more: smtp_url is not set")
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._loop.run_in_executor(self._mailers, self._send_mail, self._mail, run.target, message)
        except TimeoutError:
            return SendFailure(message=f"the mail server did not take the mail within {self._timeout_s:g} s")
        except smtplib.SMTPResponseException as error:
            return SendFailure(message=f"the mail server answered {error.smtp_code}", status=error.smtp_code)
        except (OSError, ValueError) as error:
            return SendFailure(message=f"the mail could not be sent ({type(error).__name__})")
        return None

    def _send_mail(self, mail: MailSender, to: str, message: OutgoingMessage) -> None:
        mail.send(to, message, timeout_s=self._timeout_s)
