"""The engine's loop: read what the agent says, run one workload after the other, keep models warm between them."""

import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import IO, cast

from pydantic import ValidationError

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.engine.assignment import Assignment, MessageWriter
from giornata.engine.batch_session import End, EngineBatchSession, Free, WaitingAttempts
from giornata.engine.device import free_vram_bytes
from giornata.engine.verdict import judge
from giornata.protocol.node.pipe import (
    TO_ENGINE,
    Alive,
    CacheAnswer,
    Done,
    DropPictures,
    Failed,
    FaultLine,
    FreePlaces,
    Held,
    Hello,
    Shutdown,
    Start,
    Stop,
    StoppedMessage,
    ToEngine,
    WriteCheckpoint,
)
from giornata.workloads.interface import JointWorkload, Outcome, Stopped, Workload

ALIVE_EVERY_S = 1.0
EXIT_DEVICE_BROKEN = 70
EXIT_AGENT_GONE = 0

JointKey = tuple[str, str]
"""The keys that attempts have in common when they run together: the agent's, and the workload's."""


class Engine:
    """Serves the agent until it says shutdown or closes the pipe.

    `workloads` maps kinds to instances, which live as long as the engine. Attempts are addressed by id and kept in
    a table; they run in the thread that called `run`, in the order in which they came: one at a time, or several
    where a workload can carry out several at once (`giornata.workloads.interface.JointWorkload`).
    `leave` ends the process at once, whatever it is doing; tests pass another one.
    """

    def __init__(
        self,
        *,
        workloads: Mapping[str, Workload],
        stdin: IO[bytes],
        channel: MessageWriter,
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
        self.waiting = WaitingAttempts()
        self._held = Held(models=())
        self._ended = threading.Event()

    def run(self, hello: Hello) -> int:
        """Say hello, then work. Returns the exit code: 0, or EXIT_DEVICE_BROKEN."""
        self._held = Held(models=(), free_vram_bytes=hello.free_vram_bytes)
        self._channel.send(hello)
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        threading.Thread(target=self._beat, name="alive", daemon=True).start()
        try:
            while (assignment := self.waiting.get()) is not None:
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
                # A message of a later protocol: its sender gets no answer, and no harm is done.
                sys.stderr.write(f"engine: a message that cannot be read: {error}\n")
                continue
            self._obey(message)
        # The end of standard input: the agent is gone, and no process may learn what happens here from now on.
        self._leave(EXIT_AGENT_GONE)

    def _obey(self, message: ToEngine) -> None:
        match message:
            case Start():
                assignment = Assignment(message, self._channel)
                with self._lock:
                    self._attempts[message.attempt] = assignment
                self.waiting.put(assignment)
            case Shutdown():
                self._stop_all()
                self.waiting.put(None)
            case Stop() | WriteCheckpoint() | CacheAnswer() | DropPictures():
                self._tell(message)

    def _tell(self, message: Stop | WriteCheckpoint | CacheAnswer | DropPictures) -> None:
        with self._lock:
            assignment = self._attempts.get(message.attempt)
        if assignment is None:
            return  # it has ended meanwhile, and its end is on the way
        match message:
            case Stop():
                assignment.ask_stop(checkpoint=message.checkpoint)
                self._answer_in_line(assignment)
            case WriteCheckpoint():
                assignment.ask_checkpoint()
            case CacheAnswer():
                assignment.answer_cache(message.key, message.path)
            case DropPictures():
                assignment.drop_pictures(message.pictures)

    def _answer_in_line(self, assignment: Assignment) -> None:
        """Stop an attempt that waits for its turn: there is nothing to write."""
        if self.waiting.remove(assignment):
            resume = assignment.start.resume
            self._forget(assignment)
            self._channel.send(
                StoppedMessage(attempt=assignment.start.attempt, step=None if resume is None else resume.step)
            )

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
        """Carry out one attempt, and those that join it, to the end and say how it ended. False when the process must
        not go on."""
        start = assignment.start
        workload = self._workloads.get(start.kind)
        if workload is None:
            message = f"this engine knows no kind {start.kind!r}; it knows {', '.join(self._workloads)}"
            self._channel.send(Failed(attempt=start.attempt, reason=Reason.BAD_SPEC, message=message))
            self._forget(assignment)
            return True
        key = _joint_key(workload, start)
        if key is not None:
            return self._run_many(cast(JointWorkload, workload), assignment, key)
        try:
            end: End = workload.run(start, assignment)
        except Exception as error:  # noqa: BLE001 - the supervisor: whatever it was, the agent must hear of it
            end = error
        return self._report(assignment, end)

    def _run_many(self, workload: JointWorkload, first: Assignment, key: JointKey) -> bool:
        def fits(other: Assignment) -> bool:
            return other.start.kind == first.start.kind and _joint_key(workload, other.start) == key

        def say(free: Free) -> None:
            self._channel.send(FreePlaces(key=key[0], free=free[0], attempts=free[1]))

        session = EngineBatchSession(first, take=lambda: self.waiting.take(fits), report=self._report, say=say)
        try:
            workload.run_many(session)
        except Exception as error:  # noqa: BLE001 - the supervisor, as above
            return self._failed(session.left(), error) and session.healthy
        if left := session.left():
            return self._failed(left, RuntimeError("the workload returned before this attempt had ended"))
        return session.healthy

    def _report(self, assignment: Assignment, end: End) -> bool:
        """Say how an attempt ended. False when the process must not go on."""
        attempt = assignment.start.attempt
        match end:
            case Outcome():
                self._say_held()
                self._channel.send(Done(attempt=attempt, step=end.step, summary=end.summary))
            case Stopped():
                step = end.step if end.step is not None else assignment.last_checkpoint_step
                self._say_held()
                self._channel.send(StoppedMessage(attempt=attempt, step=step))
            case _:
                return self._failed([assignment], end)
        self._forget(assignment)
        return True

    def _failed(self, assignments: Sequence[Assignment], error: Exception) -> bool:
        """Report one fault that has ended all of these attempts."""
        verdict = judge(error)
        self._tell_error(error, assignments)
        faults = tuple(FaultLine(where=each.where, message=each.message, hint=each.hint) for each in verdict.faults)
        # The frames of the traceback hold the workload's tensors.
        error.__traceback__ = None
        if not verdict.device_broken:
            _free_device_memory()
            self._say_held()
        together = tuple(each.start.attempt for each in assignments)
        for each in assignments:
            failed = Failed(
                attempt=each.start.attempt,
                reason=verdict.reason,
                message=verdict.message,
                faults=faults,
                together=together if len(together) > 1 else (),
            )
            self._channel.send(failed)
            self._forget(each)
        return not verdict.device_broken

    def _tell_error(self, error: Exception, assignments: Sequence[Assignment]) -> None:
        """Log an error, with its traceback unless the job's own input is at fault.

        Without other attempts here it goes to standard error. Otherwise it goes to the logs of `assignments` only,
        because the others may belong to another project.
        """
        asked_for = isinstance(error, WorkloadFailed) and error.reason in {Reason.BAD_SPEC, Reason.BAD_DATA}
        lines = [f"{error}\n"] if asked_for else traceback.format_exception(error)
        with self._lock:
            others = self._attempts.keys() - {each.start.attempt for each in assignments}
        if not others:
            sys.stderr.writelines(lines)
            return
        for line in lines:
            for each in assignments:
                each.log(line)

    def _forget(self, assignment: Assignment) -> None:
        with self._lock:
            self._attempts.pop(assignment.start.attempt, None)

    def _say_held(self) -> None:
        """Tell which models are warm, before the end is told, so that the next claim knows them."""
        workloads = self._workloads.values()
        held = tuple(dict.fromkeys(key for workload in workloads for key in workload.held()))
        files = {sha256 for each in workloads for sha256 in getattr(each, "files_in_host_memory", tuple)()}
        said = Held(models=held, host_files=tuple(sorted(files)), free_vram_bytes=free_vram_bytes())
        if said != self._held:
            self._channel.send(said)
            self._held = said


def _joint_key(workload: Workload, start: Start) -> JointKey | None:
    """Return the key of attempts that may share this one's batch; None when it has to run alone. Both the agent and
    the workload have to agree: the one knows what the job has been through, the other what it can do."""
    if start.joint_key is None or getattr(workload, "places", 1) <= 1:
        return None
    own = cast(JointWorkload, workload).joins(start)
    return None if own is None else (start.joint_key, own)


def _free_device_memory() -> None:
    """Give back what a failed attempt left in the allocator's cache, if torch is there at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
