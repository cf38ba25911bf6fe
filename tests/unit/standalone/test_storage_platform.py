"""The platform of a standalone run: what becomes of files, and how a run ends."""

import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.standalone.conftest import NOW

from giornata.agent.attempt.commands import LEFT, ServerCommands, ShutdownSignal
from giornata.agent.attempt.events import AttemptFailed, Finished, Released, Undelivered
from giornata.agent.attempt.platform import AttemptState
from giornata.agent.work_dir import WorkDir
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ArtifactWritten, CheckpointWritten
from giornata.protocol.specs import TrainSpec
from giornata.standalone.platform import RunDeps, RunExitCode, StoragePlatform, exit_code_of
from giornata.standalone.run_request import RunRequest
from giornata.standalone.storage import RunStorage
from giornata.standalone.webhooks import WebhookSender

TAIL = [f"line {number}" for number in range(9)]


@dataclass
class Watcher:
    """Keeps what a person is shown."""

    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def stored(self, manifest: object) -> None: ...

    def phase(self, name: str, done: int | None, total: int | None) -> None: ...

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None: ...


@dataclass
class GatedBlobs:
    """Blobs whose writes raise `error`, or wait until `opened`."""

    blobs: Any
    error: Exception | None = None
    opened: threading.Event = field(default_factory=threading.Event)

    def write(self, key: str, chunks: Iterable[bytes]) -> Any:
        self.opened.wait(20.0)
        if self.error is not None:
            raise self.error
        return self.blobs.write(key, chunks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blobs, name)


class MinuteClock:
    """Passes by a minute at each look."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 60.0
        return self.now_s


@pytest.fixture
def gate(storage) -> GatedBlobs:
    gate = GatedBlobs(storage.blobs)
    gate.opened.set()
    return gate


@pytest.fixture
def platform(tmp_path: Path, gate, record) -> Iterator[StoragePlatform]:
    spec = TrainSpec.model_validate({"model": "some/model", "dataset": "ds_1", "instance_prompt": "sks", "seed": 1})
    record = record.model_copy(update={"spec": spec.model_dump(mode="json")})
    clock, work_dir, watcher = MinuteClock(), WorkDir(tmp_path / "work"), Watcher()
    commands = ServerCommands(shutdown=ShutdownSignal(), monotonic_s=clock, grace_s=10.0, release_s=0.0)
    (tmp_path / "out").mkdir()
    with work_dir.job_dir("one") as job_dir:
        deps = RunDeps(
            storage=RunStorage(blobs=gate, name="the storage"),
            job_dir=job_dir,
            out=tmp_path / "out",
            webhooks=WebhookSender(None, job_id="job_1", say=watcher.say, rng=random.Random(0)),
            listener=watcher,
            now=lambda: NOW,
            rng=random.Random(0),
            storage_patience_s=1.0,
            max_at_risk_s=60.0,
        )
        request = RunRequest(record=record, inputs=(), resumed=False)
        made = StoragePlatform(request, state=AttemptState(commands=commands, monotonic_s=clock), deps=deps)
        made.open()
        yield made
        made.close()
    work_dir.close()


def announce(platform: StoragePlatform, name: str = "lora.safetensors") -> None:
    path = platform.deps.job_dir.outbox / name
    path.write_bytes(b"weights")
    platform.upload(ArtifactWritten(attempt="one", name=name, path=path), path)


def wait(platform: StoragePlatform) -> list[str]:
    """Wait for the uploads. The messages about those that failed."""
    assert platform._uploads.wait_idle(20.0)
    events = [platform._state.events.get() for _ in range(platform._state.events.qsize())]
    assert not any(event.needed for event in events if isinstance(event, Undelivered))
    return [event.message for event in events if isinstance(event, Undelivered)]


def test_results_are_stored_and_delivered(platform, tmp_path):
    announce(platform)
    assert wait(platform) == []
    outcome = platform.report(Finished(step=3, summary={}), tail=TAIL)
    assert exit_code_of(outcome) is RunExitCode.DONE
    assert (tmp_path / "out" / "lora.safetensors").read_bytes() == b"weights"
    assert platform.deps.storage.find_result("lora.safetensors", tmp_path / "stored")
    assert [each["name"] for each in platform.files] == ["lora.safetensors"]


def test_a_checkpoint_is_committed_and_is_the_next_resume_point(platform):
    path = platform.deps.job_dir.outbox / "checkpoint"
    path.write_bytes(b"state")
    platform.upload(CheckpointWritten(attempt="one", step=20, path=path), path)
    assert wait(platform) == []
    assert platform.last_stored.step == 20
    assert platform.find_resume_point().step == 20
    assert platform.prepare().resume == platform.resume


@pytest.mark.parametrize("error", [InvalidInput([Fault(where="key", message="is refused")]), Unavailable("away")])
def test_an_upload_that_is_given_up_is_said_and_listed(platform, gate, error):
    gate.error = error
    announce(platform)
    (message,) = wait(platform)
    assert message.startswith("lora.safetensors could not be stored")
    assert platform.given_up == ["lora.safetensors"]


def test_a_crash_is_told_with_the_last_lines_of_the_engine(platform):
    outcome = platform.report(AttemptFailed(Reason.CRASHED, "it ended", exit_code=3), tail=TAIL)
    assert outcome.message == "it ended; its last output: line 4 | line 5 | line 6 | line 7 | line 8"
    assert exit_code_of(outcome) is RunExitCode.CRASHED


def test_an_engine_that_gives_the_job_back_unasked_is_a_crash(platform):
    outcome = platform.report(Released(reason=Reason.RELEASED, message="stopped unasked"), tail=())
    assert isinstance(outcome, AttemptFailed) and exit_code_of(outcome) is RunExitCode.CRASHED


def test_a_run_that_was_told_to_leave_is_stopped(platform):
    assert exit_code_of(platform.report(LEFT, tail=())) is RunExitCode.STOPPED


def test_a_run_without_time_lists_what_is_not_stored_and_is_done_all_the_same(platform, gate):
    done = Finished(step=3, summary={})
    gate.opened.clear()
    announce(platform)
    assert platform.out_of_time(done) is done
    gate.opened.set()
    assert platform.given_up == ["lora.safetensors"]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (AttemptFailed(Reason.BAD_SPEC, "no", faults=(Fault(where="a", message="b"),)), RunExitCode.BAD_INPUT),
        (AttemptFailed(Reason.BAD_DATA, "no"), RunExitCode.FAILED),
        (AttemptFailed(Reason.NODE_VRAM, "no"), RunExitCode.CRASHED),
    ],
)
def test_the_exit_code_tells_who_is_to_blame(failure, code):
    assert exit_code_of(failure) is code
