"""Who wants the trainers to leave: whoever started the run, or the cloud that takes a node away."""

from collections.abc import Callable
from typing import Any

import ray
from ray.train.v2._internal.execution.context import get_train_context


def announced() -> object | None:
    """What Ray Train told this trainer of a node that is taken away. It tells every trainer of the run.

    The public `ray.train.get_preemption_info` is a broadcast for which all trainers wait. The loop makes all trainers
    agree before each step anyway, so that each looks only at what itself was told.
    """
    return get_train_context().preemption_context.preemption_info


class Notices:
    """Asked before every step, without waiting. Only the first trainer looks at the board: the loop tells the others.
    `leave` is what the board asked for."""

    def __init__(self, board: Any, *, first: bool, announced: Callable[[], object] = announced) -> None:
        self._board: Any = board if first else None
        self._announced, self._asked, self.leave = announced, None, ""

    def __call__(self) -> bool:
        if self._board is not None:
            self._look()
        return bool(self.leave) or self._announced() is not None

    def _look(self) -> None:
        """Take the answer to an earlier question, and ask anew."""
        if self._asked is not None:
            ready, _ = ray.wait([self._asked], timeout=0)
            if not ready:
                return
            self.leave = ray.get(ready[0])
        self._asked = self._board.leave.remote()
