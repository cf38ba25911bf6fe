"""Parts of pages that look the same to everybody with equal rights in a project. Each is made once for all of them.

Open pages load such a part again and again. A part that was made a moment ago answers all of them without a
statement and without a thread, and a browser that has it already gets 304. A part holds nothing of a person: neither
a name nor a CSRF token.
"""

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from giornata.control.caller import Caller
from giornata.control.ports.clock import Clock
from giornata.protocol.project.admin import Scope

KEPT_MS = 3_000
"""A part is as of so long ago at most. It is less than what a page waits after an event, and than any period."""
LIST_KEPT_MS = 8_000
"""The same of lists, which nothing but the clock loads again: less than their periods, so that somebody who is alone
sees each reading.
"""
MOST_PARTS = 256
AGE = re.compile(rb"(<time [^>]*>)[^<]*")
"""An instant with the words that say how long ago it was. Our script writes these words anew as time goes by."""


class PartKey(NamedTuple):
    """The project, the address with its query, and the rights of who asks. The rest is in the store."""

    project_id: str
    address: str
    scopes: frozenset[Scope]
    operates: bool


def key_of(caller: Caller, address: str) -> PartKey:
    """Return the key of the part that this caller sees at this address."""
    return PartKey(caller.project_id, address, caller.scopes, caller.is_root_admin)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePart:
    """A part with its entity tag, which answers while the clock shows one of `while_ms`."""

    body: bytes
    tag: str
    while_ms: range


def tag_of(body: bytes) -> str:
    """Return the entity tag of a part. It is a weak one: parts that differ in ages alone have the same."""
    ageless = AGE.sub(rb"\1", body)
    return f'W/"{hashlib.sha256(ageless).hexdigest()[:32]}"'


class SharedParts:
    """The parts that one server made a moment ago; may be used from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._parts: dict[PartKey, MadePart] = {}
        self._makers: dict[PartKey, threading.Lock] = {}
        self._waiting: Counter[PartKey] = Counter()
        self._changes = 0

    def fresh(self, key: PartKey) -> MadePart | None:
        """Return the part if it was made a moment ago."""
        found = self._parts.get(key)
        return found if found is not None and self._clock.now_ms() in found.while_ms else None

    def read(self, key: PartKey, make: Callable[[], bytes], *, kept_ms: int = KEPT_MS) -> MadePart:
        """Return the part, which one thread makes while others that want the same wait for it."""
        with self._turn(key):
            known, changes, at_ms = self.fresh(key), self._changes, self._clock.now_ms()
            if known is not None:
                return known
            body = make()
            made = MadePart(body=body, tag=tag_of(body), while_ms=range(at_ms, at_ms + kept_ms))
            with self._lock:
                if changes == self._changes:
                    if len(self._parts) >= MOST_PARTS:
                        self._parts.clear()
                    self._parts[key] = made
        return made

    def forget(self, project_id: str) -> None:
        """Forget what was made for a project in which a person has just changed something. What is being made may be
        out of date already, and is not kept.
        """
        with self._lock:
            self._changes += 1
            for key in [each for each in self._parts if each.project_id == project_id]:
                del self._parts[key]

    @contextmanager
    def _turn(self, key: PartKey) -> Iterator[None]:
        with self._lock:
            maker = self._makers.setdefault(key, threading.Lock())
            self._waiting[key] += 1
        try:
            with maker:
                yield
        finally:
            with self._lock:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._waiting[key], self._makers[key]
