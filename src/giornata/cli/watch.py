"""Follows one job on the terminal until it has ended, or waits for money."""

import time

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from giornata.cli.event_words import sentence
from giornata.cli.output import Output
from giornata.cli.words import cost
from giornata.client import STANDS_STILL, Client
from giornata.domain.job import JobState
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job

POLL_S = 1.0


def watch(client: Client, job_id: str, out: Output) -> Job:
    """A progress bar on a terminal; a line per event in a pipe. Returns the job as it ended, or was paused."""
    job = _with_bar(client, job_id, out) if out.live else _line_by_line(client, job_id, out)
    paid = f", {cost(job.cost_micro_usd)}" if job.cost_micro_usd else ""
    out.say(f"{job.id} {job.state} after {len(job.attempts)} attempt(s){paid}")
    if job.state is JobState.PAUSED:
        out.say(f"{job.waiting_because}: giornata budget {job.id} USD")
    if job.error and not job.faults:
        out.say(job.error)
    for fault in job.faults:
        out.say(f"  {fault.where}: {fault.message}" + (f" ({fault.hint})" if fault.hint else ""))
    return job


def _with_bar(client: Client, job_id: str, out: Output) -> Job:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=out.console) as bar:
        job = client.get_job(job_id)
        task = bar.add_task(job.name, total=job.total_steps or 1, note="")
        while job.state not in STANDS_STILL:
            marks = "⚡" * job.interruptions
            where = job.phase if job.attempts else (job.waiting_because or "")
            bar.update(task, completed=job.step, total=job.total_steps or 1, note=f"{where} {marks}".strip())
            time.sleep(POLL_S)
            job = client.get_job(job_id)
        bar.update(task, completed=job.step, note="⚡" * job.interruptions)
    return job


def _line_by_line(client: Client, job_id: str, out: Output) -> Job:
    for event in client.events(job_id, follow=True):
        if event.type != EventType.CHECKPOINT_COMMITTED:
            out.say(sentence(event))
    return client.get_job(job_id)
