"""W&B's run of a job, by the package itself: written without a network, and sent to a server that this test plays."""

import base64
import io
import json
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from tests.fixtures.joint_train_rig import JointTrainRig
from tests.fixtures.train_rig import RecordingReporter, TrainRig, draw_pictures, spec_for
from tests.fixtures.wandb_server import WandbServer, wandb_server

from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.tracking.wandb_run import FILE_NAME, RETRY_S, Row, TrackerFailed, WandbRun, WandbStream, deliver, upload
from giornata.workloads.interface import AgentRequest, Outcome
from giornata.workloads.train.results.tracking import TrackerContext, wandb_run

KEY = "0123456789abcdef0123456789abcdef01234567"
ROWS: list[Row] = [(step, {"train/loss": loss}) for step, loss in enumerate((0.5, 0.25, 0.125), start=1)]
BLOCK_BYTES = 32 * 1024
PATIENCE_S = 120.0


def records(content: bytes) -> Iterator[Any]:
    """Of a .wandb file: seven bytes, then LevelDB's log format (checksum, length, kind; 32 KiB blocks)."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, whole = 7, b""
    while at + 7 <= len(content):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def run_in(packed: bytes) -> tuple[str, list[Any]]:
    """The folder's name and the run's records."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".wandb")]
        return name.partition("/")[0], list(records(archive.read(name)))


def values(record: Any) -> dict[str, Any]:
    return {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in record}


def run_of(**fields: Any) -> WandbRun:
    spec = TrainSpec.model_validate(
        {"model": "owner/base", "dataset": "ds_1", "seed": 1, "report_to": ["wandb"], **fields}
    )
    return wandb_run(spec, job="job_0abc", origin={"giornata.base_sha256": "b" * 64})


class Waiting(RecordingReporter):
    """Holds the job up after step `at` until something is so."""

    def __init__(self, so: Callable[[], bool], *, at: int, agent_requests: dict[int, AgentRequest]) -> None:
        super().__init__(agent_requests=agent_requests)
        self._so, self._at = so, at

    def agent_request(self) -> AgentRequest:
        until_s = time.monotonic() + PATIENCE_S
        while self._at in self.metrics and not self._so():
            assert time.monotonic() < until_s
            time.sleep(0.05)
        return super().agent_request()


class WaitingWorkload(Waiting):
    """Holds the job up after a step until the server knows of the step before."""

    def __init__(self, server: WandbServer, *, job: str, at: int, agent_requests: dict[int, AgentRequest]) -> None:
        super().__init__(lambda: at - 1 in steps_at(server, job), at=at, agent_requests=agent_requests)


def steps_at(server: WandbServer, job: str) -> list[int]:
    """That it knows of the job."""
    lines = server.history.get(job, {})
    return [lines[place]["_step"] for place in sorted(lines)]


def test_a_job_that_was_interrupted_leaves_one_run_with_each_step_once(tiny_folder: Path, tmp_path: Path) -> None:
    spec = spec_for(tiny_folder, report_to=["wandb"], wandb_project="toys", wandb_run_name="a toy", rank=1)
    train_rig = TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "in", 2))
    whole = train_rig.run()
    first = train_rig.run(RecordingReporter(agent_requests={5: AgentRequest.CHECKPOINT, 7: AgentRequest.STOP}))
    assert sorted(first.metrics) == list(range(1, 8))
    second = train_rig.run(resume=train_rig.resume_point(first, 5))  # steps 6 and 7 once more
    assert not second.notices
    folder, told = run_in(second.artifacts[FILE_NAME])
    assert folder.startswith("offline-run-") and folder.endswith("-jb_1")
    (run,) = [each.run for each in told if each.HasField("run")]
    assert (run.run_id, run.project, run.display_name, run.host) == ("jb_1", "toys", "a toy", "giornata")
    assert values(run.config.update)["pretrained_model_name_or_path"] == tiny_folder.name
    rows = [values(each.history.item) for each in told if each.HasField("history")]
    assert [row["_step"] for row in rows] == list(range(1, 13))
    losses = [first.metrics[step]["loss"] if step <= 5 else second.metrics[step]["loss"] for step in range(1, 13)]
    assert [row["train/loss"] for row in rows] == pytest.approx(losses)
    alone = [values(each.history.item) for each in run_in(whole.artifacts[FILE_NAME])[1] if each.HasField("history")]
    assert [row["train/loss"] for row in alone] == [row["train/loss"] for row in rows]
    assert str(tmp_path) not in str(told)


def test_wandb_upload_repeated_makes_one_run(tmp_path: Path) -> None:
    context = TrackerContext(job="job_0abc", directory=tmp_path)
    with wandb_server() as server:
        for attempt in (tmp_path / "one", tmp_path / "two"):  # the first ended before it could say so
            attempt.mkdir()
            run = run_of(wandb_project="toys")
            deliver(run, ROWS, attempt, wait=context.wait)
            upload(run, ROWS, attempt, SecretStr(KEY), wait=context.wait, base_url=server.url)
    assert {(run["name"], run["project"]) for run in server.runs} == {("job_0abc", "toys")}
    assert {run["host"] for run in server.runs} <= {"giornata", None}
    assert str(tmp_path) not in str(server.runs)
    lines = server.history["job_0abc"]
    assert [lines[place]["_step"] for place in sorted(lines)] == [1, 2, 3]
    assert [lines[place]["train/loss"] for place in sorted(lines)] == [0.5, 0.25, 0.125]
    basic = "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()
    assert server.authorizations <= {basic, ""}  # files go to URLs that are signed
    assert basic in server.authorizations


