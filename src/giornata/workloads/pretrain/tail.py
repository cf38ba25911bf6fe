"""Everything that a run prints, each line once, although the connection to the cluster breaks now and then."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class Listening:
    """`left`: nobody listens any more. `whole`: the run has ended, and all that it printed was handed over."""

    left: threading.Event = field(default_factory=threading.Event)
    whole: threading.Event = field(default_factory=threading.Event)


class Tail:
    """Hands whole lines to `line`, from a thread of its own.

    `connect` gives what was printed from its beginning on, in pieces of any length, until the run has ended or the
    connection has: Ray does not tell which. `ended` says whether the run has. Both raise ConnectionError when the
    cluster does not answer.
    """

    def __init__(
        self,
        connect: Callable[[], AsyncIterator[str]],
        ended: Callable[[], bool],
        line: Callable[[str], None],
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._connect, self._ended, self._line, self._retry_s = connect, ended, line, retry_s
        self._handed = 0
        self.listening = Listening()

    def begin(self) -> Listening:
        """In a daemon thread: a connection that says nothing shall not keep the process."""
        threading.Thread(target=self.read, daemon=True, name="pretrain-log").start()
        return self.listening

    def read(self) -> None:
        """Until everything is handed over, or nobody listens."""
        while not self.listening.left.is_set():
            try:
                rest = asyncio.run(self._read_once())
                if self._ended():
                    self._hand(rest)
                    self.listening.whole.set()
                    return
            except ConnectionError:
                pass
            self.listening.left.wait(self._retry_s)

    async def _read_once(self) -> str:
        """One connection; what it left of a line that is not whole."""
        rest, met = "", 0
        async for piece in self._connect():
            *whole, rest = (rest + piece).split("\n")
            for each in whole:
                met += 1
                if met > self._handed:
                    self._handed = met
                    self._hand(each)
            if self.listening.left.is_set():
                break
        return rest

    def _hand(self, line: str) -> None:
        if line.strip():
            self._line(line)
