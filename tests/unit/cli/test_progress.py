"""The bar that a person watches."""

import io
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.text import Text

from giornata.cli.ui.output import Output
from giornata.cli.ui.watch import Loss, progress_bar, watch
from giornata.domain.jobs.job import JobState
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Event, Job, MetricPoint

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Measured:
    """Gives a job's metrics as a client does, and counts how often it is asked."""

    def __init__(self, *losses: float | None) -> None:
        self.losses, self.asked = losses, 0

    def metrics(self, job_id: str, *, after_step: int) -> Iterator[MetricPoint]:
        assert job_id == "job_1"
        self.asked += 1
        for step, loss in enumerate(self.losses, start=1):
            if step > after_step:
                values = {} if loss is None else {"loss": loss}
                yield MetricPoint(step=step, attempt=1, at=NOW, values=values)


def test_the_latest_loss_is_told_and_asked_for_once_a_step() -> None:
    measured = Measured(0.5, 0.25, None)
    loss = Loss(measured, "job_1")  # type: ignore[arg-type]
    assert loss.words(0) == "" and measured.asked == 0
    assert loss.words(3) == "loss 0.2500"
    assert loss.words(3) == "loss 0.2500" and measured.asked == 1


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_name_keeps_the_bar_in_one_line(width: int) -> None:
    out, screen = Output(as_json=False), io.StringIO()
    out.console = Console(file=screen, force_terminal=True, width=width)
    bar = progress_bar(out)
    bar.console.width = width
    task = bar.add_task("a name [/in] brackets that goes on and on and on", total=1500, note="training loss 0.1234")
    bar.update(task, completed=120)
    (line,) = [line for line in bar.console.render_lines(bar.get_renderable(), pad=False) if line]
    text = "".join(segment.text for segment in line)
    assert len(text.rstrip()) <= width
    assert text.startswith("a name [/in] brac") and "120/1500" in text
    assert ("training loss 0.1234" in text) == (width >= 80)


def job_that(**said: object) -> Job:
    words = {"id": "job_1", "name": "toy", "state": JobState.QUEUED, "attempts": [], "step": 0, "total_steps": 10}
    words |= {"phase": None, "waiting_because": None, "interruptions": 0, "cost_micro_usd": 0, "error": None}
    return Job.model_construct(faults=[], **(words | said))


class JobSequence:
    """Gives one job after the other, as a client is asked."""

    def __init__(self, *jobs: Job) -> None:
        self._jobs = list(jobs)

    def get_job(self, _job_id: str) -> Job:
        return self._jobs.pop(0)


def on_screen(text: str) -> str:
    """What a terminal shows at the end, when what was redrawn is gone."""
    lines, row = [""], 0
    for part in re.split(r"(\n|\x1b\[1A|\x1b\[2K)", text):
        match part:
            case "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            case "\x1b[1A":
                row -= 1
            case "\x1b[2K":
                lines[row] = ""
            case _:
                lines[row] += Text.from_ansi(part.replace("\r", "")).plain
    return " ".join(" ".join(lines).split())


def followed(*jobs: Job) -> list[str]:
    """The screen each time that the command sleeps, and at the end."""
    out, screen, seen = Output(as_json=False), io.StringIO(), list[str]()
    out.console = Console(file=screen, force_terminal=True, width=80)
    out.console.width = 80

    def sleep(_seconds: float) -> None:
        seen.append(on_screen(screen.getvalue()))

    watch(JobSequence(*jobs), "job_1", out, sleep=sleep)  # type: ignore[arg-type]
    return [*seen, on_screen(screen.getvalue())]


def test_why_a_job_waits_is_told_whole_and_is_gone_when_it_waits_no_more() -> None:
    banned = "every connected node (2) has failed this job before and is banned from it, so it [waits] for another"
    turn = "waiting for its turn, position 2 in the queue"
    jobs = [job_that(waiting_because=why) for why in (banned, banned, turn)]
    runs = job_that(state=JobState.RUNNING, phase="training", attempts=[object()], step=0)
    seen = followed(*jobs, runs, job_that(state=JobState.SUCCEEDED, step=10))
    assert [(banned in screen, turn in screen) for screen in seen] == [
        (True, False),
        (True, False),
        (False, True),
        (False, False),
        (False, False),
    ]
    assert seen[0].count(banned) == 1
    assert "waiting" not in seen[-1]


def test_a_job_without_a_node_says_how_to_add_one() -> None:
    waits = job_that(waiting_because="no node for jobs of kind train is connected")
    seen = followed(waits, job_that(state=JobState.SUCCEEDED, step=10))
    assert "no node for jobs of kind train is connected; add one with: giornata node" in seen[0]


class Piped(JobSequence):
    """Also gives the events of each moment."""

    def __init__(self, *jobs: Job, events: Mapping[int, EventType]) -> None:
        super().__init__(*jobs)
        self._events = events

    def events(self, _job_id: str, *, after: int) -> Iterator[Event]:
        for number, kind in self._events.items():
            if number > after:
                yield Event(id=number, job_id="job_1", type=kind, at=NOW, attempt=None, data={"step": 10})


def test_watch_in_pipe_prints_each_waiting_reason_of_job_once() -> None:
    out, screen = Output(as_json=False), io.StringIO()
    out.console = Console(file=screen, width=200)
    none = "no node for jobs of kind train is connected"
    turns = [f"waiting for its turn, position {place} in the queue" for place in (3, 2)]
    jobs = [job_that(waiting_because=why) for why in (none, none, *turns, none)]
    events = {1: EventType.JOB_SUBMITTED, 2: EventType.JOB_SUCCEEDED}
    client = Piped(*jobs, job_that(state=JobState.SUCCEEDED, step=10), events=events)
    watch(client, "job_1", out, sleep=lambda _: None)  # type: ignore[arg-type]
    said = screen.getvalue()
    assert [line.partition("  ")[2].strip() for line in said.splitlines() if NOW.strftime(":00") in line] == [
        "submitted",
        "succeeded at step 10",
    ]
    assert said.count(none) == 2
    assert [said.count(turn) for turn in turns] == [1, 0]


class InterruptedJobs(JobSequence):
    """Ctrl-C comes while the job is looked at."""

    def events(self, _job_id: str, *, after: int) -> Iterator[Event]:
        raise KeyboardInterrupt


def test_ctrl_c_says_that_the_job_goes_on_and_how_to_look_again() -> None:
    out, screen = Output(as_json=False), io.StringIO()
    out.console = Console(file=screen, width=200)
    with pytest.raises(typer.Exit) as ended:
        watch(InterruptedJobs(), "job_1", out, output=Path("my lora"))  # type: ignore[arg-type]
    assert ended.value.exit_code == 130
    assert "the job goes on" in screen.getvalue()
    assert "giornata follow job_1 -o 'my lora'" in screen.getvalue()
