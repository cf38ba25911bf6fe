"""The bar that a person watches."""

import io
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from rich.console import Console
from rich.text import Text

from giornata.cli.output import Output
from giornata.cli.progress import progress_bar
from giornata.cli.watch import Loss, watch
from giornata.domain.job import JobState
from giornata.protocol.jobs import Job, MetricPoint

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


class Told:
    """Gives one job after the other, as a client is asked."""

    def __init__(self, *jobs: Job) -> None:
        self._jobs = list(jobs)

    def get_job(self, _job_id: str) -> Job:
        return self._jobs.pop(0)


def test_why_a_job_waits_is_told_whole_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("giornata.cli.watch.POLL_S", 0.0)
    out, screen = Output(as_json=False), io.StringIO()
    out.console = Console(file=screen, force_terminal=True, width=80)
    banned = "every connected node (2) has failed this job before and is banned from it, so it [waits] for another"
    turns = [f"waiting for its turn, position {place} in the queue" for place in (3, 2)]
    jobs = [job_that(waiting_because=why) for why in (banned, banned, *turns)]
    watch(Told(*jobs, job_that(state=JobState.SUCCEEDED, step=10)), "job_1", out)  # type: ignore[arg-type]
    said = " ".join(Text.from_ansi(screen.getvalue()).plain.split())
    assert said.count(banned) == 1
    assert [said.count(turn) for turn in turns] == [1, 0]
