"""Requests to webhooks: signed, to a judged address, without redirects, and with an end to every wait."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import httpx

from giornata.control.ports.notifier import MessageRun, OutgoingMessage, SendFailure
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.outbound.public_addresses import AddressRule
from giornata.protocol.project.webhooks import signed_headers

GONE = 410
USER_AGENT = "giornata"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRequests:
    """Sends messages to URLs. `resolvers` look up hosts: a name server that hangs holds up no other request.

    `connect` returns a transport for one request, which knows no proxy. There is no pool: no connection serves a
    second request, and a pool walks through all connections that hang at each request.
    """

    connect: Callable[[], httpx.AsyncBaseTransport]
    rule: AddressRule
    resolvers: ThreadPoolExecutor
    timeout_s: float
    now_s: Callable[[], float] = time.time

    def check(self, target: str, *, where: str) -> None:
        """Raises InvalidInput for a URL that is not asked, and for one whose host cannot be looked up."""
        try:
            self.rule.request(_url(target, where=where), {}, where=where)
        except Unavailable as error:
            raise InvalidInput([Fault(where=where, message=error.public, hint="check the spelling")]) from error

    async def send(self, run: MessageRun, message: OutgoingMessage) -> int | SendFailure:
        """Return the status of a target that took the message; else why it did not."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return _judged(await self._status(run, message))
        except TimeoutError:
            return SendFailure(message=f"no answer came within {self.timeout_s:g} s")
        except InvalidInput as error:
            return SendFailure(message="; ".join(fault.message for fault in error.faults))
        except Unavailable as error:
            return SendFailure(message=error.public)
        except httpx.HTTPError as error:
            return SendFailure(message=f"{type(error).__name__}: {error}")

    async def _status(self, run: MessageRun, message: OutgoingMessage) -> int:
        body = message.body.encode()
        headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
        if run.secrets:
            at_s = int(self.now_s())
            headers |= signed_headers(run.secrets, delivery_id=message.id, timestamp_s=at_s, body=body)
        url = _url(run.target, where="target")
        judged = partial(self.rule.request, url, headers, where="target", method="POST", content=body)
        request = await asyncio.get_running_loop().run_in_executor(self.resolvers, judged)
        request.extensions = {**request.extensions, "timeout": httpx.Timeout(self.timeout_s).as_dict()}
        # Only the head of the reply is read: what a target says is of no use, and may be endless.
        async with self.connect() as transport:
            response = await transport.handle_async_request(request)
            await response.aclose()
            return response.status_code


def _judged(status: int) -> int | SendFailure:
    if httpx.codes.is_success(status):
        return status
    followed = " (redirects are not followed)" if httpx.codes.is_redirect(status) else ""
    return SendFailure(message=f"the target answered {status}{followed}", status=status, gone=status == GONE)


def _url(target: str, *, where: str) -> httpx.URL:
    faults = []
    try:
        url = httpx.URL(target)
        port = url.port
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput([Fault(where=where, message=f"is not a URL: {error}")]) from error
    if not url.host or url.scheme not in {"https", "http"} or port == 0:
        faults.append(Fault(where=where, message="is not an https URL", hint="https://HOST/PATH"))
    if url.userinfo:
        hint = "put a token into the path, or check the signature"
        faults.append(Fault(where=where, message="holds a user or a password", hint=hint))
    if url.fragment:
        faults.append(
            Fault(where=where, message="has a fragment, which is never sent", hint="leave out # and the rest")
        )
    if faults:
        raise InvalidInput(faults)
    return url
