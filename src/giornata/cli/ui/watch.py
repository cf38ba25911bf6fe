"""Follows one job on the terminal until it has ended, or waits for money."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import Output
from giornata.cli.ui.text import count, size
from giornata.domain.billing.money import format_usd
from giornata.domain.jobs.job import STANDS_STILL, JobState
from giornata.domain.jobs.reasons import Blame
from giornata.domain.visible_text import visible, visible_line
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Event, Job

if TYPE_CHECKING:
    from giornata.client import Client

POLL_S = 1.0
INTERRUPTED = 130
NO_NODE = "no node"


def watch(
    client: "Client",
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
    paid = f", {format_usd(job.cost_micro_usd)}" if job.cost_micro_usd else ""
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


def _with_bar(client: "Client", job_id: str, out: Output, sleep: Callable[[float], None]) -> Job:
    """Follow the job with a progress bar; a line above the bar gives the reason while the job waits."""
    job, loss, why = client.get_job(job_id), Loss(client, job_id), ""
    bar = progress_bar(out)
    task = bar.add_task(job.name, total=job.total_steps or 1, note="")

    def shown() -> RenderableType:
        return (
            Group(Text(visible(waiting_words(why)), style="dim"), bar.get_renderable())
            if why
            else bar.get_renderable()
        )

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


def waiting_words(why: str) -> str:
    """Return the reason for waiting, with a hint where a person has to act. Empty: nothing is said."""
    if not why:
        return ""
    waits = why if why.startswith("waiting") else f"waiting: {why}"
    return waits + ("; add one with: giornata node --join URL#KEY" if why.startswith(NO_NODE) else "")


def without_numbers(why: str) -> str:
    """Return a reason in the form by which it is told again only when more than its numbers has changed."""
    return "".join(each for each in why if not each.isdigit())


def _marked(note: str, job: Job) -> str:
    return f"{'⚡' * job.interruptions} {note}".strip()


class Loss:
    """The latest loss of a job, and that on held-out pictures, asked for when there is a new step."""

    def __init__(self, client: "Client", job_id: str) -> None:
        self._client, self._job_id = client, job_id
        self._step, self._loss, self._held_out = 0, "", ""

    def words(self, step: int) -> str:
        """Return the losses of the latest step that has one; empty before the first."""
        if step > self._step:
            for point in self._client.metrics(self._job_id, after_step=self._step):
                self._step = point.step
                self._loss = f"loss {point.values['loss']:.4f}" if "loss" in point.values else self._loss
                if "validation_loss" in point.values:
                    self._held_out = f"held out {point.values['validation_loss']:.4f}"
        return ", ".join(filter(None, [self._loss, self._held_out]))


def _line_by_line(client: "Client", job_id: str, out: Output, sleep: Callable[[float], None]) -> Job:
    """Follow the job line by line, with a line for the reason while the job waits.

    The line is not repeated when only its numbers change, such as a place in the queue.
    """
    after, told = 0, ""
    while True:
        after = _say_events(client, job_id, after, out)
        job = client.get_job(job_id)
        if job.state in STANDS_STILL:
            _say_events(client, job_id, after, out)
            return job
        why = job.waiting_because or ""
        if why and without_numbers(why) != told:
            out.say(waiting_words(why))
        told = without_numbers(why)
        sleep(POLL_S)


def _say_events(client: "Client", job_id: str, after: int, out: Output) -> int:
    """Print the job's new events. Returns the number of the last one."""
    for event in client.events(job_id, after=after):
        after = event.id
        # What the end was is said behind the events, whole.
        if event.type not in {EventType.CHECKPOINT_COMMITTED, EventType.JOB_FAILED}:
            out.say(sentence(event))
    return after


Data = Mapping[str, Any]

LONGEST_MESSAGE = 200


def _ended(data: Data) -> str:
    words = f"ended: {data.get('reason')}"
    # The job's own fault ends the job, and the next line says it all.
    if not data.get("message") or data.get("blame") == Blame.JOB:
        return words
    return f"{words}, {shorten(data['message'], LONGEST_MESSAGE, placeholder=' …')}"


def _requeued(data: Data) -> str:
    words = f"back in the queue, to go on from step {data.get('resume_step', 0)}"
    return f"{words}, alone from now on: {data['alone_because']}" if data.get("alone_because") else words


