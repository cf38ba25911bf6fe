"""The workload that follows a run on Ray. Ray is played here; tests/system/pretrain has the real one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from giornata.domain.errors import WorkloadFailed
from giornata.pretrain.evaluation.kept import FOLDER
from giornata.pretrain.recipes import sdxl_tiny
from giornata.pretrain.run_state.committed import run_storage
from giornata.protocol.node.pipe import ResumePoint, Start
from giornata.protocol.pretraining_checks import parse
from giornata.workloads.interface import AgentRequest, Stopped
from giornata.workloads.pretrain.ray_jobs import Listening, RunState
from giornata.workloads.pretrain.workload import AWAY_S, RETOLD_STEPS, PretrainWorkload

JOB = "job_1"
UNHEARD = Listening()


class Reported:
    """What the workload told the platform; `agent_requests` maps the number of the question to an answer."""

    def __init__(self, agent_requests: dict[int, AgentRequest] | None = None) -> None:
        self.agent_requests, self.asked = agent_requests or {}, 0
        self.steps: list[int] = []
        self.checkpoints: list[tuple[int, dict[str, Any]]] = []
        self.logs: list[str] = []
        self.phases: list[str] = []
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.sheets: list[tuple[str, bytes]] = []

    def agent_request(self) -> AgentRequest:
        self.asked += 1
        return self.agent_requests.get(self.asked, AgentRequest.GO_ON)

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        self.phases.append(name)

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        assert total == 32
        self.steps.append(step)

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None:
        self.checkpoints.append((step, json.loads(path.read_text())))

    def artifact(self, name: str, path: Path, media_type: str = "") -> None:
        if media_type == "image/png":
            self.sheets.append((name, path.read_bytes()))
        else:
            self.artifacts[name] = json.loads(path.read_text())

    def log(self, line: str) -> None:
        self.logs.append(line)


class PlayedRay:
    """A cluster that says what it is told to: each entry is what one look at the state brings. `late` are lines that
    come after the last look, one at each sleep."""

    def __init__(
        self, looks: list[RunState | Exception | str], *, under_way: str | None = None, late: list[str] | None = None
    ) -> None:
        self._looks, self._under_way, self._late = looks, under_way, late or []
        self.submitted: list[str] = []
        self.stopped: list[str] = []
        self.deaf = 0
        """So many requests to stop are not heard."""
        self.listening = UNHEARD
        self._line: Callable[[str], None] = print

    def running(self, job_id: str) -> str | None:
        assert job_id == JOB
        found, self._under_way = self._under_way, None
        return found

    def submit(self, job_id: str, command: str) -> str:
        self.submitted.append(command)
        return "submission-1"

    def follow(self, submission_id: str, line: Callable[[str], None]) -> Listening:
        self._line, self.listening = line, Listening()
        if not self._late:
            self.listening.whole.set()
        return self.listening

    def time_passes(self) -> None:
        if len(self._looks) == 1 and self._late:
            self._line(self._late.pop(0))
            if not self._late:
                self.listening.whole.set()

    def state(self, submission_id: str) -> RunState:
        while not isinstance(self._looks[0], RunState | Exception):
            self._line(str(self._looks.pop(0)))
        look = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        if isinstance(look, Exception):
            raise look
        return look

    def words(self, submission_id: str) -> str:
        return "ray's words"

    def stop(self, submission_id: str) -> None:
        if self.deaf:
            self.deaf -= 1
            raise ConnectionError("away")
        self.stopped.append(submission_id)


def told(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, **fields})


def spec(folder: Path, *, prompts: tuple[str, ...] = ()) -> dict[str, Any]:
    config = sdxl_tiny(str(folder))
    config = replace(config, train=replace(config.train, validation_prompts=prompts))
    return {"config": json.loads(json.dumps(config.to_json()))}


def play(
    ray: PlayedRay,
    reporter: Reported,
    folder: Path,
    *,
    resumed_at: int | None = None,
    prompts: tuple[str, ...] = (),
) -> Any:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        ray.time_passes()

    workload = PretrainWorkload(cluster=lambda: ray, clock_s=lambda: now[0], sleep=sleep)
    resume = None if resumed_at is None else ResumePoint(step=resumed_at, path=folder / "pointer.json")
    start = Start(
        attempt="att_1", job=JOB, kind="pretrain", spec=spec(folder, prompts=prompts), directory=folder, resume=resume
    )
    try:
        return workload.run(start, reporter)  # type: ignore[arg-type]
    finally:
        assert ray.listening.left.is_set() == (ray.listening is not UNHEARD)


def test_pretrain_job_submits_run_follows_it_and_reports(tmp_path: Path) -> None:
    lines = [
        told("phase", name="32"),
        "a word from a library",
        told("progress", step=3, metrics={"loss": 1.0}),
        told("checkpoint", step=4, storage="s3://here"),
        told("checkpoint", step=4, storage="s3://here"),
        told("result", trained_once=512),
    ]
    ray = PlayedRay([RunState.PENDING, *lines, RunState.RUNNING, RunState.SUCCEEDED])
    reporter = Reported()
    outcome = play(ray, reporter, tmp_path)
    assert len(ray.submitted) == 1
    assert "giornata.pretrain.run" in ray.submitted[0]
    assert reporter.steps == [3]
    assert [step for step, _ in reporter.checkpoints] == [4]
    assert reporter.logs == ["a word from a library"]
    assert outcome.step == 32
    assert outcome.summary == {"trained_once": 512} == reporter.artifacts["report.json"]


def test_a_run_that_is_under_way_is_not_begun_twice(tmp_path: Path) -> None:
    ray = PlayedRay([RunState.SUCCEEDED], under_way="submission-0")
    play(ray, Reported(), tmp_path)
    assert ray.submitted == []


def test_a_run_that_was_being_stopped_when_it_was_found_is_begun_again(tmp_path: Path) -> None:
    ray = PlayedRay([RunState.RUNNING, RunState.STOPPED, RunState.SUCCEEDED], under_way="submission-0")
    play(ray, Reported(), tmp_path)
    assert len(ray.submitted) == 1


def test_a_run_of_this_attempt_that_somebody_stopped_on_ray_is_not(tmp_path: Path) -> None:
    ray = PlayedRay([RunState.RUNNING, RunState.STOPPED, RunState.SUCCEEDED])
    with pytest.raises(WorkloadFailed, match="was stopped on Ray"):
        play(ray, Reported(), tmp_path)
    assert len(ray.submitted) == 1


def test_checkpoints_that_an_attempt_before_has_handed_over_are_not_handed_over_again(tmp_path: Path) -> None:
    lines = [told("checkpoint", step=3), told("checkpoint", step=6), told("checkpoint", step=9)]
    ray, reporter = PlayedRay([*lines, RunState.SUCCEEDED], under_way="submission-0"), Reported()
    play(ray, reporter, tmp_path, resumed_at=6)
    assert [step for step, _ in reporter.checkpoints] == [9]


def test_a_request_to_stop_reaches_ray_and_the_last_checkpoint_counts(tmp_path: Path) -> None:
    looks = [RunState.RUNNING, told("checkpoint", step=9), RunState.STOPPED]
    ray, reporter = PlayedRay(looks), Reported({1: AgentRequest.CHECKPOINT_AND_STOP})
    with pytest.raises(Stopped) as stopped:
        play(ray, reporter, tmp_path)
    assert ray.stopped == ["submission-1"]
    assert stopped.value.step == 9


def test_a_run_that_does_not_stop_is_left_behind(tmp_path: Path) -> None:
    ray, reporter = PlayedRay([RunState.RUNNING]), Reported({1: AgentRequest.CHECKPOINT_AND_STOP})
    with pytest.raises(Stopped):
        play(ray, reporter, tmp_path)
    assert reporter.asked == 1  # then nothing more was asked of it
    assert len(ray.stopped) == 1


def test_a_lease_that_is_lost_stops_the_run_and_nobody_waits_for_its_end(tmp_path: Path) -> None:
    ray, reporter = PlayedRay([RunState.RUNNING, RuntimeError("not asked again")]), Reported({1: AgentRequest.STOP})
    with pytest.raises(Stopped):
        play(ray, reporter, tmp_path)
    assert ray.stopped == ["submission-1"]


@pytest.mark.parametrize("agent_request", [AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP])
def test_stop_that_ray_does_not_answer_is_sent_again(tmp_path: Path, agent_request: AgentRequest) -> None:
    ray, reporter = PlayedRay([*[RunState.RUNNING] * 5, RunState.STOPPED]), Reported({1: agent_request})
    ray.deaf = 2
    with pytest.raises(Stopped):
        play(ray, reporter, tmp_path)
    assert ray.stopped == ["submission-1"]
    assert len([line for line in reporter.logs if "not told to stop submission-1" in line]) == 2


def test_pretrain_job_waits_for_last_lines_of_ended_run(tmp_path: Path) -> None:
    """Ray says that it has ended before it hands over the last lines, and on a busy machine long before."""
    late = ["a word", *["more words"] * 20, told("result", trained_once=512)]
    outcome = play(PlayedRay([RunState.SUCCEEDED], late=late), Reported(), tmp_path)
    assert outcome.summary == {"trained_once": 512}


def test_last_words_that_never_come_are_not_waited_for_long(tmp_path: Path) -> None:
    ray = PlayedRay([RunState.SUCCEEDED], late=["word"] * 100_000)
    assert play(ray, Reported(), tmp_path).summary == {}


def test_an_attempt_that_follows_does_not_count_steps_again_that_are_safe(tmp_path: Path) -> None:
    """But for the last of them, whose metrics may have been lost with the attempt before."""
    safe = RETOLD_STEPS + 6
    lines = [told("progress", step=step, metrics={}) for step in range(1, safe + 3)]
    followed, begun = Reported(), Reported()
    play(PlayedRay([*lines, RunState.SUCCEEDED], under_way="submission-0"), followed, tmp_path, resumed_at=safe)
    assert followed.steps == list(range(7, safe + 3))
    # A run that is begun anew goes on from what its own storage has, which may be less.
    play(PlayedRay([*lines[2:], RunState.SUCCEEDED]), begun, tmp_path, resumed_at=safe)
    assert begun.steps == list(range(3, safe + 3))


def test_evaluations_and_what_is_not_measured_are_in_the_log(tmp_path: Path) -> None:
    lines = [
        told("note", words="no validation loss: train.validation_rows = 0"),
        told("evaluation", checkpoint="step-4", step=4, numbers={"evaluation/fid": 9.5}),
        told("evaluation", checkpoint="step-8", failed="no memory"),
    ]
    reporter = Reported()
    play(PlayedRay([*lines, RunState.SUCCEEDED]), reporter, tmp_path)
    assert reporter.logs == [
        "no validation loss: train.validation_rows = 0",
        'step-4 evaluated: {"evaluation/fid": 9.5}',
        "step-8 not evaluated: no memory",
    ]


def test_a_failed_run_fails_the_attempt_with_its_last_words(tmp_path: Path) -> None:
    ray = PlayedRay(["Traceback", "ValueError: no such bucket", RunState.FAILED])
    with pytest.raises(WorkloadFailed, match="no such bucket"):
        play(ray, Reported(), tmp_path)


def test_a_cluster_that_does_not_answer_yet_is_waited_for(tmp_path: Path) -> None:
    ray, asked = PlayedRay([RunState.SUCCEEDED]), []

    def connect() -> PlayedRay:
        asked.append(None)
        if len(asked) < 3:
            raise ConnectionError("nobody there")
        return ray

    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    workload = PretrainWorkload(cluster=connect, clock_s=lambda: now[0], sleep=sleep)
    start = Start(attempt="att_1", job=JOB, kind="pretrain", spec=spec(tmp_path), directory=tmp_path)
    assert workload.run(start, Reported()).step == 32  # type: ignore[arg-type]
    assert len(asked) == 3
    with pytest.raises(Stopped):
        never = PretrainWorkload(cluster=_nobody, clock_s=lambda: now[0], sleep=sleep)
        never.run(start, Reported({1: AgentRequest.STOP}))  # type: ignore[arg-type]
    with pytest.raises(WorkloadFailed, match="nobody there"):
        never.run(start, Reported())  # type: ignore[arg-type]


def _nobody() -> PlayedRay:
    raise ConnectionError("nobody there")


def test_a_cluster_that_is_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    ray = PlayedRay([ConnectionError("away"), ConnectionError("away"), RunState.SUCCEEDED])
    assert play(ray, Reported(), tmp_path).step == 32
    gone = PlayedRay([ConnectionError("gone")])
    reporter = Reported()
    with pytest.raises(WorkloadFailed, match="does not answer"):
        play(gone, reporter, tmp_path)
    assert len(reporter.phases) > AWAY_S / 100  # signs of life meanwhile


EVALUATED = (
    told("evaluation", checkpoint="step-00000008-phase-0", step=8, numbers={"evaluation/fid": 0.5}),
    told("evaluation", checkpoint="step-00000012-phase-0", step=12, skipped="a newer one was due as well"),
    told("evaluation", checkpoint="step-00000016-phase-1", step=16, numbers={}),
)


def drawn(folder: Path, *names: str) -> None:
    """Keep a sheet of each checkpoint in the run's storage."""
    storage = run_storage(parse(spec(folder)["config"]))
    for name in names:
        storage.write(f"{FOLDER}/{name}.png", name.encode())


