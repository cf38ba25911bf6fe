"""Requests that stay: each key has so many seats for them, so that one client cannot take all connections."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from giornata.domain.errors import TooMany


class Seats:
    """Counts, in this process, who holds one now. `what` names them in the refusal."""

    def __init__(self, what: str, *, most: int) -> None:
        self._what, self._most = what, most
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, key_id: str) -> Iterator[None]:
        """Hold one for as long as this lasts. Raises TooMany."""
        with self._lock:
            if self._taken[key_id] >= self._most:
                raise TooMany(f"this key has {self._most} {self._what} open on this server; close one, or try later")
            self._taken[key_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[key_id] -= 1
                if not self._taken[key_id]:
                    del self._taken[key_id]
