"""Requests to SaladCloud: paced, repeated while that may help, and with errors in our words.

The vendor's own SDK does not repeat a request that was refused with 429, which is the first thing that its API asks
for; hence this one (ADR 23). Every request that a driver sends may be repeated: see `calls`.
"""

import hashlib
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from weakref import WeakValueDictionary

import httpx

from giornata.domain.errors import FleetRefused, FleetUnavailable


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class RateLimiter:
    """A bucket of tokens: `burst` requests at once, and `per_minute` in the long run. Thread-safe.

    In any minute at most `burst + per_minute` requests go out. `monotonic_s` and `sleep` are arguments so that tests
    need not wait.
    """

    per_minute: float
    burst: int = 20
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tokens: float = field(init=False)
    _filled_s: float = field(init=False)
    _not_before_s: float = field(init=False, default=0.0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._tokens, self._filled_s = float(self.burst), self.monotonic_s()

    def wait(self) -> None:
        """Take a token; first sleep until there is one."""
        delay_s = self._taken_in_s()
        if delay_s > 0:
            self.sleep(delay_s)

    def hold(self, seconds: float) -> None:
        """Send no requests with this key for so long, after the provider's limit was reached."""
        with self._lock:
            self._not_before_s = max(self._not_before_s, self.monotonic_s() + seconds)
            self._tokens = min(self._tokens, 1.0)

    def held_s(self) -> float:
        """Return the seconds for which no request may be sent."""
        return max(0.0, self._not_before_s - self.monotonic_s())

    def _taken_in_s(self) -> float:
        # Tokens may be owed: each who waits has taken one, so that those who wait do not all wake up for one.
        with self._lock:
            now_s, rate_per_s = self.monotonic_s(), self.per_minute / 60
            self._tokens = min(float(self.burst), self._tokens + (now_s - self._filled_s) * rate_per_s) - 1
            self._filled_s = now_s
            owed_s = max(0.0, -self._tokens / rate_per_s)
            return max(owed_s, self._not_before_s - now_s)


MOST_AT_ONCE = 20

_rate_limiters: "WeakValueDictionary[str, RateLimiter]" = WeakValueDictionary()
_rate_limiters_lock = threading.Lock()


def rate_limiter_of(api_key: str, *, per_minute: float) -> RateLimiter:
    """The rate limiter that all users of the key in this process share: the provider counts by key, not by fleet.

    `per_minute` is the whole: a burst of at most 20 is taken from it, so that no minute has more than allowed.
    """
    name = hashlib.sha256(api_key.encode()).hexdigest()
    burst = max(1, min(MOST_AT_ONCE, int(per_minute // 4)))
    with _rate_limiters_lock:
        rate_limiter = _rate_limiters.get(name)
        if rate_limiter is None:
            rate_limiter = _rate_limiters[name] = RateLimiter(per_minute=max(1.0, per_minute - burst), burst=burst)
        return rate_limiter


log = logging.getLogger(__name__)

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
TRIES = 5
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 16.0
# Who is asked for more patience than this gives up for now, and the loop that asked comes again later.
PATIENCE_S = 60.0
LONGEST_RETRY_AFTER_S = 3600.0  # whoever says more is mistaken
MERGE_PATCH = "application/merge-patch+json"
# By the published document a changed container group is answered as merge-patch+json, and all else as JSON.
ACCEPT = f"application/json, {MERGE_PATCH}, application/problem+json"
LONGEST_QUOTE = 300
GATEWAY_STATUS = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    """A reply that is an answer: success, or 404. `repeated`: an earlier try may have been carried out as well."""

    status: int
    body: Any = None
    repeated: bool = False

    @property
    def found(self) -> bool:
        """True unless the provider answered 404."""
        return self.status != HTTPStatus.NOT_FOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPauses:
    """The way in which pauses are made. `wall_s` reads dates of Retry-After; `chance` is from 0 to 1."""

    sleep: Callable[[float], None] = time.sleep
    wall_s: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True, kw_only=True)
class SaladClient:
    """One API key. `http` has the API's address as its base URL. Safe to use from several threads."""

    http: httpx.Client
    api_key: str = field(repr=False)
    rate_limiter: RateLimiter
    pauses: RetryPauses = field(default_factory=RetryPauses)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **params: str) -> ApiResponse:
        """Send one request, repeated when the provider is overloaded, away, or its reply got lost.

        Raises FleetUnavailable when that did not help within the patience, and FleetRefused for what the provider
        will not do. A 404 is an answer, if it is the API's own and no gateway's.
        """
        waited_s, repeated = 0.0, False
        for number in range(1, TRIES + 1):
            outcome = self._try(method, path, body, params)
            if not isinstance(outcome, _FailedTry):
                return ApiResponse(status=outcome.status_code, body=_document(outcome), repeated=repeated)
            pause_s = self._pause_s(outcome, number)
            waited_s += pause_s
            if number == TRIES or waited_s > PATIENCE_S:
                raise FleetUnavailable(f"SaladCloud: {outcome.message}", retry_after_s=outcome.retry_after_s)
            log.debug("%s %s: %s; again in %.1f s", method, path, outcome.message, pause_s)
            repeated = repeated or outcome.maybe_done
            self.pauses.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _try(
        self, method: str, path: str, body: Mapping[str, Any] | None, params: Mapping[str, str]
    ) -> "httpx.Response | _FailedTry":
        held_s = self.rate_limiter.held_s()
        if held_s > PATIENCE_S:
            return _FailedTry(message="it asked for patience", retry_after_s=held_s)
        self.rate_limiter.wait()
        headers = {"Salad-Api-Key": self.api_key, "Accept": ACCEPT}
        if body is not None:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else "application/json"
        content = None if body is None else _json(body)
        try:
            response = self.http.request(
                method, path, content=content, headers=headers, params=params or None, timeout=TIMEOUT
            )
        except httpx.TransportError as error:
            sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            return _FailedTry(message=f"{method} {path}: {type(error).__name__}: {error}", maybe_done=sent)
        return self._judged(response, f"{method} {path}")

    def _judged(self, response: httpx.Response, what: str) -> "httpx.Response | _FailedTry":
        status, said = response.status_code, f"{what}: {response.status_code} {quoted(response)}"
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return _FailedTry(message=said, retry_after_s=self._retry_after_s(response), throttled=True)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in GATEWAY_STATUS:
            return _FailedTry(message=said, retry_after_s=self._retry_after_s(response), maybe_done=True)
        if response.is_success:
            readable = not response.content or _document(response) is not None
            return response if readable else _FailedTry(message=f"{said}: this is not JSON", maybe_done=True)
        if status == HTTPStatus.NOT_FOUND and not is_page(response):
            return response
        if response.is_redirect or status == HTTPStatus.NOT_FOUND:
            # A page of a gateway says nothing about what it stands before.
            return _FailedTry(message=said)
        raise FleetRefused(f"SaladCloud refuses {said}")

    def _pause_s(self, trouble: "_FailedTry", number: int) -> float:
        whole_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (number - 1))
        pause_s = whole_s * (0.5 + 0.5 * self.pauses.chance())
        if trouble.retry_after_s is not None:
            # Never earlier than asked, and not all at once.
            pause_s = trouble.retry_after_s + self.pauses.chance() * 0.5
        if trouble.throttled:
            self.rate_limiter.hold(pause_s)
        return pause_s

    def _retry_after_s(self, response: httpx.Response) -> float | None:
        said = response.headers.get("retry-after", "").strip()
        if said.isascii() and said.isdigit():
            return min(float(said), LONGEST_RETRY_AFTER_S)
        try:
            in_s = parsedate_to_datetime(said).timestamp() - self.pauses.wall_s()
            return min(max(0.0, in_s), LONGEST_RETRY_AFTER_S)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedTry:
    """The reason for a failed try. `maybe_done`: the request may have been carried out all the same."""

    message: str
    retry_after_s: float | None = None
    throttled: bool = False
    maybe_done: bool = False


def _json(body: Mapping[str, Any]) -> bytes:
    return httpx.Request("POST", "http://body", json=dict(body)).content


def _document(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def is_page(response: httpx.Response) -> bool:
    """Return True when the response is HTML, as gateways send it, and not from the API."""
    kind = response.headers.get("content-type", "")
    return "html" in kind.lower() or response.content.lstrip()[:1] == b"<"


def quoted(response: httpx.Response) -> str:
    """Return an error's text as one short line. The body may be a problem document, a page or empty."""
    document = _document(response)
    if isinstance(document, dict):
        said = str(document.get("detail") or document.get("title") or document.get("type") or "")
    else:
        said = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]*>", " ", response.text)
    return " ".join(said.split())[:LONGEST_QUOTE] or "(it says nothing)"
