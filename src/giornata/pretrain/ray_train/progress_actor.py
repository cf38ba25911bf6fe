"""The actor between trainers and the command: it takes messages of the first trainer, and tells trainers to stop.

The actor also keeps the crashes of trainers: what is told of each, and when another try is hopeless. A trainer that
is killed says nothing. One that loses its peers raises, too, and is no cause: `lost_others` knows these errors. What
is left are errors of the program, its input or its machine.
"""

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

import ray
import torch.distributed
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from giornata.domain.errors import InvalidInput

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


KEPT = 1000
STOP, RESIZE = "stop", "resize"


@ray.remote(num_cpus=0)
class ProgressActor:
    """Keeps the last messages. The actor ends with the process that made it, and loses nothing: all state that
    matters lies in the run's storage."""

    def __init__(self) -> None:
        self._messages: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._leave, self._saved = "", False
        self._crashes = Crashes()

    def add(self, message: dict[str, Any]) -> None:
        """Add a message, and note the step that it reports for crash reports."""
        self._messages.append(message)
        if message["event"] == "progress":
            self._crashes.step = message["step"]

    def begun(self) -> None:
        """Note that the trainers start."""
        self._crashes.begun()
        self._saved = False
        self._leave = STOP if self._leave == STOP else ""

    def crashed(self, words: str, final: bool) -> None:
        """A trainer raised an error that is its own. `final`: no further start would change that."""
        told = self._crashes.add(words, final=final)
        if told is not None:
            self._messages.append(told)

    def hopeless(self) -> str:
        """Return the reason why no further start pays; empty while one does."""
        return self._crashes.hopeless

    def take(self) -> list[dict[str, Any]]:
        """All messages since the last call."""
        taken = list(self._messages)
        self._messages.clear()
        return taken

    def ask_to_stop(self) -> None:
        """Ask the trainers to stop with a checkpoint after the current step."""
        self._leave = STOP

    def ask_to_resize(self) -> None:
        """Ask the trainers to stop, as `ask_to_stop` does, because they start again in another number."""
        self._leave = self._leave or RESIZE

    def leave(self) -> str:
        """Return the order for the trainers to leave: STOP, RESIZE, or empty without an order."""
        return self._leave

    def left(self) -> None:
        """A trainer has ended; where it was asked to leave, with a checkpoint of everything."""
        self._saved = True

    def have_left(self) -> bool:
        """Return True when a trainer has ended since the trainers started."""
        return self._saved


def progress_actor_here() -> Any:
    """A new one, on the node of the caller. Ray puts an actor that needs nothing on any node, and one that is taken
    away would take the actor with it: the trainers would have nobody to ask, and nobody could stop them."""
    node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ProgressActor.options(scheduling_strategy=node).remote()  # type: ignore[attr-defined]
