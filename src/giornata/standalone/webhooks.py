"""Webhooks of a standalone run. A thread of its own delivers them: training never waits."""

import hashlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from giornata.client.retry import QueuedTask, TaskQueue, delays_s, persist
from giornata.domain.errors import Conflict, Unavailable
from giornata.protocol.events import EventType
from giornata.protocol.project.webhooks import Delivery, signed_headers

TRIES = 6
LONGEST_PAUSE_S = 20.0
FIRST_ERROR_STATUS = 300
GONE = 410


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """The receiver, the secret that signs, and a clock in seconds since 1970."""

    url: str
    secret: str
    http: httpx.Client
    now_s: Callable[[], float]


class WebhookSender:
    """Delivers events in their order, each up to TRIES times. Without a receiver it does nothing.

    An event's id is a function of what happened, so that a receiver recognizes an event that comes twice, as after a
    kill. `say` gets a line for people when a delivery is given up.
    """

    def __init__(
        self,
        config: WebhookConfig | None,
        *,
        job_id: str,
        say: Callable[[str], None],
        rng: random.Random,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._config, self._job_id, self._say, self._rng = config, job_id, say, rng
        self._queue = TaskQueue("webhooks")
        self._sleep = sleep or self._queue.sleep
        self.delivered = self.given_up = 0
        if config is not None:
            self._queue.start()

    def notify(self, event: EventType, *, at: datetime, data: dict[str, Any], about: str) -> None:
        """Send an event; `about` distinguishes the event from others of its type (a step)."""
        if self._config is None:
            return
        config, digest = self._config, hashlib.sha256(f"{self._job_id}|{event}|{about}".encode()).hexdigest()[:26]
        delivery = Delivery(id=f"evt_{digest}", type=event, job_id=self._job_id, at=at, data=data)
        run, what = (lambda: self._deliver(config, delivery)), str(delivery.type)
        self._queue.put(QueuedTask(what=what, run=run, ended=lambda error: self._count(what, error)))

    def close(self, timeout_s: float) -> None:
        """Deliver what is waiting, but for no longer than this."""
        if self._config is not None and not self._queue.wait_idle(timeout_s):
            late = self._queue.pending()
            self._queue.stop(wait_s=1.0)
            for what in late[1:]:
                self._count(what, Unavailable("there was no time left"))

    def _count(self, what: str, error: Exception | None) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.given_up += 1
            self._say(f"the webhook for {what} could not be delivered: {error}")

    def _deliver(self, config: WebhookConfig, delivery: Delivery) -> None:
        persist(
            lambda: _send(config, delivery),
            delays=itertools.islice(delays_s(self._rng, first_s=1.0, most_s=LONGEST_PAUSE_S), TRIES - 1),
            sleep=self._sleep,
            monotonic_s=lambda: 0.0,
            until=lambda: 0.0 if self._queue.is_stopped else None,
        )


def _send(config: WebhookConfig, delivery: Delivery) -> None:
    """Make one try. Raises Unavailable when another may help, and Conflict when the receiver wants no more."""
    body = delivery.model_dump_json().encode()
    headers = signed_headers([config.secret], delivery_id=delivery.id, timestamp_s=int(config.now_s()), body=body)
    try:
        reply = config.http.post(config.url, content=body, headers={"content-type": "application/json", **headers})
    except httpx.HTTPError as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error
    if reply.status_code == GONE:
        raise Conflict(f"status {GONE}")
    if reply.status_code >= FIRST_ERROR_STATUS:
        raise Unavailable(f"status {reply.status_code}")
