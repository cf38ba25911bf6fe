"""The engine's loop, driven through a pipe with small workloads."""

import errno
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.engine.pipe_driver import PATIENCE_S, PipeDriver

from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.engine.engine import EXIT_AGENT_GONE, EXIT_DEVICE_BROKEN
from giornata.protocol.node.pipe import (
    Alive,
    CacheAnswer,
    CacheGet,
    CheckpointWritten,
    Done,
    Failed,
    Held,
    Hello,
    Log,
    Progress,
    Shutdown,
    Start,
    Stop,
    StoppedMessage,
    WriteCheckpoint,
)
from giornata.workloads.interface import AgentRequest, Outcome, Reporter, Stopped


class Scripted:
    """A workload whose `run` is a function."""

    def __init__(self, body: Callable[[Start, Reporter], Outcome]) -> None:
        self.body = body
        self.models: tuple[str, ...] = ()
        self.files: tuple[str, ...] = ()

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        return self.body(start, reporter)

    def held(self) -> tuple[str, ...]:
        return self.models

    def files_in_host_memory(self) -> tuple[str, ...]:
        return self.files


@contextmanager
def engine(body: Callable[[Start, Reporter], Outcome]) -> Iterator[PipeDriver]:
    driver = PipeDriver({"x-test": Scripted(body)})
    try:
        yield driver
    finally:
        driver.close()


def done(step: int = 1) -> Outcome:
    return Outcome(step=step, summary={"steps": step})


def test_a_job_runs_to_its_end_and_the_next_one_follows(tmp_path: Path) -> None:
    def body(start: Start, reporter: Reporter) -> Outcome:
        reporter.progress(1, 1, {"loss": 0.5, "broken": math.nan, "huge": math.inf})
        return done()

    with engine(body) as driver:
        assert driver.hear(Hello).kinds == ("x-test",)
        driver.start(tmp_path, attempt="att_1")
        driver.start(tmp_path, attempt="att_2")
        assert driver.hear(Progress).metrics == {"loss": 0.5}
        assert driver.hear(Done) == Done(attempt="att_1", step=1, summary={"steps": 1})
        assert driver.hear(Done).attempt == "att_2"


@pytest.mark.parametrize(
    ("checkpoint", "agent_request"),
    [(True, AgentRequest.CHECKPOINT_AND_STOP), (False, AgentRequest.STOP)],
    ids=["with", "without"],
)
def test_stop_is_obeyed_between_steps(tmp_path: Path, checkpoint: bool, agent_request: AgentRequest) -> None:
    agent_requests: list[AgentRequest] = []
    stepping = threading.Event()

    def body(start: Start, reporter: Reporter) -> Outcome:
        stepping.set()
        while (now := reporter.agent_request()) is AgentRequest.GO_ON:
            pass
        agent_requests.append(now)
        if now is AgentRequest.CHECKPOINT_AND_STOP:
            reporter.checkpoint(7, tmp_path / "c", 0.1)
        raise Stopped

    with engine(body) as driver:
        driver.start(tmp_path)
        assert stepping.wait(PATIENCE_S)
        driver.tell(Stop(attempt="att_1", checkpoint=checkpoint))
        assert driver.hear(StoppedMessage).step == (7 if checkpoint else None)
    assert agent_requests == [agent_request]


