"""One attempt, as the node that runs it knows it."""

import math
from dataclasses import dataclass

from giornata.simulate.plane import Grant
from giornata.simulate.rented.course import StepTimeline


@dataclass(slots=True)
class SimulatedAttempt:
    """One attempt on this node. `step_ms`: of a step before noise. `course`: None before the first step."""

    grant: Grant
    began_ms: int
    renewed_ms: int
    step_ms: float
    course: StepTimeline | None = None
    committed: int = 0
    stopped_at: int | None = None  # it obeys an order, and computes no further than this
    mtbi_s: float = math.inf
    # Up to where it is in the books: a zombie's attempt was booked when its container went, and lives on.
    booked_ms: int | None = None
    booked_step: int | None = None

    def step_at(self, now_ms: int) -> int:
        """Return the number of steps that are done at `now_ms`."""
        if self.stopped_at is not None:
            return self.stopped_at
        if self.course is None:
            return self.grant.start_step
        return self.grant.start_step + self.course.done_at(now_ms)

    def reaches_ms(self, step: int) -> int:
        """Return the instant at which a future step is done."""
        if self.course is None:
            raise ValueError("its steps have not begun")
        return self.course.reaches_ms(step - self.grant.start_step)
