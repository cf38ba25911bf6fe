"""Crashes of trainers, as the progress actor keeps them: what is told of each, and when another try is hopeless.

A trainer that is killed says nothing. One that loses its peers raises, too, and is no cause: `lost_others` knows
these errors. What is left are errors of the program, its input or its machine.
"""

import re
from dataclasses import dataclass
from typing import Any

from giornata.domain.errors import InvalidInput

MOST_EQUAL = 3
"""So many starts in a row may crash at the same step with the same words; another would do the same."""
LONGEST_WORDS = 600
_OF_OTHERS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "store->")
"""In the words of torch.distributed when another trainer is gone."""


def words_of(error: BaseException) -> str:
    """Return the kind and the message of an error as one line; for a Ray task, the end of its traceback."""
    import ray.exceptions

    if isinstance(error, ray.exceptions.RayTaskError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return (lines[-1] if lines else type(error).__name__)[:LONGEST_WORDS]
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}"[:LONGEST_WORDS]


def lost_others(error: BaseException) -> bool:
    """Return True when the trainer only noticed that another trainer, an actor or a node is gone."""
    import ray.exceptions
    import torch.distributed

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
