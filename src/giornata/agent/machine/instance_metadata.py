"""The metadata service that SaladCloud gives to the containers on its machines.

A node there needs no key: the provider gives it a token that says on which machine it runs, and the server verifies
it.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from giornata.client.retry import Monotonic
from giornata.domain.errors import Unavailable

log = logging.getLogger(__name__)

URL = "http://169.254.169.254"
HEADERS = {"Metadata": "true"}
TIMEOUT = httpx.Timeout(5.0, connect=2.0)
# Tokens live for five minutes and are served with three of them left at least. Counted by the node's own monotonic
# clock: machines of strangers show any time of day.
FRESH_FOR_S = 60.0
GOOD_FOR_S = 170.0
LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePlace:
    """The identity of a container: its start, its hardware and its container group."""

    instance_id: str
    machine_id: str
    group: str | None


def place_in(environment: Mapping[str, str]) -> InstancePlace | None:
    """Return what the provider's variables say; None outside containers of SaladCloud."""
    machine_id = environment.get("SALAD_MACHINE_ID")
    if not machine_id:
        return None
    return InstancePlace(
        machine_id=machine_id,
        # Without it the name of the container, which is as unique, but is nothing that the provider lists.
        instance_id=environment.get("SALAD_INSTANCE_ID") or environment.get("HOSTNAME") or machine_id,
        group=environment.get("SALAD_CONTAINER_GROUP_NAME") or None,
    )


def direct_client(url: str = URL) -> httpx.Client:
    """Return a client that passes every proxy by: the provider refuses requests of proxies."""
    return httpx.Client(base_url=url, trust_env=False, headers=HEADERS, timeout=TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMetadata:
    """Calls the metadata service. `http` comes from `direct_client`. Raises Unavailable without an answer.

    The deletion cost is not set here: the driver sets it by the API, and the provider asks for one of the two.
    """

    http: httpx.Client

    def token(self) -> str:
        """Return a token that identifies this container and lives for three minutes or more."""
        token = self._asked("GET", "/v1/token").get("jwt")
        if not isinstance(token, str) or not token:
            raise Unavailable("the instance's metadata service gave no token")
        return token

    def status(self) -> tuple[bool, bool]:
        """Return whether the provider takes the container for started, and for ready."""
        said = self._asked("GET", "/v1/status")
        return said.get("started") is True, said.get("ready") is True

    def reallocate(self, reason: str) -> None:
        """Ask for another machine in place of this one, which then does not come back for two days."""
        said = " ".join(reason.split())[:LONGEST_REASON] or "the node asked for it"
        self._asked("POST", "/v1/reallocate", {"reason": said})

    def leave(self, reason: str) -> None:
        """Call `reallocate` once, and log an error instead of raising it: the node ends in any case."""
        try:
            self.reallocate(reason)
        except Unavailable as error:
            log.warning("could not ask for another machine: %s", error)

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        try:
            response = self.http.request(method, path, json=body)
            response.raise_for_status()
            said = response.json() if response.content else {}
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"the instance's metadata service: {method} {path}: {error}") from error
        return said if isinstance(said, dict) else {}


@dataclass(slots=True, kw_only=True)
class WorkloadToken:
    """Gives a token that is good, and asks for a new one in time. Thread-safe.

    While no new one can be had, the last is given for as long as it is good. Raises Unavailable after that.
    """

    fetch: Callable[[], str]
    monotonic_s: Monotonic
    _token: str = ""
    _fetched_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> str:
        """Return the token to send now."""
        with self._lock:
            age_s = self.monotonic_s() - self._fetched_s
            if self._token and age_s < FRESH_FOR_S:
                return self._token
            try:
                token = self.fetch()
            except Unavailable:
                if self._token and age_s < GOOD_FOR_S:
                    return self._token
                raise
            self._token, self._fetched_s = token, self.monotonic_s()
            return token
