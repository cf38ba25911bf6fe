"""What the tests of transfers share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from giornata.client.retry import Backoff

START = datetime(2026, 1, 1, tzinfo=UTC)
Answer = Callable[[httpx.Request], httpx.Response]


@dataclass
class TransferTime:
    """A clock that only moves when somebody waits, or when a test says so; and what was waited for."""

    now: datetime = START
    waits_s: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now += timedelta(seconds=seconds)

    def backoff(self) -> Backoff:
        return Backoff(retries=3, first_s=0.5, most_s=30.0, sleep=self.sleep, chance=lambda: 1.0)

    def options(self, ahead: timedelta = timedelta()) -> dict[str, Any]:
        """Of an upload on a machine whose clock is `ahead`."""
        return {"backoff": self.backoff(), "now": lambda: self.now + ahead}


def status(code: int, text: str = "") -> Answer:
    return lambda request: httpx.Response(code, text=text)
