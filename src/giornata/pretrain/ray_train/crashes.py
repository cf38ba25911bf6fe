"""Crashes of trainers, and when another try is hopeless: the three bounds of a run that nobody watches.

    MOST_EQUAL      starts in a row that crash at the same step with the same words, whoever counts restarts
    CRASHES         crashes of trainers in one group that Ray Train itself bears, as its FailureConfig
    MOST_FRUITLESS  losses of Ray Train in a row without a checkpoint in between

A trainer that is killed says nothing. One that loses its peers raises, too, and is no cause: `lost_others` knows
these errors. What is left are errors of the program, its input or its machine.
"""

import re
from dataclasses import dataclass
from typing import Any

import ray
import torch.distributed

from giornata.domain.errors import InvalidInput

MOST_FRUITLESS = 3
"""Losses of Ray Train in a row, without a checkpoint in between, that end the run: it will not get better."""
CRASHES = 10
"""Of trainers, that Ray Train bears where the configuration sets no bound. Then it counts as lost: what fails always,
such as shards that a node does not see, would otherwise be tried for ever, at the price of all trainers."""
MOST_EQUAL = 3
"""Starts in a row that crash at the same step with the same words and end the run; another would do the same."""
LONGEST_WORDS = 600
_OF_OTHERS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "store->")
"""In the words of torch.distributed when another trainer is gone."""


def words_of(error: BaseException) -> str:
    """Return the kind and the message of an error as one line; for a Ray task, the end of its traceback."""
    if isinstance(error, ray.exceptions.RayTaskError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return (lines[-1] if lines else type(error).__name__)[:LONGEST_WORDS]
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}"[:LONGEST_WORDS]


def lost_others(error: BaseException) -> bool:
    """Return True when the trainer only noticed that another trainer, an actor or a node is gone."""
    if isinstance(error, ray.exceptions.RayError):
        return not isinstance(error, ray.exceptions.RayTaskError)
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_OTHERS)


@dataclass(slots=True)
class Crashes:
    """The crashes of one command. `step` is the newest trained step."""

    step: int = 0
    _starts: int = 0
    _counted: int = -1  # also a crash before the first start was told of is told
    _equal: int = 0
    _last: tuple[int, str] | None = None
    _words: str = ""
    _final: str = ""

    def begun(self) -> None:
        """Note that the trainers start."""
        self._starts += 1

    def add(self, words: str, *, final: bool) -> dict[str, Any] | None:
        """A trainer crashed. Returns what is told of it; None when another one of this start was told of before."""
        if final:
            self._final = words
        if self._counted == self._starts:
            return None
        self._counted = self._starts
        # Numbers in words are those of processes, ports and places, and differ between equal crashes.
        now = (self.step, re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", words))
        self._equal = self._equal + 1 if now == self._last else 1
        self._last, self._words = now, words
        return {"event": "crash", "step": self.step, "words": words, "final": bool(self.hopeless)}

    @property
    def hopeless(self) -> str:
        """The reason why no further start pays; empty while one does."""
        if self._final:
            return self._final
        if self._last is not None and self._equal >= MOST_EQUAL:
            return f"{self._equal} starts in a row crashed after step {self._last[0]}: {self._words}"
        return ""


def is_final(error: BaseException) -> bool:
    """Return True when the error is of the input, which no further start changes."""
    return isinstance(error, InvalidInput)


@dataclass(slots=True)
class RayTrainLosses:
    """Losses of Ray Train itself that followed one another."""

    fruitless: int = 0
    reached: int = -1

    def bearable(self, step: int) -> bool:
        """Return True when another start pays after a loss; the newest checkpoint is of this step."""
        self.fruitless, self.reached = 1 if step > self.reached else self.fruitless + 1, step
        return self.fruitless < MOST_FRUITLESS