@pytest.mark.parametrize("under_way", [None, "submission-0"])
def test_sheets_that_evaluations_draw_become_results_of_the_job(tmp_path: Path, under_way: str | None) -> None:
    drawn(tmp_path, "step-00000008-phase-0", "step-00000016-phase-1")
    ray = PlayedRay([*EVALUATED, *EVALUATED[:1], RunState.SUCCEEDED], under_way=under_way)
    reporter = Reported()
    play(ray, reporter, tmp_path, prompts=("a square",), resumed_at=16 if under_way else None)
    assert reporter.sheets == [
        ("samples-00000008.png", b"step-00000008-phase-0"),
        ("samples-00000016.png", b"step-00000016-phase-1"),
    ]
    assert [line for line in reporter.logs if "no result" in line] == []


def test_sheet_that_the_node_cannot_read_is_told_of_and_the_run_is_followed_further(tmp_path: Path) -> None:
    drawn(tmp_path, "step-00000016-phase-1")
    reporter = Reported()
    play(PlayedRay([*EVALUATED, RunState.SUCCEEDED]), reporter, tmp_path, prompts=("a square",))
    assert [name for name, _ in reporter.sheets] == ["samples-00000016.png"]
    (said,) = [line for line in reporter.logs if "no result" in line]
    assert said.startswith("the samples of step-00000008-phase-0 are no result of the job: ")
    assert str(tmp_path) in said


def test_run_without_prompts_is_asked_for_no_sheet(tmp_path: Path) -> None:
    reporter = Reported()
    play(PlayedRay([*EVALUATED, RunState.SUCCEEDED]), reporter, tmp_path)
    assert reporter.sheets == []
    assert [line for line in reporter.logs if "no result" in line] == []
