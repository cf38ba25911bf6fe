"""Who wants a trainer to stop: whoever started the run, or the cloud that takes a node away."""

from typing import Any

import ray
import ray.train

ASKED_EVERY = 10
"""Steps between two questions to Ray Train about preemption, which all trainers have to ask alike and wait for."""


class Notices:
    """Asked before every step, by all trainers. Only the first one looks at the board: the loop tells the others."""

    def __init__(self, board: Any, *, rank: int) -> None:
        self._board: Any = board if rank == 0 else None
        self._asked: Any = None
        self._steps = 0
        self.stop, self.preempted = False, False

    def __call__(self) -> bool:
        self._steps += 1
        if self._board is not None:
            self._look()
        if self._steps % ASKED_EVERY == 1 and ray.train.get_preemption_info() is not None:
            self.preempted = True
        return self.stop or self.preempted

    def _look(self) -> None:
        """Without waiting: what was asked before an earlier step."""
        if self._asked is None:
            self._asked = self._board.stop_wanted.remote()
            return
        ready, _ = ray.wait([self._asked], timeout=0)
        if ready:
            self.stop, self._asked = ray.get(ready[0]), None
