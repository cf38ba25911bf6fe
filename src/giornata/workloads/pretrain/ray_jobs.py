"""A client of Ray Jobs (docs.ray.io: "Ray Jobs Python SDK"), as much of it as the workload uses."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

RETRY_S = 2.0
if TYPE_CHECKING:
    from ray.job_submission import JobDetails


@dataclass(frozen=True, slots=True)
class Listening:
    """The state of a listener. `left`: the listener has left. `whole`: the run has ended, and all that it printed was
    handed over."""

    left: threading.Event = field(default_factory=threading.Event)
    whole: threading.Event = field(default_factory=threading.Event)


class Tail:
    """A reader that hands whole lines to `line`, from a thread of its own.

    `connect` gives what was printed from its beginning on, in pieces of any length, until the run has ended or the
    connection has: Ray does not tell which. `ended` says whether the run has. Both raise ConnectionError when the
    cluster does not answer.
    """

    def __init__(
        self,
        connect: Callable[[], AsyncIterator[str]],
        ended: Callable[[], bool],
        line: Callable[[str], None],
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._connect, self._ended, self._line, self._retry_s = connect, ended, line, retry_s
        self._handed = 0
        self.listening = Listening()

    def begin(self) -> Listening:
        """Read in a daemon thread: a silent connection must not keep the process alive."""
        threading.Thread(target=self.read, daemon=True, name="pretrain-log").start()
        return self.listening

    def read(self) -> None:
        """Read until everything is handed over, or the listener has left."""
        while not self.listening.left.is_set():
            try:
                rest = asyncio.run(self._read_once())
                if self._ended():
                    self._hand(rest)
                    self.listening.whole.set()
                    return
            except ConnectionError:
                pass
            self.listening.left.wait(self._retry_s)

    async def _read_once(self) -> str:
        """Read one connection; return the end of its text that is not a whole line."""
        rest, met = "", 0
        async for piece in self._connect():
            *whole, rest = (rest + piece).split("\n")
            for each in whole:
                met += 1
                if met > self._handed:
                    self._handed = met
                    self._hand(each)
            if self.listening.left.is_set():
                break
        return rest

    def _hand(self, line: str) -> None:
        if line.strip():
            self._line(line)


class RunState(StrEnum):
    """The state of a submitted run, by Ray's names."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        return self in {RunState.STOPPED, RunState.SUCCEEDED, RunState.FAILED}


class RayJobs(Protocol):
    """A cluster that runs commands. Raises ConnectionError when it does not answer."""

    def running(self, job_id: str) -> str | None:
        """Return the submission that carries this job's id and has not ended; None when there is none."""

    def submit(self, job_id: str, command: str) -> str:
        """Begin a run; return the submission's id. When another node begins the same run at the same moment, one of
        the two gets a ConnectionError."""

    def state(self, submission_id: str) -> RunState: ...

    def words(self, submission_id: str) -> str:
        """Return Ray's message on the state of the submission."""

    def follow(self, submission_id: str, line: Callable[[str], None]) -> Listening:
        """Hand over everything that the run prints, from its beginning on, from another thread. Never raises."""

    def stop(self, submission_id: str) -> None:
        """Ask the run to end: SIGTERM, which a run answers with a checkpoint."""


METADATA = "giornata_job_id"
STOP_S = 300
"""The seconds that a stopping run may take for its last checkpoint."""
PATIENT = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}
"""Read by Ray in the run's environment: otherwise SIGKILL follows SIGTERM after three seconds."""


@contextmanager
def _answered() -> Iterator[None]:
    """Turn every failure to reach Ray into a ConnectionError."""
    from aiohttp import ClientError
    from ray.exceptions import RayError

    try:
        yield
    except (RayError, ClientError, RuntimeError, OSError) as error:
        first, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise ConnectionError(first) from error


class RayJobClient:
    """The real cluster, as the node's environment names it to Ray: RAY_ADDRESS (the dashboard's, http://head:8265),
    and for a cluster with a token RAY_AUTH_MODE=token."""

    def __init__(self) -> None:
        from ray.job_submission import JobSubmissionClient

        with _answered():
            self._client = JobSubmissionClient()

    def running(self, job_id: str) -> str | None:
        live = [each for each in self._known(job_id) if not RunState(str(each.status)).ended]
        return str(live[0].submission_id) if live else None

    def submit(self, job_id: str, command: str) -> str:
        # Two nodes that begin at one moment give it the same name, and Ray takes only the first.
        name = f"{job_id}-{len(self._known(job_id)) + 1}"
        with _answered():
            return self._client.submit_job(
                entrypoint=command,
                submission_id=name,
                metadata={METADATA: job_id},
                runtime_env={"env_vars": PATIENT},
            )

    def _known(self, job_id: str) -> "list[JobDetails]":
        with _answered():
            return [each for each in self._client.list_jobs() if (each.metadata or {}).get(METADATA) == job_id]

    def state(self, submission_id: str) -> RunState:
        with _answered():
            return RunState(str(self._client.get_job_status(submission_id)))

    def words(self, submission_id: str) -> str:
        with _answered():
            return self._client.get_job_info(submission_id).message or ""

    def follow(self, submission_id: str, line: Callable[[str], None]) -> Listening:
        tail = Tail(lambda: self._printed(submission_id), lambda: self.state(submission_id).ended, line)
        return tail.begin()

    async def _printed(self, submission_id: str) -> AsyncIterator[str]:
        with _answered():
            async for piece in self._client.tail_job_logs(submission_id):
                yield piece

    def stop(self, submission_id: str) -> None:
        with _answered():
            self._client.stop_job(submission_id)
