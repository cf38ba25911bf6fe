"""A server that dies in the middle of a use case: before one of its statements, or before one of its commits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine


class Died(Exception):
    """What the rest of the use case does not survive."""


class SuddenDeath:
    """Counts what a thread sends to any database, and ends it there; the other threads go on."""

    def __init__(self) -> None:
        self._armed = threading.local()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """As long as this lasts, `at` has an effect."""
        hooks = {"before_cursor_execute": self._count, "commit": self._count}
        for name, hook in hooks.items():
            sa.event.listen(Engine, name, hook)
        try:
            yield
        finally:
            for name, hook in hooks.items():
                sa.event.remove(Engine, name, hook)

    @contextmanager
    def at(self, left: int | None) -> Iterator[None]:
        """Die at the statement (or commit) after `left` of them; None: live."""
        self._armed.left = left
        try:
            yield
        finally:
            self._armed.left = None

    def _count(self, *_: Any) -> None:
        left = getattr(self._armed, "left", None)
        if left is None:
            return
        if left == 0:
            self._armed.left = None
            raise Died
        self._armed.left = left - 1
