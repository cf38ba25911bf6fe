"""One engine process: its start, its streams and its end."""

import collections
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO

from pydantic import ValidationError

from giornata.agent.attempt.events import AttemptFailed, EngineEnded, EngineMessage, EngineStderr, Event
from giornata.client.retry import Monotonic
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol import VERSION
from giornata.protocol.node.pipe import (
    FROM_ENGINE,
    TO_ENGINE,
    Alive,
    Done,
    Failed,
    FreePlaces,
    FromEngine,
    Held,
    Hello,
    Shutdown,
    Start,
    StoppedMessage,
    ToEngine,
)

TAIL_LINES = 200
LONGEST_LINE_BYTES = 2**20
HIDDEN = b"[secret]"
LAST_WORDS_S = 5.0  # for what is still in the pipes when the process has ended

Sink = Callable[[Event], None]


class EngineLost(InvalidInput):
    """An engine that was started, and ended or stayed silent before its hello: the command may be good, and the next
    start may go well. `exit_code` is None for one that was silent, and `last_words` is what it wrote last."""

    def __init__(self, fault: Fault, *, exit_code: int | None) -> None:
        super().__init__([fault])
        self.exit_code, self.last_words = exit_code, fault.hint


class EngineProcess:
    """Starts `command` in a process group of its own and speaks the pipe protocol with it.

    Must be made by a thread that lives as long as the engine shall: Linux ends the engine together with the thread
    that started it. Threads of this class read the streams and pass events on to the sinks that are attached: what
    the engine says of an attempt to that attempt's, and what belongs to nobody (stderr lines, its end) to all.
    Raises InvalidInput when the command cannot be started.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], monotonic_s: Monotonic) -> None:
        self.command = tuple(command)
        self._monotonic_s = monotonic_s
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self.held: tuple[str, ...] = ()
        self.host_files: tuple[str, ...] = ()
        self.free_places: FreePlaces | None = None
        self.free_vram_bytes: int | None = None
        self.says_alive = False
        self.heard_at_s = monotonic_s()
        self.exit_code: int | None = None
        self._secrets: tuple[bytes, ...] = ()
        self._lock = threading.Lock()
        self._sinks: dict[str, Sink] = {}
        self._at_work: dict[str, None] = {}  # in the order in which they came
        self._end: EngineEnded | None = None
        self._why: AttemptFailed | None = None
        self._hello: queue.SimpleQueue[Hello | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._gone = threading.Event()
        self._process = _popen(self.command, environment)
        assert self._process.stdin and self._process.stdout and self._process.stderr  # noqa: S101 - for mypy
        self._readers = [
            _thread("engine-stdout", self._read_messages, self._process.stdout),
            _thread("engine-stderr", self._read_stderr, self._process.stderr),
        ]
        self._writer = _thread("engine-stdin", self._write, self._process.stdin)
        threading.Thread(target=self._await_end, name="engine-end", daemon=True).start()

    @property
    def pid(self) -> int:
        """The id of the process and of its process group."""
        return self._process.pid

    def await_hello(self, timeout_s: float) -> Hello:
        """The engine's first message. Raises EngineLost, and ends the process, when it does not come in time, and
        InvalidInput when the engine speaks another protocol."""
        try:
            hello = self._hello.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            raise EngineLost(self._fault(f"said no hello within {timeout_s:g} s"), exit_code=None) from None
        if hello is None:
            ended = self._fault(f"ended with {self.exit_code} before it said hello")
            raise EngineLost(ended, exit_code=self.exit_code)
        if hello.protocol != VERSION:
            self.kill()
            raise InvalidInput([self._fault(f"speaks protocol {hello.protocol}; this node speaks {VERSION}")])
        return hello

    def _fault(self, message: str) -> Fault:
        return Fault(where=f"engine {' '.join(self.command)}", message=message, hint=self.last_words)

    @property
    def last_words(self) -> str:
        """The last five lines of the engine that are no messages."""
        return " | ".join(list(self.tail)[-5:])

    def attach(self, attempt: str, sink: Sink) -> None:
        """Pass the events of this attempt to `sink` from now on; at once, when the engine is gone already."""
        with self._lock:
            if not self._sinks:
                self.heard_at_s = self._monotonic_s()
            self._sinks[attempt] = sink
            if self._end is not None:
                sink(self._end)

    def detach(self, attempt: str) -> None:
        """Pass no events to this attempt from now on."""
        with self._lock:
            self._sinks.pop(attempt, None)
            self._at_work.pop(attempt, None)

    @property
    def is_in_use(self) -> bool:
        """True while an attempt listens to the engine's events."""
        return bool(self._sinks)

    @property
    def at_work(self) -> tuple[str, ...]:
        """The attempts that were started and have not ended; once the engine is gone, those that it took along."""
        with self._lock:
            return tuple(self._at_work) if self._end is None else self._end.at_work

    def send(self, message: ToEngine) -> None:
        """Queue a message. Never blocks; a message to an engine that is gone is lost, and its end is an event."""
        if isinstance(message, Start):
            self._begin(message)
        self._outbox.put(TO_ENGINE.dump_json(message) + b"\n")

    def _begin(self, start: Start) -> None:
        with self._lock:
            if self._end is None:
                self._at_work[start.attempt] = None
            # For as long as the process lives: they may still stand in some library's memory when the job is over.
            # The longest first, lest one that is part of another leaves the rest of that.
            given = (start.hub_token, start.wandb_api_key)
            secrets = {each.get_secret_value().encode() for each in given if each is not None} - {b""}
            self._secrets = tuple(sorted(secrets.union(self._secrets), key=len, reverse=True))

    def is_alive(self) -> bool:
        """Return True while the engine's process runs."""
        return not self._gone.is_set() and self._process.poll() is None

    def shut_down(self, grace_s: float) -> None:
        """Ask the engine to end, then end it."""
        self.send(Shutdown())
        self._outbox.put(None)
        if not self._gone.wait(grace_s):
            self.kill()

    def kill(self, why: AttemptFailed | None = None) -> None:
        """End the whole process group, and wait until it has ended. `why` is what the attempts in it are told; the
        first reason stands."""
        with self._lock:
            self._why = self._why or why
        self.kill_now()
        self._gone.wait(2 * LAST_WORDS_S)

    def kill_now(self) -> None:
        """End the whole process group, and wait for nothing: for signal handlers."""
        _kill_group(self.pid, self._process)

    # ---- threads ----

    def _await_end(self) -> None:
        code = self._process.wait()
        # What the engine has started has no business without it, and would hold the pipes open.
        _kill_group(self.pid, None)
        for reader in self._readers:
            reader.join(LAST_WORDS_S)
        self._outbox.put(None)
        self._writer.join(LAST_WORDS_S)
        with self._lock:
            self.exit_code = code
            self._end = EngineEnded(exit_code=code, at_work=tuple(self._at_work), why=self._why)
            self._gone.set()
            for sink in self._sinks.values():
                sink(self._end)
        self._hello.put(None)

    def _read_messages(self, stream: IO[bytes]) -> None:
        for line in self._lines(stream):
            self.heard_at_s = self._monotonic_s()
            try:
                message = FROM_ENGINE.validate_json(line)
            except ValidationError:
                self._note_stderr(line)
            else:
                self._take(message)

    def _take(self, message: FromEngine) -> None:
        match message:
            case Alive():
                self.says_alive = True
            case Held():
                self.held, self.host_files = message.models, message.host_files
                self.free_vram_bytes = message.free_vram_bytes
            case FreePlaces():
                self.free_places = message
            case Hello():
                self.free_vram_bytes = message.free_vram_bytes
                self._hello.put(message)
            case _:
                self._pass_on(
                    message.attempt,
                    EngineMessage(message=message),
                    over=isinstance(message, Done | Failed | StoppedMessage),
                )

    def _pass_on(self, attempt: str, event: Event, *, over: bool) -> None:
        """Pass the event to the attempt that it concerns. Events of a detached attempt are dropped."""
        with self._lock:
            if over:
                self._at_work.pop(attempt, None)
            sink = self._sinks.get(attempt)
            if sink is not None:
                sink(event)

    def _read_stderr(self, stream: IO[bytes]) -> None:
        for line in self._lines(stream):
            self._note_stderr(line)

    def _lines(self, stream: IO[bytes]) -> Iterator[bytes]:
        """Yield the engine's lines without the secrets of jobs, which may stand in the error of a library."""
        for line in _lines(stream):
            for secret in self._secrets:
                line = line.replace(secret, HIDDEN)  # noqa: PLW2901
            yield line

    def _note_stderr(self, line: bytes) -> None:
        # A progress bar redraws its line after a carriage return: what it showed last is what counts.
        text = line.decode(errors="replace").rstrip().rsplit("\r", 1)[-1]
        if text:
            self.tail.append(text)
            with self._lock:
                for sink in self._sinks.values():
                    sink(EngineStderr(line=text))

    def _write(self, stream: IO[bytes]) -> None:
        with suppress(OSError), stream:  # a broken pipe: the end of the process says it better
            while (line := self._outbox.get()) is not None:
                stream.write(line)
                stream.flush()


def _popen(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            list(command), stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environment), start_new_session=True
        )
    except OSError as error:
        fault = Fault(where=f"engine {' '.join(command)}", message=f"cannot be started: {error}")
        raise InvalidInput([fault]) from error


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of the stream, and close it at its end: a node outlives many engines."""
    with stream:
        while line := stream.readline(LONGEST_LINE_BYTES):
            yield line


def _thread(name: str, target: Callable[[IO[bytes]], None], stream: IO[bytes]) -> threading.Thread:
    thread = threading.Thread(target=target, args=(stream,), name=name, daemon=True)
    thread.start()
    return thread


def _kill_group(group: int, leader: subprocess.Popen[bytes] | None) -> None:
    """Send SIGKILL to the group. Until the leader is reaped, the number cannot belong to another process."""
    if leader is not None and leader.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
