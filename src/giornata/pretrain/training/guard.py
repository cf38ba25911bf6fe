"""Keeps broken steps out of the weights: a loss or gradient that is not a number, a loss far above what it was.

The rows of a step that is left out are not trained again: they may be what broke it. They are counted.
"""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

WINDOW_STEPS = 128
"""Steps whose losses give the median."""
LEAST_STEPS = 16
"""Before so many steps only what is not a number is left out: the first losses say little about the next."""


class TooManyBadSteps(RuntimeError):
    """So many steps in a row were left out that the run will not mend itself."""


class Guard:
    """All trainers judge the same numbers, and so alike. `losses` and `bad_in_row` are its whole state."""

    def __init__(
        self, *, max_loss_ratio: float, max_bad_steps: int, losses: Iterable[float] = (), bad_in_row: int = 0
    ) -> None:
        self._max_ratio, self._max_bad = max_loss_ratio, max_bad_steps
        self._losses = deque(losses, maxlen=WINDOW_STEPS)
        self.bad_in_row = bad_in_row

    @property
    def losses(self) -> list[float]:
        """Of the last sound steps, oldest first."""
        return list(self._losses)

    def fault(self, loss: float, grad_norm: float) -> str | None:
        """Why this step has to be left out; None for a sound one, which is then part of the median.

        Raises TooManyBadSteps when max_bad_steps in a row were bad.
        """
        why = self._why(loss, grad_norm)
        if why is None:
            self._losses.append(loss)
            self.bad_in_row = 0
            return None
        self.bad_in_row += 1
        if self.bad_in_row >= self._max_bad:
            hint = "lower phases.*.learning_rate, or look at the data of these steps"
            raise TooManyBadSteps(f"{self.bad_in_row} steps in a row were left out, the last because {why}: {hint}")
        return why

    def _why(self, loss: float, grad_norm: float) -> str | None:
        if not math.isfinite(loss):
            return f"its loss is {loss}"
        if not math.isfinite(grad_norm):
            return f"the norm of its gradient is {grad_norm}"
        if len(self._losses) >= LEAST_STEPS and loss > self._max_ratio * (usual := median(self._losses)):
            return f"its loss of {loss:.4g} is more than {self._max_ratio:g} times the usual {usual:.4g}"
        return None