def _budget(data: Data) -> str:
    spent, limit = (format_usd(int(data.get(name, 0))) for name in ("spent_micro_usd", "limit_micro_usd"))
    month = f" for {data['month']}" if data.get("month") else ""
    return f"{spent} of the {data.get('budget')}'s {limit}{month} are spent"


def _notice(data: Data) -> str:
    if data.get("name") == "ban-lifted":
        machines = ", ".join(map(str, data.get("machine_ids", ())))
        return f"may go back to {machines}: {data.get('message')}"
    details = ", ".join(f"{key} {value}" for key, value in data.items() if key != "name")
    return f"notice: {data.get('name')}" + (f" ({details})" if details else "")


SENTENCES: Mapping[str, Callable[[Data], str]] = MappingProxyType(
    {
        EventType.JOB_SUBMITTED: lambda data: (
            "submitted" + (f", goes on from {data['retry_of']}" if data.get("retry_of") else "")
        ),
        EventType.JOB_SUCCEEDED: lambda data: f"succeeded at step {data.get('step')}",
        EventType.JOB_FAILED: lambda data: f"failed: {data.get('error')}",
        EventType.JOB_CANCELED: lambda _: "canceled",
        EventType.JOB_EXPIRED: lambda _: "expired: its deadline passed",
        EventType.JOB_IMPORTED: lambda data: f"imported from {data.get('imported_from')}, which {data.get('state')}",
        EventType.JOB_REQUEUED: _requeued,
        EventType.JOB_PAUSED: lambda data: f"paused: {_budget(data)}",
        EventType.JOB_RESUMED: lambda data: f"in the queue again, to go on from step {data.get('resume_step', 0)}",
        EventType.BUDGET_WARNING: lambda data: f"warning: {_budget(data)}",
        EventType.ATTEMPT_STARTED: lambda data: (
            f"taken by {data.get('node_name')}, from step {data.get('resume_step')}"
        ),
        EventType.ATTEMPT_FIRST_STEP: lambda data: f"first step done ({data.get('step')})",
        EventType.ATTEMPT_LAPSED: lambda _: "⚡ the node fell silent; its lease ran out",
        EventType.ATTEMPT_RENEWED: lambda _: "the node is back",
        EventType.ATTEMPT_ENDED: _ended,
        EventType.CHECKPOINT_COMMITTED: lambda data: (
            f"checkpoint {data.get('step')} is safe ({size(int(data.get('size_bytes', 0)))})"
        ),
        EventType.CHECKPOINT_REJECTED: lambda data: (
            f"checkpoint {data.get('step')} is damaged; the one before is used"
        ),
        EventType.ARTIFACT_COMMITTED: lambda data: (
            f"result {data.get('name')} ({size(int(data.get('size_bytes', 0)))})"
        ),
        EventType.VALIDATION_READY: lambda data: f"sample images of step {data.get('step')}: {data.get('name')}",
        EventType.PICTURES_READY: lambda data: (
            f"{data.get('succeeded')} of {data.get('pictures')} pictures are done"
            + (f", {data['failed']} failed" if data.get("failed") else "")
        ),
        EventType.NOTICE: _notice,
    }
)


def sentence(event: Event) -> str:
    """`14:03:22  #2  taken by local-1, from step 120`."""
    what = SENTENCES[event.type](event.data) if event.type in SENTENCES else event.type
    attempt = f"#{event.attempt}" if event.attempt is not None else ""
    return f"{event.at.astimezone():%H:%M:%S}  {attempt:<3} {what}"


class VisibleColumn(TextColumn):
    """A column whose texts of strangers command no terminal."""

    def render(self, task: Task) -> Text:
        """Return the text of the task, with escape sequences written out."""
        text = super().render(task)
        text.plain = visible_line(text.plain)
        return text


def progress_bar(out: Output) -> Progress:
    """One line: name, bar, steps, time so far, time to go, and the task's field `note` as far as there is room.

    Nothing where nobody looks. What is to be printed meanwhile goes to the bar's own console.
    """
    # Not the console of plain output: its soft wrap lets a line that is too long spoil the redrawing.
    terminal = Console(file=out.console.file, force_terminal=True, highlight=False, emoji=False) if out.live else None
    console = terminal or out.console
    return Progress(
        VisibleColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", max_width=18)
        ),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        VisibleColumn(
            "{task.fields[note]}",
            style="dim",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        console=console,
        disable=not out.live,
        expand=True,
    )
