"""The actor between trainers and the command: it takes messages of the first trainer, tells trainers to stop, and
keeps their crashes (giornata.pretrain.ray_train.crashes)."""

from collections import deque
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from giornata.pretrain.ray_train.crashes import Crashes

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
