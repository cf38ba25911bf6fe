"""Ray Jobs (docs.ray.io: "Ray Jobs Python SDK"), as much of it as the workload uses."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol


class RunState(StrEnum):
    """Of a submitted run; the names are Ray's."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self in {RunState.STOPPED, RunState.SUCCEEDED, RunState.FAILED}


class RayJobs(Protocol):
    """A cluster that runs commands. Raises ConnectionError when it does not answer."""

    def running(self, job_id: str) -> str | None:
        """The submission that carries this job's id and has not ended; None when there is none."""

    def submit(self, job_id: str, command: str) -> str:
        """Begin; the submission's id."""

    def state(self, submission_id: str) -> RunState: ...

    def words(self, submission_id: str) -> str:
        """What it ended with, or what it waits for."""

    def follow(self, submission_id: str, line: Callable[[str], None]) -> None:
        """Hand over everything that the run prints, from its beginning on, from another thread."""

    def stop(self, submission_id: str) -> None:
        """Ask it to end: SIGTERM, which a run answers with a checkpoint."""


METADATA = "giornata_job_id"
STOP_S = 300
"""How long a run that was told to stop may take for its last checkpoint."""
PATIENT = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}
"""Read by Ray in the run's environment: otherwise SIGKILL follows SIGTERM after three seconds."""


@contextmanager
def _answered() -> Iterator[None]:
    """Whatever keeps Ray from answering is a ConnectionError."""
    from ray.exceptions import RayError

    try:
        yield
    except (RayError, RuntimeError, OSError) as error:
        raise ConnectionError(str(error).strip().splitlines()[0]) from error


class Cluster:
    """The real one, as the node's environment names it to Ray: RAY_ADDRESS (the dashboard's, http://head:8265), and
    for a cluster with a token RAY_AUTH_MODE=token."""

    def __init__(self) -> None:
        from ray.job_submission import JobSubmissionClient

        with _answered():
            self._client = JobSubmissionClient()

    def running(self, job_id: str) -> str | None:
        """As the protocol has it."""
        with _answered():
            known = self._client.list_jobs()
        for each in known:
            if (each.metadata or {}).get(METADATA) == job_id and not RunState(str(each.status)).ended:
                return str(each.submission_id)
        return None

    def submit(self, job_id: str, command: str) -> str:
        """As the protocol has it."""
        with _answered():
            return self._client.submit_job(
                entrypoint=command, metadata={METADATA: job_id}, runtime_env={"env_vars": PATIENT}
            )

    def state(self, submission_id: str) -> RunState:
        """As the protocol has it."""
        with _answered():
            return RunState(str(self._client.get_job_status(submission_id)))

    def words(self, submission_id: str) -> str:
        """As the protocol has it."""
        with _answered():
            return self._client.get_job_info(submission_id).message or ""

    def follow(self, submission_id: str, line: Callable[[str], None]) -> None:
        """As the protocol has it."""
        threading.Thread(
            target=asyncio.run, args=(self._tail(submission_id, line),), daemon=True, name="pretrain-log"
        ).start()

    async def _tail(self, submission_id: str, line: Callable[[str], None]) -> None:
        rest = ""
        async for text in self._client.tail_job_logs(submission_id):
            *whole, rest = (rest + text).split("\n")
            for each in whole:
                line(each)

    def stop(self, submission_id: str) -> None:
        """As the protocol has it."""
        with _answered():
            self._client.stop_job(submission_id)
