"""Follows one job on the terminal until it has ended, or waits for money."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from giornata.cli.event_words import sentence
from giornata.cli.hints import giornata
from giornata.cli.output import Output
from giornata.cli.progress import progress_bar
from giornata.cli.words import cost, count
from giornata.client import STANDS_STILL, Client
from giornata.domain.job import JobState
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job

POLL_S = 1.0
INTERRUPTED = 130
NO_NODE = "no node"


def watch(
    client: Client,
    job_id: str,
    out: Output,
    *,
    output: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Job:
    """A progress bar on a terminal; a line per event in a pipe. Returns the job as it ended, or was paused.

    After Ctrl-C it says how to come back, with the folder `output` for the results.
    """
    into = () if output is None else ("-o", str(output))
    with coming_back(out, "follow", job_id, *into):
        show = _with_bar if out.live else _line_by_line
        job = show(client, job_id, out, sleep)
    paid = f", {cost(job.cost_micro_usd)}" if job.cost_micro_usd else ""
    out.say(f"{job.id} {job.state} after {count(len(job.attempts), 'attempt')}{paid}")
    if job.state is JobState.PAUSED:
        out.say(f"{job.waiting_because}: {giornata('budget', job.id, 'USD')}")
    if job.error and not job.faults:
        out.say(job.error)
    for fault in job.faults:
        out.say(f"  {fault.where}: {fault.message}" + (f" ({fault.hint})" if fault.hint else ""))
    return job


@contextmanager
def coming_back(out: Output, *words: str) -> Iterator[None]:
    """After Ctrl-C, say that the job goes on, and with which command to look again."""
    try:
        yield
    except KeyboardInterrupt:
        out.hint("stopped looking; the job goes on")
        out.hint(f"  look again    {giornata(*words)}")
        raise typer.Exit(INTERRUPTED) from None


def _with_bar(client: Client, job_id: str, out: Output, sleep: Callable[[float], None]) -> Job:
    """Why a job waits is a line of its own above the bar, where there is room for it, as long as the job waits."""
    job, loss, why = client.get_job(job_id), Loss(client, job_id), ""
    bar = progress_bar(out)
    task = bar.add_task(job.name, total=job.total_steps or 1, note="")

    def shown() -> RenderableType:
        return Group(Text(_waiting(why), style="dim"), bar.get_renderable()) if why else bar.get_renderable()

    with Live(get_renderable=shown, console=bar.console, refresh_per_second=4) as live:
        try:
            while job.state not in STANDS_STILL:
                why = job.waiting_because or ""
                note = "" if why or not job.attempts else f"{job.phase} {loss.words(job.step)}"
                bar.update(task, completed=job.step, total=job.total_steps or 1, note=_marked(note, job))
                live.refresh()
                sleep(POLL_S)
                job = client.get_job(job_id)
        finally:
            why = ""  # the last thing that the terminal keeps is the bar alone
        bar.update(task, completed=job.step, note=_marked("", job))
    return job


def _waiting(why: str) -> str:
    """With what to do about it, where somebody has to do something."""
    waits = why if why.startswith("waiting") else f"waiting: {why}"
    return waits + ("; add one with: giornata node --join URL#KEY" if why.startswith(NO_NODE) else "")


def _without_numbers(why: str) -> str:
    return "".join(each for each in why if not each.isdigit())


def _marked(note: str, job: Job) -> str:
    return f"{'⚡' * job.interruptions} {note}".strip()


class Loss:
    """The latest loss of a job, and that on held-out pictures, asked for when there is a new step."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client, self._job_id = client, job_id
        self._step, self._loss, self._held_out = 0, "", ""

    def words(self, step: int) -> str:
        """Of the latest step that has one; empty before."""
        if step > self._step:
            for point in self._client.metrics(self._job_id, after_step=self._step):
                self._step = point.step
                self._loss = f"loss {point.values['loss']:.4f}" if "loss" in point.values else self._loss
                if "validation_loss" in point.values:
                    self._held_out = f"held out {point.values['validation_loss']:.4f}"
        return ", ".join(filter(None, [self._loss, self._held_out]))


def _line_by_line(client: Client, job_id: str, out: Output, sleep: Callable[[float], None]) -> Job:
    """Why the job waits is a line too: not again when only numbers in it change, as a place in the queue does."""
    after, told = 0, ""
    while True:
        after = _say_events(client, job_id, after, out)
        job = client.get_job(job_id)
        if job.state in STANDS_STILL:
            _say_events(client, job_id, after, out)
            return job
        why = job.waiting_because or ""
        if why and _without_numbers(why) != told:
            out.say(_waiting(why))
        told = _without_numbers(why)
        sleep(POLL_S)


def _say_events(client: Client, job_id: str, after: int, out: Output) -> int:
    """Those that came since. Returns the number of the last one."""
    for event in client.events(job_id, after=after):
        after = event.id
        # What the end was is said behind the events, whole.
        if event.type not in {EventType.CHECKPOINT_COMMITTED, EventType.JOB_FAILED}:
            out.say(sentence(event))
    return after