def test_a_job_that_is_stopped_before_it_began_is_never_begun(tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    def body(start: Start, reporter: Reporter) -> Outcome:
        assert start.attempt == "att_1"
        begun.set()
        release.wait(PATIENCE_S)
        return done()

    with engine(body) as driver:
        driver.start(tmp_path, attempt="att_1")
        assert begun.wait(PATIENCE_S)
        driver.start(tmp_path, attempt="att_2")
        driver.tell(Stop(attempt="att_2", checkpoint=False))
        driver.tell(Stop(attempt="att_1", checkpoint=False))
        assert driver.hear(StoppedMessage).attempt == "att_2"
        release.set()
        assert driver.hear(Done).attempt == "att_1"


def test_a_checkpoint_on_request_is_written_once(tmp_path: Path) -> None:
    asked, go = threading.Event(), threading.Event()

    def body(start: Start, reporter: Reporter) -> Outcome:
        asked.set()
        while reporter.agent_request() is not AgentRequest.CHECKPOINT:
            pass
        reporter.checkpoint(3, tmp_path / "c", 0.0)
        assert reporter.agent_request() is AgentRequest.GO_ON
        go.wait(PATIENCE_S)
        return done(4)

    with engine(body) as driver:
        driver.start(tmp_path)
        asked.wait(PATIENCE_S)
        driver.tell(WriteCheckpoint(attempt="att_1"))
        assert driver.hear(CheckpointWritten).step == 3
        go.set()
        assert driver.hear(Done).step == 4


def test_cache_get_waits_for_the_answer(tmp_path: Path) -> None:
    answers: list[Path | None] = []

    def body(start: Start, reporter: Reporter) -> Outcome:
        answers.extend([reporter.cache_get("one"), reporter.cache_get("two")])
        return done()

    with engine(body) as driver:
        driver.start(tmp_path)
        assert driver.hear(CacheGet).key == "one"
        driver.tell(CacheAnswer(attempt="att_1", key="one", path=tmp_path / "one"))
        assert driver.hear(CacheGet).key == "two"
        driver.tell(CacheAnswer(attempt="att_1", key="two", path=None))
        driver.hear(Done)
    assert answers == [tmp_path / "one", None]


def test_stop_wakes_a_workload_that_waits_for_the_cache(tmp_path: Path) -> None:
    def body(start: Start, reporter: Reporter) -> Outcome:
        reporter.cache_get("never answered")
        return done()

    with engine(body) as driver:
        driver.start(tmp_path)
        driver.hear(CacheGet)
        driver.tell(Stop(attempt="att_1", checkpoint=True))
        assert driver.hear(StoppedMessage).step is None


class OutOfMemoryError(RuntimeError):
    """Stands for torch's class of this name."""


class AcceleratorError(RuntimeError):
    """Stands for torch's class of this name."""


NO_HANDLE = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
FAILURES = [
    (WorkloadFailed(Reason.BAD_DATA, "two pictures"), Reason.BAD_DATA, "two pictures"),
    (MemoryError("1 TiB"), Reason.NODE_VRAM, "1 TiB"),
    (OutOfMemoryError("tried to allocate"), Reason.NODE_VRAM, "tried to allocate"),
    (AcceleratorError("CUDA error: out of memory"), Reason.NODE_VRAM, "out of memory"),
    (RuntimeError(NO_HANDLE), Reason.NODE_VRAM, "ALLOC_FAILED"),
    (OSError(errno.ENOSPC, "No space left on device"), Reason.NODE_DISK, "No space"),
    (OSError(errno.EROFS, "Read-only"), Reason.NODE_DISK, "Read-only"),
    (OSError(errno.ENOENT, "No such file"), Reason.CRASHED, "No such file"),
    (ValueError("why"), Reason.CRASHED, "test_engine_loop.py"),
]


@pytest.mark.parametrize(("error", "reason", "said"), FAILURES)
def test_an_error_ends_the_attempt_and_not_the_engine(
    tmp_path: Path, error: Exception, reason: Reason, said: str
) -> None:
    def body(start: Start, reporter: Reporter) -> Outcome:
        if start.attempt == "att_1":
            raise error
        return done()

    with engine(body) as driver:
        driver.start(tmp_path, attempt="att_1")
        failed = driver.hear(Failed)
        assert failed.reason is reason
        assert said in failed.message
        driver.start(tmp_path, attempt="att_2")
        assert driver.hear(Done).attempt == "att_2"


def test_every_fault_reaches_the_agent(tmp_path: Path) -> None:
    faults = (Fault(where="a.png", message="broken"), Fault(where="b.png", message="empty", hint="send it again"))

    def body(start: Start, reporter: Reporter) -> Outcome:
        raise WorkloadFailed(Reason.BAD_DATA, "two pictures", faults)

    with engine(body) as driver:
        driver.start(tmp_path)
        said = driver.hear(Failed).faults
        assert [(each.where, each.message, each.hint) for each in said] == [
            ("a.png", "broken", ""),
            ("b.png", "empty", "send it again"),
        ]


@pytest.mark.parametrize(
    ("error", "traced"),
    [
        (WorkloadFailed(Reason.BAD_SPEC, "there is no such model"), False),
        (WorkloadFailed(Reason.BAD_DATA, "two pictures"), False),
        (WorkloadFailed(Reason.NODE_DISK, "it is full"), True),
        (ValueError("why"), True),
    ],
)
def test_a_traceback_is_for_faults_of_the_code_and_not_of_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, traced: bool
) -> None:
    def body(start: Start, reporter: Reporter) -> Outcome:
        raise error

    with engine(body) as driver:
        driver.start(tmp_path)
        driver.hear(Failed)
    said = capsys.readouterr().err
    assert said.count(str(error)) == 1
    assert ("Traceback" in said) is traced


