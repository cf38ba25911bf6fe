"""Submits the run to Ray, follows it, and reports its progress to the platform.

Checkpoints stay where the run writes them; what the platform keeps of one is a pointer, so that steps count as saved.
Sheets of samples that evaluations draw become results of the job, where this node can read the run's storage.
The node may vanish: the run goes on without it, and the next attempt finds it by the job's id and follows it further.
When the run itself is gone, it is submitted again and goes on from its own storage.
"""

import json
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import PRETRAIN_KIND, total_steps
from giornata.workloads.interface import AgentRequest, Outcome, Reporter, Stopped
from giornata.workloads.pretrain.ray_jobs import STOP_S, Listening, RayJobClient, RayJobs, RunState

POLL_S = 2.0
AWAY_S = 600.0
"""The seconds without an answer from the cluster after which the attempt gives up."""
LAST_WORDS_S = 60.0
"""For what a run printed at its end to arrive: Ray looks once a second, and later where it has much to do."""
SIGN_S = 60.0
"""Between two signs of life while the run says nothing: a large model takes long to load and to compile."""
RETOLD_STEPS = 1000
"""Latest steps whose metrics are reported again: they may have been lost with the attempt before, although a later
step is safe. A million earlier ones need no repetition."""
LAST_LINES = 20
REPORT = "report.json"


