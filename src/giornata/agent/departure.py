"""The order to leave, from a signal."""

import queue


class Departure:
    """Whether the node was told to leave.

    `ask` is called by signal handlers, which may interrupt any line of the main thread: it takes no lock that the
    thread could be holding. SimpleQueue.put is reentrant by its documentation; an Event or a Condition is not.
    """

    def __init__(self) -> None:
        self.requested = False
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self) -> None:
        """Tell the node to leave."""
        self.requested = True
        self._bell.put(None)

    def wait(self, timeout_s: float) -> None:
        """Sleep, but not beyond the order to leave."""
        if self.requested:
            return
        try:
            self._bell.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return
