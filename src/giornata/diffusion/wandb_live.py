"""Sends a run's curves to Weights & Biases while it goes on: every few minutes the whole of what there is by then.

Each time it is written anew and sent, in processes of their own (ADR 0018): lines lie at their places at W&B, and
those that are there already replace themselves.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from giornata.diffusion.wandb_run import TrackerFailed

SEND_EVERY_S = 300.0

Send = Callable[[threading.Event], object]
"""Sends the curves as they are. Raises TrackerFailed or OSError; also, and soon, when the event is set meanwhile."""


class Meanwhile:
    """Calls `send` every so often, in a thread of its own, until it is closed. What fails is told and tried again the
    next time: curves are never worth a run."""

    def __init__(self, send: Send, *, tell: Callable[[str], object], every_s: float = SEND_EVERY_S) -> None:
        self._send, self._tell, self._every_s = send, tell, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wandb-curves", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._send(self._over)
            except (TrackerFailed, OSError) as error:
                if not self._over.is_set():
                    self._tell(f"the curves were not sent, but will be: {error}")

    def close(self) -> None:
        """End what is under way. Again is harmless."""
        self._over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
