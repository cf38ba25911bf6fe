"""A file at a URL, read once from beginning to end: redirects judged, broken connections taken up, stalls ended."""

import re
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import httpx

from giornata.client.retry import Backoff, Monotonic
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.outbound.public_addresses import AddressRule

MOST_REDIRECTS = 5
LEAST_BYTES_PER_S = 2**16
PATIENCE_S = 120.0
TIMEOUT = httpx.Timeout(connect=10, read=30, write=30, pool=30)
GONE = frozenset({400, 401, 403, 404, 405, 410, 451})
LOGIN = frozenset({401, 403})


@dataclass(frozen=True, slots=True, kw_only=True)
class WebReader:
    """Sends GETs by a rule of addresses. `http` has no credentials and no cookies of ours."""

    http: httpx.Client
    rule: AddressRule = field(default_factory=AddressRule)
    backoff: Backoff = field(default_factory=lambda: Backoff(retries=4, first_s=0.5, most_s=10.0))
    timeout: httpx.Timeout = field(default_factory=lambda: TIMEOUT)
    monotonic_s: Monotonic = time.monotonic

    def get(self, url: str, headers: Mapping[str, str], *, token: str | None, where: str) -> httpx.Response:
        """Return the reply behind all redirects, unread. The token goes to the URL's own host alone.

        Raises InvalidInput for a reply that says no, and Unavailable for one that says later, or for none.
        """
        wanted = first = _url(url, where=where)
        for _ in range(MOST_REDIRECTS + 1):
            own = (wanted.scheme, wanted.netloc) == (first.scheme, first.netloc)
            response = self._send(wanted, headers, token=token if own else None, where=where)
            if not response.has_redirect_location:
                return _accepted(response, wanted, where=where)
            response.close()
            wanted = _url(response.headers["Location"], where=where, base=wanted)
        raise InvalidInput([Fault(where=where, message=f"{first.host} redirects more than {MOST_REDIRECTS} times")])

    def ask(self, url: str, *, token: str | None, where: str) -> httpx.Response:
        """Return the first reply to a GET, unread, be it a redirect or the file. Raises as `get`."""
        wanted = _url(url, where=where)
        response = self._send(wanted, {}, token=token, where=where)
        return response if response.has_redirect_location else _accepted(response, wanted, where=where)

    def chunks(self, url: str, *, token: str | None, where: str) -> Generator[bytes, None, None]:
        """Yield the file. A connection that breaks off is taken up where it did, if the file has not changed.

        Raises as `get`, and Unavailable when the source breaks off, stalls or sends another length than it said.
        """
        received_bytes, failures, mark, total_bytes = 0, 0, "", None
        began_s = self.monotonic_s()
        while True:
            headers = {"Range": f"bytes={received_bytes}-", "If-Range": mark} if received_bytes else {}
            before_bytes = received_bytes
            try:
                with closing(self.get(url, headers, token=token, where=where)) as response:
                    if received_bytes and not _goes_on(response, received_bytes):
                        raise _NotWorthIt(f"{response.url.host} cannot go on where the connection broke off")
                    if not received_bytes:
                        mark, total_bytes = _mark(response), _length(response)
                    for chunk in response.iter_raw():
                        received_bytes += len(chunk)
                        yield chunk
                        self._refuse_trickle(received_bytes, self.monotonic_s() - began_s)
                if total_bytes is None or received_bytes == total_bytes:
                    return
                raise Unavailable(f"the source sent {received_bytes} of {total_bytes} bytes")
            except (Unavailable, httpx.TransportError) as error:
                failures = 1 if received_bytes > before_bytes else failures + 1
                resumable = mark or not received_bytes
                if isinstance(error, _NotWorthIt) or not resumable or failures > self.backoff.retries:
                    raise _broken(error) from error
                self.backoff.pause(failures)

    def _send(self, url: httpx.URL, headers: Mapping[str, str], *, token: str | None, where: str) -> httpx.Response:
        sent = {"Accept-Encoding": "identity", "User-Agent": "giornata", **headers}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        request = self.rule.request(url, sent, where=where)
        request.extensions = {**request.extensions, "timeout": self.timeout.as_dict()}
        try:
            return self.http.send(request, stream=True, auth=None, follow_redirects=False)
        except httpx.TransportError as error:
            raise _away(url, error) from error

    def _refuse_trickle(self, received_bytes: int, took_s: float) -> None:
        if received_bytes < (took_s - PATIENCE_S) * LEAST_BYTES_PER_S:
            raise _NotWorthIt(f"only {received_bytes} bytes have come in {took_s:.0f} s")


class _NotWorthIt(Unavailable):
    """Another try brings no more: the file changed, its source knows no ranges, or the bytes only trickle."""


def _url(text: str, *, where: str, base: httpx.URL | None = None) -> httpx.URL:
    try:
        return httpx.URL(text) if base is None else base.join(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput([Fault(where=where, message=f"is not a URL: {error}")]) from error


def _accepted(response: httpx.Response, url: httpx.URL, *, where: str) -> httpx.Response:
    if response.is_success:
        return response
    status = response.status_code
    response.close()
    if status in GONE:
        hint = "check the spelling; for a private or gated file, keep a token: giornata secrets set"
        message = f"{url.host} answered {status}" + (" (no access)" if status in LOGIN else "")
        raise InvalidInput([Fault(where=where, message=message, hint=hint)])
    raise Unavailable(f"{url.host} answered {status}")


def _mark(response: httpx.Response) -> str:
    """Return what stands for these very bytes in If-Range; empty when the source gives nothing that does."""
    etag: str = response.headers.get("ETag", "")
    return "" if etag.startswith("W/") else etag or response.headers.get("Last-Modified", "")


def _length(response: httpx.Response) -> int | None:
    told = response.headers.get("Content-Length", "")
    return int(told) if re.fullmatch(r"[0-9]{1,15}", told) else None


def _goes_on(response: httpx.Response, received_bytes: int) -> bool:
    begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    partial = response.status_code == httpx.codes.PARTIAL_CONTENT
    return partial and begins is not None and int(begins[1]) == received_bytes


def _away(url: httpx.URL, error: httpx.TransportError) -> Unavailable:
    return Unavailable(f"{url.host} does not answer: {type(error).__name__}: {error}")


def _broken(error: Exception) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    what = "stalls" if isinstance(error, httpx.ReadTimeout) else "broke off"
    return Unavailable(f"the source {what} ({type(error).__name__}): ask again later")