def test_a_lost_device_ends_the_process(tmp_path: Path) -> None:
    def body(start: Start, reporter: Reporter) -> Outcome:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with engine(body) as driver:
        driver.start(tmp_path)
        assert driver.hear(Failed).reason is Reason.NODE_DRIVER
        assert driver.join() == EXIT_DEVICE_BROKEN


def test_an_unknown_kind_is_the_jobs_fault(tmp_path: Path) -> None:
    with engine(lambda start, reporter: done()) as driver:
        driver.start(tmp_path, kind="x-other")
        failed = driver.hear(Failed)
        assert (failed.reason, "x-other" in failed.message) == (Reason.BAD_SPEC, True)


def test_the_end_of_stdin_ends_the_process_at_once_even_within_a_job(tmp_path: Path) -> None:
    working, release = threading.Event(), threading.Event()

    def body(start: Start, reporter: Reporter) -> Outcome:
        working.set()
        release.wait(PATIENCE_S)
        return done()

    with engine(body) as driver:
        driver.start(tmp_path)
        assert working.wait(PATIENCE_S)
        driver.close()
        assert driver.exits.get(timeout=PATIENCE_S) == EXIT_AGENT_GONE
        release.set()


def test_shutdown_ends_the_loop(tmp_path: Path) -> None:
    with engine(lambda start, reporter: done()) as driver:
        driver.tell(Shutdown())
        assert driver.join() == 0


def test_a_line_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    with engine(lambda start, reporter: done()) as driver:
        driver.tell_raw(b'{"type": "of a later protocol"}\nnot json\n\n')
        driver.start(tmp_path)
        assert driver.hear(Done).attempt == "att_1"


def test_engine_reports_changed_held_models_before_done(tmp_path: Path) -> None:
    workload = Scripted(lambda start, reporter: done())

    def body(start: Start, reporter: Reporter) -> Outcome:
        workload.models = ("train|base",)
        return done()

    workload.body = body
    driver = PipeDriver({"x-test": workload})
    driver.start(tmp_path)
    assert isinstance(driver.hear_next(), Held)
    assert isinstance(driver.hear_next(), Done)
    driver.start(tmp_path, attempt="att_2")
    assert isinstance(driver.hear_next(), Done)  # nothing has changed, so nothing is said
    driver.close()


def test_engine_reports_files_in_host_memory_of_all_workloads_once(tmp_path: Path) -> None:
    one, other = Scripted(lambda start, reporter: done()), Scripted(lambda start, reporter: done())
    driver = PipeDriver({"x-test": one, "x-other": other})
    one.files, other.files = ("b" * 64, "a" * 64), ("a" * 64,)
    driver.start(tmp_path)
    told = driver.hear(Held)
    assert (told.models, told.host_files) == ((), ("a" * 64, "b" * 64))
    one.files = other.files = ()
    driver.start(tmp_path, attempt="att_2")
    assert driver.hear(Held).host_files == ()
    driver.close()


def test_alive_goes_on_while_a_workload_is_busy(tmp_path: Path) -> None:
    release = threading.Event()

    def body(start: Start, reporter: Reporter) -> Outcome:
        reporter.log("busy")
        release.wait(PATIENCE_S)
        return done()

    driver = PipeDriver({"x-test": Scripted(body)}, alive_every_s=0.01)
    driver.start(tmp_path)
    assert driver.hear(Log).line == "busy"
    driver.hear(Alive)
    driver.hear(Alive)
    release.set()
    driver.hear(Done)
    driver.close()
