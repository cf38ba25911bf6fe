"""Decide when the next checkpoint is due: by steps, or by the cost of a checkpoint and of an interruption."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.protocol.pretraining import CheckpointCadence, PretrainConfig

LEAST_S, MOST_S = 60.0, 3600.0
"""Bounds of the seconds between two checkpoints with young_daly."""
GUESSED_INTERRUPTION_S = 4 * 3600.0
"""Counts as one interval without interruption before anything was observed."""


def interval_s(save_s: float, interruption_s: float) -> float:
    """Seconds between two checkpoints at which saving and repeated work cost least together: sqrt(2 · C · M), for a
    save that stops the training for C seconds and a mean of M seconds between interruptions. Within LEAST_S and
    MOST_S.

    Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; the first-order term of
    Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. C is only
    what the loop waits for: the rest is written while training goes on.
    """
    return min(MOST_S, max(LEAST_S, math.sqrt(2.0 * save_s * interruption_s)))


def interruption_s(configured_s: float | None, progress: TrainingProgress) -> float:
    """Mean seconds between interruptions: as configured, or as observed in all attempts so far."""
    if configured_s is not None:
        return configured_s
    return (GUESSED_INTERRUPTION_S + progress.trained_s) / (1 + progress.interruptions)


@dataclass(slots=True, kw_only=True)
class Cadence:
    """Decides when checkpoints are due, on the first trainer, for all trainers."""

    config: PretrainConfig
    clock_s: Callable[[], float]
    _saved_at_s: float = 0.0
    _saved_at_step: int = 0
    _save_s: float = 0.0

    @property
    def _timed(self) -> bool:
        return self.config.train.checkpoint_cadence is CheckpointCadence.YOUNG_DALY

    def begin(self, progress: TrainingProgress) -> None:
        """Count steps and seconds from this progress on."""
        self._saved_at_step = progress.step
        if self._timed:
            self._saved_at_s = self.clock_s()

    def due(self, progress: TrainingProgress) -> bool:
        steps = self.config.train.checkpoint_steps
        if not self._timed:
            return (progress.step + 1) % steps == 0
        wanted_s = interval_s(self._save_s, interruption_s(self.config.workers.interruption_s, progress))
        return progress.step + 1 - self._saved_at_step >= steps or self.clock_s() - self._saved_at_s >= wanted_s

    def saving(self, save: Callable[[], None], progress: TrainingProgress) -> None:
        """Save, and measure how long the training stands still for it."""
        began_s = self.clock_s() if self._timed else 0.0
        save()
        self.begin(progress)
        self._save_s = self._saved_at_s - began_s
