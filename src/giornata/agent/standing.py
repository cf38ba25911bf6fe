"""How far an attempt is, and how it can end."""

import math
from dataclasses import dataclass, field
from typing import Any

from giornata.agent.events import AttemptFailed
from giornata.domain.reasons import Reason
from giornata.protocol.work import Heartbeat

LONGEST_PHASE = 64
MOST_METRICS = 64
MOST_MODELS = 32


@dataclass(slots=True, kw_only=True)
class Standing:
    """Written by the attempt's loop, read by the heart's thread: single assignments, each of them whole."""

    phase: str = "fetching"
    step: int = 0
    total_steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    committed_step: int | None = None
    artifacts: tuple[str, ...] = ()

    def beat(self, *, engine_pid: int | None, held_models: tuple[str, ...]) -> Heartbeat:
        """What the next heartbeat says."""
        finite = {name: value for name, value in list(self.metrics.items())[:MOST_METRICS] if math.isfinite(value)}
        return Heartbeat(
            step=self.step,
            total_steps=self.total_steps,
            phase=self.phase[:LONGEST_PHASE],
            engine_pid=engine_pid,
            metrics=finite,
            held_models=held_models[:MOST_MODELS],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The engine says that the job is done."""

    step: int
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """The job goes back to the queue, without blame on anybody. `ordered`: the server asked for this one job."""

    reason: Reason
    message: str
    ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The attempt is no longer this node's: nothing more is written, not even its end."""

    why: str


Ending = Finished | GivenBack | Dropped | AttemptFailed
