"""Where the first trainer pins up how the run goes, and whoever started the run reads it."""

from collections import deque
from typing import Any

import ray

KEPT = 1000


@ray.remote(num_cpus=0)
class Board:
    """Keeps the last messages. It lives as long as the process that made it: nothing is lost with it, because what
    matters is in the run's storage."""

    def __init__(self) -> None:
        self._messages: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def pin(self, message: dict[str, Any]) -> None:
        """Add one. Nobody waits for it."""
        self._messages.append(message)

    def take(self) -> list[dict[str, Any]]:
        """All since the last time."""
        taken = list(self._messages)
        self._messages.clear()
        return taken
