"""The engine's loop: read what the agent says, run one workload after the other, keep models warm between them."""

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import IO

from pydantic import ValidationError

from giornata.domain.reasons import Reason
from giornata.engine.assignment import Assignment
from giornata.engine.channel import Channel
from giornata.engine.verdict import judge
from giornata.engine.workload import Outcome, Stopped, Workload
from giornata.protocol.pipe import (
    TO_ENGINE,
    Alive,
    CacheAnswer,
    Done,
    Failed,
    FaultLine,
    Held,
    Hello,
    Shutdown,
    Start,
    Stop,
    ToEngine,
    WriteCheckpoint,
)
from giornata.protocol.pipe import Stopped as StoppedMessage

ALIVE_EVERY_S = 1.0
EXIT_DEVICE_BROKEN = 70
EXIT_AGENT_GONE = 0


class Engine:
    """Serves the agent until it says shutdown or closes the pipe.

    `workloads` maps kinds to instances, which live as long as the engine. Attempts are addressed by id and kept in
    a table; today they run one at a time, in the thread that called `run`, in the order in which they came.
    `leave` ends the process at once, whatever it is doing; tests pass another one.
    """

    def __init__(
        self,
        *,
        workloads: Mapping[str, Workload],
        stdin: IO[bytes],
        channel: Channel,
        leave: Callable[[int], None],
        alive_every_s: float = ALIVE_EVERY_S,
    ) -> None:
        self._workloads = workloads
        self._stdin = stdin
        self._channel = channel
        self._leave = leave
        self._alive_every_s = alive_every_s
        self._attempts: dict[str, Assignment] = {}
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._held: tuple[str, ...] = ()
        self._ended = threading.Event()

    def run(self, hello: Hello) -> int:
        """Say hello, then work. Returns the exit code: 0, or EXIT_DEVICE_BROKEN."""
        self._channel.send(hello)
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        threading.Thread(target=self._beat, name="alive", daemon=True).start()
        try:
            while (assignment := self._waiting.get()) is not None:
                if not self._work(assignment):
                    return EXIT_DEVICE_BROKEN
            return 0
        finally:
            self._ended.set()

    # ---- the reader thread ----

    def _read(self) -> None:
        for line in self._stdin:
            if not line.strip():
                continue
            try:
                message = TO_ENGINE.validate_json(line)
            except ValidationError as error:
                # A message of a later protocol: whoever sent it will not get an answer, and no harm is done.
                sys.stderr.write(f"engine: a message that cannot be read: {error}\n")
                continue
            self._obey(message)
        # The end of standard input: the agent is gone, and nobody may learn what happens here from now on.
        self._leave(EXIT_AGENT_GONE)

    def _obey(self, message: ToEngine) -> None:
        match message:
            case Start():
                assignment = Assignment(message, self._channel)
                with self._lock:
                    self._attempts[message.attempt] = assignment
                self._waiting.put(assignment)
            case Shutdown():
                self._stop_all()
                self._waiting.put(None)
            case Stop() | WriteCheckpoint() | CacheAnswer():
                self._tell(message)

    def _tell(self, message: Stop | WriteCheckpoint | CacheAnswer) -> None:
        with self._lock:
            assignment = self._attempts.get(message.attempt)
        if assignment is None:
            return  # it has ended meanwhile, and its end is on the way
        match message:
            case Stop():
                assignment.ask_stop(checkpoint=message.checkpoint)
            case WriteCheckpoint():
                assignment.ask_checkpoint()
            case CacheAnswer():
                assignment.answer_cache(message.key, message.path)

    def _stop_all(self) -> None:
        with self._lock:
            for assignment in self._attempts.values():
                assignment.ask_stop(checkpoint=False)

    # ---- the alive thread ----

    def _beat(self) -> None:
        try:
            while not self._ended.wait(self._alive_every_s):
                self._channel.send(Alive())
        except OSError:
            self._leave(EXIT_AGENT_GONE)

    # ---- the main thread ----

    def _work(self, assignment: Assignment) -> bool:
        """Run one attempt to its end and say how it ended. False when the process must not go on."""
        start = assignment.start
        workload = self._workloads.get(start.kind)
        healthy = True
        if workload is None:
            message = f"this engine knows no kind {start.kind!r}; it knows {', '.join(self._workloads)}"
            self._channel.send(Failed(attempt=start.attempt, reason=Reason.BAD_SPEC, message=message))
        else:
            healthy = self._run(workload, assignment)
        with self._lock:
            self._attempts.pop(start.attempt, None)
        return healthy

    def _run(self, workload: Workload, assignment: Assignment) -> bool:
        attempt = assignment.start.attempt
        try:
            outcome: Outcome = workload.run(assignment.start, assignment)
        except Stopped as stopped:
            step = stopped.step if stopped.step is not None else assignment.last_checkpoint_step
            self._say_held()
            self._channel.send(StoppedMessage(attempt=attempt, step=step))
        except Exception as error:  # noqa: BLE001 - the supervisor: whatever it was, the agent must hear of it
            return self._failed(attempt, error)
        else:
            self._say_held()
            self._channel.send(Done(attempt=attempt, step=outcome.step, summary=outcome.summary))
        return True

    def _failed(self, attempt: str, error: Exception) -> bool:
        verdict = judge(error)
        traceback.print_exception(error, file=sys.stderr)
        faults = tuple(FaultLine(where=each.where, message=each.message, hint=each.hint) for each in verdict.faults)
        failed = Failed(attempt=attempt, reason=verdict.reason, message=verdict.message, faults=faults)
        # The frames of the traceback hold the workload's tensors.
        error.__traceback__ = None
        if not verdict.device_broken:
            _free_device_memory()
            self._say_held()
        self._channel.send(failed)
        return not verdict.device_broken

    def _say_held(self) -> None:
        """Say which models are warm; before the end is said, so that the next claim knows it."""
        held = tuple(dict.fromkeys(key for workload in self._workloads.values() for key in workload.held()))
        if held != self._held:
            self._channel.send(Held(models=held))
            self._held = held


def _free_device_memory() -> None:
    """Give back what a failed attempt left in the allocator's cache, if torch is there at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
