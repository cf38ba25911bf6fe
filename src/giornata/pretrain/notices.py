"""Who wants a trainer to stop: whoever started the run, or the cloud that takes a node away."""

import time
from collections.abc import Callable
from typing import Any

import ray
import ray.train

from giornata.pretrain.training.peers import Channel

ASK_WITHIN_S = 2.0
"""Ray Train is asked about preemption so often: clouds give notice of half a minute to two minutes."""
MOST_STEPS = 10
"""Steps between two questions, however short they are."""


class Notices:
    """Asked before every step, by all trainers, which share `channel`.

    Only the first one looks at the board: the loop tells the others. Ray Train has to be asked by all of them before
    the same step, and they wait for one another meanwhile. After each question the first one says,
    by the time that its steps took, before which step comes the next.
    """

    def __init__(
        self,
        board: Any,
        channel: Channel,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        announced: Callable[[], object] = ray.train.get_preemption_info,
    ) -> None:
        self._board: Any = board if channel.rank == 0 else None
        self._channel, self._clock_s, self._announced = channel, clock_s, announced
        self._leave_asked: Any = None
        self._steps, self._next = 0, 1
        self._asked_at_step, self._asked_at_s = 0, 0.0
        self.leave, self.preempted = "", False

    def __call__(self) -> bool:
        self._steps += 1
        if self._board is not None:
            self._look()
        if self._steps >= self._next:
            self.preempted = self.preempted or self._announced() is not None
            self._next = self._steps + self._channel.gather([self._steps_until_next()])[0][0]
        return bool(self.leave) or self.preempted

    def _steps_until_next(self) -> int:
        now_s, steps = self._clock_s(), self._steps - self._asked_at_step
        took_s = now_s - self._asked_at_s
        first = self._asked_at_step == 0
        self._asked_at_step, self._asked_at_s = self._steps, now_s
        if first:
            return 1  # nothing is known yet of how long a step takes
        return max(1, min(MOST_STEPS, int(steps * ASK_WITHIN_S / max(took_s, 1e-9))))

    def _look(self) -> None:
        """Without waiting: what was asked before an earlier step."""
        if self._leave_asked is None:
            self._leave_asked = self._board.leave.remote()
            return
        ready, _ = ray.wait([self._leave_asked], timeout=0)
        if ready:
            self.leave, self._leave_asked = ray.get(ready[0]), None
