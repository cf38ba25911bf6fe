"""A server that dies in the middle of a use case: before one of its statements, or before one of its commits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine


class Died(Exception):
    """What the rest of the use case does not survive."""


class SuddenDeath(threading.local):
    """Counts what a thread sends to any database, and ends it there; the other threads go on.

    `left` is how many statements and commits there are to live; None: for ever.
    """

    left: int | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """As long as this lasts, `left` has an effect."""
        hooks = {"before_cursor_execute": self._count, "commit": self._count}
        for name, hook in hooks.items():
            sa.event.listen(Engine, name, hook)
        try:
            yield
        finally:
            for name, hook in hooks.items():
                sa.event.remove(Engine, name, hook)

    def _count(self, *_: Any) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.left = None
            raise Died
        self.left -= 1