class PretrainWorkload:
    """The workload that follows a run on Ray. The workload holds no model itself."""

    def __init__(
        self,
        *,
        cluster: Callable[[], RayJobs] = RayJobClient,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster, self._clock_s, self._sleep = cluster, clock_s, sleep

    def held(self) -> tuple[str, ...]:
        return ()

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        """Follow the run to its end. Raises Stopped, and WorkloadFailed when the run fails or no cluster answers."""
        while True:
            cluster, submission, found = self._begun(start, reporter)
            following = _Following(
                start, reporter, cluster, submission, found=found, clock_s=self._clock_s, sleep=self._sleep
            )
            try:
                return following.to_the_end()
            except _StoppedByOthers as stopped:
                # A node that had to leave told it to stop, and was gone before it had.
                if not found:
                    raise WorkloadFailed(Reason.CRASHED, str(stopped)) from None

    def _begun(self, start: Start, reporter: Reporter) -> tuple[RayJobs, str, bool]:
        """Return the cluster, and the run on it: one that is under way (True), or a new one. A cluster that does not
        answer is waited for."""
        by_s = self._clock_s() + AWAY_S
        while True:
            reporter.phase("looking for Ray")
            try:
                cluster = self._cluster()
                submission = cluster.running(start.job)
                if submission is not None:
                    reporter.log(f"the run is under way on Ray: {submission}")
                    return cluster, submission, True
                return cluster, cluster.submit(start.job, command(start.spec["config"])), False
            except ConnectionError as error:
                if self._clock_s() > by_s:
                    raise WorkloadFailed(
                        Reason.CRASHED, f"the run could not be submitted to a Ray cluster: {error}"
                    ) from error
            if reporter.agent_request() in {AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP}:
                raise Stopped
            self._sleep(POLL_S)


def command(config: dict[str, Any]) -> str:
    """Return the command that Ray runs on its cluster. `-u` keeps no line back."""
    return shlex.join(
        [
            *(sys.executable, "-u", "-m", "giornata.pretrain.run"),
            *("--config-json", json.dumps(config), "--lines", "--address", "auto"),
        ]
    )


def _words(message: dict[str, Any]) -> str:
    """Return a line on an evaluation or on something that the run does not measure."""
    if message["event"] == "note":
        return str(message["words"])
    why = message.get("failed") or message.get("skipped")
    told = f"not evaluated: {why}" if why else f"evaluated: {json.dumps(message['numbers'], sort_keys=True)}"
    return f"{message['checkpoint']} {told}"


def kept_sheet(config: dict[str, Any], checkpoint: str) -> bytes | None:
    """Return the sheet of samples of an evaluated checkpoint, as PNG, from the run's storage; None when the run draws
    none.

    Raises OSError, and InvalidInput for a storage that cannot be opened.
    """
    from giornata.pretrain.evaluation.kept import samples_of
    from giornata.pretrain.run_state.committed import run_storage
    from giornata.protocol.pretraining_checks import parse

    wanted = parse(config)
    if not wanted.train.validation_prompts or wanted.model.random_encoders:
        return None
    storage = run_storage(wanted)
    if (png := samples_of(storage, checkpoint)) is None:
        raise FileNotFoundError(f"{storage} has no samples of {checkpoint}")
    return png


class _StoppedByOthers(Exception):
    """An exception: the run was told to stop, and not by this attempt."""


class _Following:
    def __init__(
        self,
        start: Start,
        reporter: Reporter,
        cluster: RayJobs,
        submission: str,
        *,
        found: bool,
        clock_s: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._start, self._reporter, self._cluster, self._submission = start, reporter, cluster, submission
        self._clock_s, self._sleep = clock_s, sleep
        self._total = total_steps(PRETRAIN_KIND, start.spec) or 0
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        # Ray tells all lines from the run's beginning, even those that an earlier attempt has read.
        self._kept = 0 if start.resume is None else start.resume.step
        self._told_before = max(0, self._kept - RETOLD_STEPS) if found else 0
        self._sheets = set[int]()
        self._phase = "training on Ray"
        self._result: dict[str, Any] = {}
        self._stop_by_s: float | None = None
        self._agent_request, self._asked_to_stop = AgentRequest.GO_ON, False
        self._listening = Listening()

    def to_the_end(self) -> Outcome:
        self._listening = self._cluster.follow(self._submission, self._lines.put)
        try:
            return self._watch()
        finally:
            self._listening.left.set()

    def _watch(self) -> Outcome:
        heard_s = self._clock_s()
        sign_s = heard_s - SIGN_S
        while True:
            if self._clock_s() - sign_s >= SIGN_S:
                self._reporter.phase(self._phase)
                sign_s = self._clock_s()
            try:
                state = self._cluster.state(self._submission)
                heard_s = self._clock_s()
            except ConnectionError as error:
                if self._clock_s() - heard_s > AWAY_S:
                    raise WorkloadFailed(Reason.CRASHED, f"Ray does not answer any more: {error}") from error
                state = RunState.RUNNING
            self._hear()
            if state.ended:
                return self._ended(state)
            self._attend()
            self._sleep(POLL_S)

    def _attend(self) -> None:
        # A request for a checkpoint changes nothing: the run writes checkpoints as its configuration says.
        if self._stop_by_s is None and (agent_request := self._reporter.agent_request()) in {
            AgentRequest.STOP,
            AgentRequest.CHECKPOINT_AND_STOP,
        }:
            self._agent_request, self._stop_by_s = agent_request, self._clock_s() + STOP_S
        if self._stop_by_s is None:
            return
        if self._clock_s() > self._stop_by_s:
            raise Stopped(self._kept or None)
        if not self._asked_to_stop:
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        """Ask Ray to stop the run, again later if Ray did not answer: an abandoned run costs as much as before."""
        try:
            self._cluster.stop(self._submission)
        except ConnectionError as error:
            self._reporter.log(f"Ray was not told to stop {self._submission}, and will be again: {error}")
            return
        self._asked_to_stop = True
        if self._agent_request is AgentRequest.STOP:
            # The attempt need not wait: the run stops with a checkpoint, and Ray sees to its end.
            raise Stopped(self._kept or None)

    def _ended(self, state: RunState) -> Outcome:
        by_s = self._clock_s() + LAST_WORDS_S
        while not self._listening.whole.is_set() and self._clock_s() < by_s:
            self._sleep(POLL_S / 10)  # the last lines come after the state
        self._hear()
        if state is RunState.SUCCEEDED:
            report = self._start.directory / REPORT
            report.write_text(json.dumps(self._result, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            self._reporter.artifact(REPORT, report, "application/json")
            return Outcome(step=self._total, summary=self._result)
        if self._stop_by_s is not None:
            raise Stopped(self._kept or None)
        words = "\n".join(self._last) or self._cluster.words(self._submission)
        if state is RunState.STOPPED:
            raise _StoppedByOthers(f"the run was stopped on Ray: {words}")
        reason = Reason(self._result.get("reason", Reason.CRASHED))
        raise WorkloadFailed(reason, f"the run {state.value.lower()} on Ray: {words}")

    def _hear(self) -> None:
        while True:
            try:
                line = self._lines.get_nowait()
            except Empty:
                return
            if line.startswith("{"):
                try:
                    self._told(json.loads(line))
                    continue
                except (ValueError, KeyError, TypeError):
                    pass
            if line.strip():
                self._last.append(line)
                self._reporter.log(line)

    def _told(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "progress":
                if (step := int(message["step"])) > self._told_before:
                    self._reporter.progress(step, self._total, message["metrics"])
            case "checkpoint":
                self._checkpoint(int(message["step"]), message)
            case "crash":
                self._reporter.log(f"the trainers crashed after step {message['step']}: {message['words']}")
            case "evaluation":
                self._reporter.log(_words(message))
                if "numbers" in message:
                    self._sheet(int(message["step"]), str(message["checkpoint"]))
            case "note":
                self._reporter.log(_words(message))
            case "phase":
                self._phase = str(message["name"])
                self._reporter.phase(self._phase)
            case "result":
                self._result = {name: value for name, value in message.items() if name != "event"}

    def _checkpoint(self, step: int, message: dict[str, Any]) -> None:
        if step <= self._kept:
            return
        path = self._start.directory / f"pointer-{step:09d}.json"
        path.write_text(json.dumps(message, sort_keys=True), encoding="utf-8")
        self._reporter.checkpoint(step, path, 0.0)
        self._kept = step

    def _sheet(self, step: int, checkpoint: str) -> None:
        """Hand over the samples that an evaluation has drawn. An attempt that finds a run hands over those of before
        again: they may have been lost with the attempt that heard of them.
        """
        if step in self._sheets:
            return
        try:
            png = kept_sheet(self._start.spec["config"], checkpoint)
        except Exception as error:  # noqa: BLE001 - a supervisor: whatever storage says, the run is followed further
            self._reporter.log(f"the samples of {checkpoint} are no result of the job: {error}")
            return
        if png is not None:
            path = self._start.directory / f"samples-{step:08d}.png"
            path.write_bytes(png)
            self._sheets.add(step)
            self._reporter.artifact(path.name, path, "image/png")
