"""Tells somebody's web server, in a thread of its own: training never waits for it."""

import hashlib
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from giornata.agent.backoff import delays_s
from giornata.protocol.events import EventType
from giornata.protocol.webhooks import Delivery, signed_headers

TRIES = 6
LONGEST_PAUSE_S = 20.0
FIRST_ERROR_STATUS = 300
GONE = 410

Wait = Callable[[float], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ringing:
    """Where to, signed with what, by which clock (seconds since 1970)."""

    url: str
    secret: str
    http: httpx.Client
    now_s: Callable[[], float]


class Bell:
    """Delivers events in their order, each up to TRIES times. Without a place to deliver to it keeps quiet.

    An event's id is a function of what happened, so whoever gets one twice, as after a kill, can tell.
    `grumble` gets a line for people when a delivery is given up.
    """

    def __init__(
        self,
        ringing: Ringing | None,
        *,
        job_id: str,
        grumble: Callable[[str], None],
        rng: random.Random,
        wait: Wait | None = None,
    ) -> None:
        self._ringing, self._job_id, self._grumble, self._rng = ringing, job_id, grumble, rng
        self._hurry = threading.Event()
        self._wait = wait or self._hurry.wait
        self._waiting: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self.delivered = self.given_up = 0
        self._thread = threading.Thread(target=self._deliver_all, name="bell", daemon=True)
        if ringing is not None:
            self._thread.start()

    def ring(self, what: EventType, *, at: datetime, data: dict[str, Any], about: str) -> None:
        """Tell of an event; `about` distinguishes it from others of its type (a step)."""
        named = hashlib.sha256(f"{self._job_id}|{what}|{about}".encode()).hexdigest()[:26]
        self._waiting.put(Delivery(id=f"evt_{named}", type=what, job_id=self._job_id, at=at, data=data))

    def close(self, timeout_s: float) -> None:
        """Deliver what is waiting, but for no longer than this."""
        self._waiting.put(None)
        if self._ringing is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._hurry.set()
            self._thread.join(1.0)

    def _deliver_all(self) -> None:
        while (delivery := self._waiting.get()) is not None:
            why = self._deliver(delivery)
            if why is None:
                self.delivered += 1
            else:
                self.given_up += 1
                self._grumble(f"the webhook for {delivery.type} could not be delivered: {why}")

    def _deliver(self, delivery: Delivery) -> str | None:
        """None when it has arrived, else why it has not."""
        pauses = delays_s(self._rng, first_s=1.0, most_s=LONGEST_PAUSE_S)
        why = ""
        for left in reversed(range(TRIES)):
            why = self._try(delivery)
            if not why:
                return None
            if left == 0 or self._hurry.is_set() or why == f"status {GONE}":
                break
            self._wait(next(pauses))
        return why

    def _try(self, delivery: Delivery) -> str:
        assert self._ringing is not None  # noqa: S101 - the thread runs only then
        body = delivery.model_dump_json().encode()
        headers = signed_headers(
            self._ringing.secret, delivery_id=delivery.id, timestamp_s=int(self._ringing.now_s()), body=body
        )
        try:
            reply = self._ringing.http.post(
                self._ringing.url, content=body, headers={"content-type": "application/json", **headers}
            )
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        return f"status {reply.status_code}" if reply.status_code >= FIRST_ERROR_STATUS else ""
