"""Calls to the server: the key, the retries, typed replies, errors as `giornata.domain.errors`.

A URL of the wrong scheme is told at once, because no retry mends it.
"""

import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from giornata.client.problems import raise_for_problem
from giornata.client.retry import Backoff
from giornata.domain.errors import Fault, GiornataError, InvalidInput, Unavailable, Unreachable
from giornata.protocol.model import Message, Reply

NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")
NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
PLAIN_TO_TLS = ("plain http request was sent to https port", "http request to an https server")
PROBE_TIMEOUT_S = 3.0
R = TypeVar("R", bound=Reply)

Params = Mapping[str, str | int | bool | Sequence[str] | None]

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
# The server reads bytes back to verify them, and looks at every picture of a dataset, before it answers.
LONG_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
# A stream says something at least every ten seconds.
STREAM_TIMEOUT = httpx.Timeout(35.0, connect=5.0)
LONGEST_RETRY_AFTER_S = 60.0


class Connection:
    """A connection to one server with one key, or without one to sign in. Safe to use from several threads."""

    def __init__(self, base_url: str, api_key: str | None, *, http: httpx.Client, backoff: Backoff) -> None:
        self.http, self.backoff = http, backoff
        self._base_url = _checked_url(base_url)
        # Per request, never on the client: signed URLs lead elsewhere, and must not be sent the key.
        self._auth = {} if api_key is None else {"Authorization": f"Bearer {_checked_key(api_key)}"}
        self._answered = False  # once there was an answer, the scheme is right, and a failure is another matter

    def call(
        self,
        method: str,
        path: str,
        reply: type[R],
        *,
        body: Message | None = None,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        timeout: httpx.Timeout = TIMEOUT,
    ) -> R:
        """Make one call, repeated as often as the backoff allows.

        What is not `repeatable` is tried again only when it cannot have reached the server. Raises the error that
        the server sent; Unavailable when it could not be reached, or did not answer in its own terms.
        """
        request = self._request(method, path, body=body, params=params, headers=headers, timeout=timeout)
        response = self._sent(request, repeatable=repeatable)
        try:
            return reply.model_validate_json(response.content or b"{}")
        except ValidationError as error:
            raise Unavailable(f"{request.url.path}: the reply is not from a Giornata server: {error}") from error

    def text(self, path: str, *, params: Params | None = None) -> str:
        """Get a reply that is no JSON object. Raises as `call`."""
        request = self._request("GET", path, body=None, params=params, headers={"Accept": "*/*"}, timeout=TIMEOUT)
        return self._sent(request, repeatable=True).text

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Message | None,
        params: Params | None,
        headers: Mapping[str, str] | None,
        timeout: httpx.Timeout,
    ) -> httpx.Request:
        return self.http.build_request(
            method,
            self._base_url + path,
            content=None if body is None else body.model_dump_json(exclude_unset=True).encode(),
            params={name: value for name, value in (params or {}).items() if value is not None},
            headers=self._headers(headers or {}, has_body=body is not None),
            timeout=timeout,
        )

    @contextmanager
    def stream(self, path: str, *, after: int) -> Iterator[httpx.Response]:
        """A stream of events behind `after`, tried once. Raises as `call`, also while it is read."""
        headers = self._headers({"Accept": "text/event-stream", "Last-Event-ID": str(after)}, has_body=False)
        url = self._base_url + path
        try:
            with self.http.stream("GET", url, headers=headers, timeout=STREAM_TIMEOUT) as response:
                if not response.is_success:
                    response.read()
                raise_for_problem(response)
                yield response
        except httpx.RequestError as error:
            raise self._unreachable(error) from error

    def _sent(self, request: httpx.Request, *, repeatable: bool) -> httpx.Response:
        failures = 0
        while True:
            failures += 1
            last = failures > self.backoff.retries
            try:
                response = self.http.send(request)
            except httpx.RequestError as error:
                if not self._answered and (told := wrong_scheme(self._base_url, error)) is not None:
                    raise told from error
                never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if last or not (repeatable or never_sent):
                    raise self._unreachable(error) from error
                self.backoff.pause(failures)
                continue
            try:
                if (told := wrong_scheme_in(self._base_url, response)) is not None:
                    raise told
                self._answered = True
                raise_for_problem(response)
                return response
            except GiornataError as error:
                if last or isinstance(error, Unreachable) or not (repeatable and error.retryable):
                    raise
            self.backoff.pause(failures, at_least_s=_retry_after_s(response))

    def _headers(self, more: Mapping[str, str], *, has_body: bool) -> dict[str, str]:
        content_type = {"Content-Type": "application/json"} if has_body else {}
        return {"Accept": "application/json", **self._auth, **content_type, **more}

    def _unreachable(self, error: httpx.RequestError) -> Unreachable:
        return Unreachable(f"{self._base_url} does not answer ({type(error).__name__}: {error})")


def _retry_after_s(response: httpx.Response) -> float:
    said = response.headers.get("retry-after", "")
    return min(float(said), LONGEST_RETRY_AFTER_S) if said.isascii() and said.isdigit() else 0.0


def _checked_url(base_url: str) -> str:
    if not base_url.startswith(("http://", "https://")):
        fault = Fault(where="url", message=f"{base_url!r} is not the address of a server", hint="http://host:port")
        raise InvalidInput([fault])
    return base_url.rstrip("/")


def _checked_key(api_key: str) -> str:
    if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        fault = Fault(
            where="api_key", message="is empty or holds characters that no key has", hint="it begins with gk_"
        )
        raise InvalidInput([fault])
    return api_key


def wrong_scheme(base_url: str, error: httpx.RequestError) -> Unreachable | None:
    """Return the error for a request that failed because of its scheme or certificate; None for other reasons."""
    said = str(error).replace(" ", "_").upper()
    if base_url.startswith("https:"):
        if any(word in said for word in NO_TLS):
            return Unreachable(f"{base_url} does not speak TLS", hint=f"Use {_with_scheme(base_url, 'http')}")
        if NOT_TRUSTED in said:
            hint = "Name the file of its certificate authority in SSL_CERT_FILE, or check the host's name."
            return Unreachable(f"the certificate of {base_url} is not trusted: {error}", hint=hint)
        return None
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and speaks_tls(base_url):
        return _needs_https(base_url)
    return None


def wrong_scheme_in(base_url: str, response: httpx.Response) -> Unreachable | None:
    """The same for an answer: what a web server says to plain HTTP on its port for TLS."""
    if response.status_code != httpx.codes.BAD_REQUEST or base_url.startswith("https:"):
        return None
    said = response.text[:2000].lower()
    return _needs_https(base_url) if any(words in said for words in PLAIN_TO_TLS) else None


def speaks_tls(base_url: str) -> bool:
    """Return True when a TLS handshake succeeds there. Nothing is sent, so no certificate has to be trusted."""
    url = urlsplit(base_url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((url.hostname or "", url.port or 80), timeout=PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=url.hostname),
        ):
            return True
    except (OSError, ValueError):
        return False


def _needs_https(base_url: str) -> Unreachable:
    return Unreachable(f"{base_url} speaks TLS only", hint=f"Use {_with_scheme(base_url, 'https')}")


def _with_scheme(base_url: str, scheme: str) -> str:
    return f"{scheme}://{base_url.partition('://')[2]}"
