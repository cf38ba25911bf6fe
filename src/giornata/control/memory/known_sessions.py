"""The sessions that one server knows: whom each belongs to, and until when the person's rights count as read.

A session that was found good once is checked again together with all others that asked lately. So the number of
statements does not grow with the number of people.
"""

import threading
from collections.abc import Sequence, Set

from giornata.control.caller import Caller

MOST_SESSIONS = 4096
LATELY_MS = 60_000
"""A session that asked for nothing for so long is not checked with the others; it is read alone when it comes."""
FOR_EVER = range(2**62)


class KnownSessions:
    """Callers by the hash of their session's secret and the project that the request named; for any thread.

    Instants are epoch milliseconds of the server's clock. A caller is let in while `stands` is True.
    """

    def __init__(self) -> None:
        self.renewal = threading.Lock()  # one thread checks for all
        self._lock = threading.Lock()
        self._generation = 0
        self._callers: dict[str, tuple[Caller, range]] = {}
        self._good: dict[Caller, range] = {}
        self._asked: dict[Caller, int] = {}
        self._used: set[str] = set()

    @property
    def generation(self) -> int:
        """The number that changes whenever sessions are forgotten. Whoever reads rights takes it before."""
        return self._generation

    def caller(self, known_as: str, *, at_ms: int) -> Caller | None:
        """Return whose secret it is. The rights of that caller may be out of date: ask `stands`."""
        found = self._callers.get(known_as)
        return found[0] if found is not None and at_ms in found[1] else None

    def stands(self, caller: Caller, *, at_ms: int) -> bool:
        """Return True when the caller's rights were read a moment ago. From now on others check them as well."""
        if len(self._asked) < MOST_SESSIONS or caller in self._asked:
            self._asked[caller] = at_ms
        return at_ms in self._good.get(caller, ())

    def use(self, caller: Caller) -> None:
        """Note that the session made a request, which an open stream does not."""
        self._used.add(caller.key_id)

    def remember(self, known_as: str, caller: Caller, *, while_ms: range, named_ms: range, generation: int) -> None:
        """Remember a caller who was just read as good while the clock shows one of `while_ms`, and whose secret it is
        during `named_ms`; nothing if sessions were forgotten since `generation`.
        """
        self.renew([caller], while_ms=while_ms, generation=generation)
        with self._lock:
            if generation == self._generation:
                if len(self._callers) >= MOST_SESSIONS:
                    self._callers.clear()
                self._callers[known_as] = (caller, named_ms)
        self.stands(caller, at_ms=while_ms.start)

    def drop(self, callers: Set[Caller]) -> None:
        """Forget these callers, who have other rights now, or none."""
        with self._lock:
            self._callers = {name: found for name, found in self._callers.items() if found[0] not in callers}
            for each in callers:
                self._asked.pop(each, None)
                self._good.pop(each, None)

    def renew(self, callers: Sequence[Caller], *, while_ms: range, generation: int) -> None:
        """Remember that these callers were found good, unless sessions were forgotten since `generation`."""
        with self._lock:
            if generation == self._generation:
                if len(self._good) + len(callers) > MOST_SESSIONS:
                    self._good.clear()
                self._good |= dict.fromkeys(callers, while_ms)

    def asked_lately(self, *, at_ms: int) -> Sequence[Caller]:
        """Return the callers of whom something was asked lately. The others are no longer known."""
        asked = dict(self._asked)
        gone = {each for each, asked_ms in asked.items() if not 0 <= at_ms - asked_ms < LATELY_MS}
        if gone:
            self.drop(gone)
        return [each for each in asked if each not in gone]

    def take_used(self) -> Sequence[str]:
        """Return the ids of sessions that made a request since the last call."""
        used, self._used = self._used, set()
        return list(used)

    def forget(self) -> None:
        """Forget all: a session has ended here, or a person lost a right."""
        with self._lock:
            self._generation += 1
            self._callers, self._good, self._asked = {}, {}, {}