def test_a_key_that_is_refused_fails_without_being_shown(tmp_path: Path) -> None:
    context = TrackerContext(job="job_0abc", directory=tmp_path)
    packed = deliver(run_of(), ROWS, tmp_path, wait=context.wait)
    with wandb_server(refuses=True) as server, pytest.raises(TrackerFailed) as caught:
        upload(run_of(), ROWS, tmp_path, SecretStr(KEY), wait=context.wait, base_url=server.url)
    assert "invalid key" in str(caught.value) and FILE_NAME in str(caught.value)
    assert KEY not in str(caught.value)
    assert packed.is_file()


def test_a_key_that_is_refused_in_the_middle_fails(tmp_path: Path) -> None:
    context = TrackerContext(job="job_0abc", directory=tmp_path)
    with wandb_server() as server:
        stream = WandbStream(run_of(), tmp_path, SecretStr(KEY), server.url)
        until_s = time.monotonic() + PATIENCE_S
        stream.add(ROWS)
        while not server.history:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        server.refuses = True
        stream.add([(step, {"train/loss": 0.5}) for step in range(4, 8)])
        with pytest.raises(TrackerFailed, match="Fatal error while uploading data"):
            stream.finish(PATIENCE_S, context.wait)


def test_a_key_is_in_no_file_of_the_attempt(tmp_path: Path) -> None:
    context = TrackerContext(job="job_0abc", directory=tmp_path)
    with wandb_server() as server:
        deliver(run_of(), ROWS, tmp_path, wait=context.wait)
        upload(run_of(), ROWS, tmp_path, SecretStr(KEY), wait=context.wait, base_url=server.url)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert len(files) > 2
    assert not [each for each in files if KEY.encode() in each.read_bytes()]


def test_the_curves_are_at_wandb_before_the_job_ends(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_for(tiny_folder, report_to=["wandb"], rank=1, max_train_steps=6)
    train_rig = TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "in", 1))
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        train_rig.run(WaitingWorkload(server, job="jb_1", at=4, agent_requests={}), wandb_api_key=SecretStr(KEY))
    assert steps_at(server, "jb_1") == list(range(1, 7))
    assert not list(tmp_path.rglob("wandb-*/wandb-run")), "what was sent meanwhile is not kept"


def test_jobs_that_share_a_batch_have_a_run_each(joint_rig: JointTrainRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them sends nothing."""
    changes = {name: {"report_to": ["wandb"], "max_train_steps": 6} for name in "ab"} | {"d": {"max_train_steps": 6}}
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        told = {
            name: WaitingWorkload(server, job=name, at=at, agent_requests={}) for name, at in (("a", 3), ("b", 4))
        }
        table, reporters = joint_rig.together(["a", "d", "b"], reporters=dict(told), changes=changes, spoil=with_key)
    assert all(isinstance(end, Outcome) for end in table.ends.values())
    assert server.history.keys() == {"a", "b"}
    for name in "ab":
        assert steps_at(server, name) == list(range(1, 7))
        losses = [line["train/loss"] for _, line in sorted(server.history[name].items())]
        assert losses == pytest.approx([told[name].metrics[step]["loss"] for step in range(1, 7)])
    assert not any(reporter.notices for reporter in reporters.values())


def with_key(_: str, start: Start) -> Start:
    return start.model_copy(update={"wandb_api_key": SecretStr(KEY)})


def test_a_server_that_refuses_the_key_is_told_of_and_the_job_goes_on(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_for(tiny_folder, report_to=["wandb"], rank=1, max_train_steps=3)
    train_rig = TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "in", 1))
    reporter = Waiting(
        lambda: bool(reporter.notices), at=2, agent_requests={1: AgentRequest.CHECKPOINT, 2: AgentRequest.STOP}
    )
    with wandb_server(refuses=True) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        train_rig.run(reporter, wandb_api_key=SecretStr(KEY))
    ((name, data),) = reporter.notices
    assert (name, data["tracker"]) == ("tracker-failed", "wandb")
    assert "were not sent, but will be: wandb ended with 1" in data["message"]
    assert KEY not in data["message"]


def test_a_process_that_ends_is_told_of_once_and_started_again(tmp_path: Path) -> None:
    told: list[str] = []
    stream = WandbStream(run_of(), tmp_path, SecretStr(KEY), base_url="no-address")
    for attempt in range(2):
        until_s = time.monotonic() + PATIENCE_S
        while stream.failure() is None:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        now_s = attempt * 2 * RETRY_S
        for later_s in (0.0, RETRY_S - 1.0):
            stream.look_after(now_s + later_s, told.append)
            assert stream.failure() is not None, "not before RETRY_S"
        stream.look_after(now_s + RETRY_S, told.append)
        assert stream.failure() is None, "a new process"
        stream.look_after(now_s + RETRY_S, told.append)
    stream.abort()
    (words,) = told
    assert "were not sent, but will be: wandb ended with 1" in words


def test_a_key_that_did_not_come_leaves_the_file_and_says_so(tiny_folder: Path, tmp_path: Path) -> None:
    spec = spec_for(tiny_folder, report_to=["wandb"], wandb_api_key_secret="WANDB", rank=1, max_train_steps=1)
    reporter = TrainRig(root=tmp_path, spec=spec, inputs=draw_pictures(tmp_path / "in", 1)).run()
    assert {FILE_NAME, "lora-kohya.safetensors", "README.md"} <= set(reporter.artifacts)
    ((name, data),) = reporter.notices
    assert (name, data["tracker"]) == ("tracker-failed", "wandb")
    assert "could not hand out WANDB" in data["message"]
