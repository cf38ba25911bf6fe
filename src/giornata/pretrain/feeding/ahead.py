"""Makes the next step's examples while this one is computed."""

import threading
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Generic, TypeVar

Fed = TypeVar("Fed")
Made = TypeVar("Made")


class Ahead(Generic[Fed, Made]):
    """One thread, one item ahead. What it took and nobody asked for is dropped when it is closed.

    The thread is a daemon: a stream that never answers shall not keep the process.
    """

    def __init__(self, stream: Iterator[Fed], make: Callable[[Fed], Made], clock_s: Callable[[], float]) -> None:
        self._stream, self._make, self._clock_s = stream, make, clock_s
        self._asked, self._made = Queue[bool](), Queue[Made | BaseException | None]()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="pretrain-ahead", daemon=True)
        self._thread.start()
        self._asked.put(True)

    def take(self) -> tuple[Made | None, float]:
        """The next item, None after the last, and the seconds of waiting for it. Raises what the stream raised."""
        if self._ended:
            return None, 0.0
        began_s = self._clock_s()
        found = self._made.get()
        waited_s = self._clock_s() - began_s
        if isinstance(found, BaseException):
            self._ended = True
            raise found
        if found is None:
            self._ended = True
        else:
            self._asked.put(True)
        return found, waited_s

    def close(self) -> None:
        """Ask for nothing more."""
        self._ended = True
        self._asked.put(False)

    def _work(self) -> None:
        while self._asked.get():
            try:
                fed = next(self._stream, None)
                self._made.put(None if fed is None else self._make(fed))
            except BaseException as error:  # noqa: BLE001  (the supervisor of this thread: raised where it is awaited)
                self._made.put(error)
                return
            if fed is None:
                return
