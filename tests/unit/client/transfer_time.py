"""What the tests of transfers share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx

from giornata.client.storage_requests import Pace

START = datetime(2026, 1, 1, tzinfo=UTC)
Answer = Callable[[httpx.Request], httpx.Response]


@dataclass
class Time:
    """A clock that only moves when somebody waits, or when a test says so; and what was waited for."""

    now: datetime = START
    waits_s: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now += timedelta(seconds=seconds)

    def pace(self, tries: int = 4) -> Pace:
        return Pace(tries=tries, sleep=self.sleep, jitter=lambda: 1.0, now=lambda: self.now)


def status(code: int, text: str = "") -> Answer:
    return lambda request: httpx.Response(code, text=text)
