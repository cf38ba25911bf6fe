"""Follows one job on the terminal until it has ended, or waits for money."""

import time

from giornata.cli.event_words import sentence
from giornata.cli.output import Output
from giornata.cli.progress import progress_bar
from giornata.cli.words import cost, count
from giornata.client import STANDS_STILL, Client
from giornata.domain.job import JobState
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job

POLL_S = 1.0


def watch(client: Client, job_id: str, out: Output) -> Job:
    """A progress bar on a terminal; a line per event in a pipe. Returns the job as it ended, or was paused."""
    job = _with_bar(client, job_id, out) if out.live else _line_by_line(client, job_id, out)
    paid = f", {cost(job.cost_micro_usd)}" if job.cost_micro_usd else ""
    out.say(f"{job.id} {job.state} after {count(len(job.attempts), 'attempt')}{paid}")
    if job.state is JobState.PAUSED:
        out.say(f"{job.waiting_because}: giornata budget {job.id} USD")
    if job.error and not job.faults:
        out.say(job.error)
    for fault in job.faults:
        out.say(f"  {fault.where}: {fault.message}" + (f" ({fault.hint})" if fault.hint else ""))
    return job


def _with_bar(client: Client, job_id: str, out: Output) -> Job:
    """Why a job waits is also a line of its own above the bar, where there is room for it: not again when only
    numbers in it change, as a place in the queue does."""
    job, loss, told = client.get_job(job_id), Loss(client, job_id), ""
    with progress_bar(out) as bar:
        task = bar.add_task(job.name, total=job.total_steps or 1, note="")
        while job.state not in STANDS_STILL:
            why = job.waiting_because or ""
            if why and _without_numbers(why) != told:
                bar.console.print(why, markup=False, style="dim")
                told = _without_numbers(why)
            note = f"{job.phase} {loss.words(job.step)}" if job.attempts else why
            bar.update(task, completed=job.step, total=job.total_steps or 1, note=_marked(note, job))
            time.sleep(POLL_S)
            job = client.get_job(job_id)
        bar.update(task, completed=job.step, note=_marked("", job))
    return job


def _without_numbers(why: str) -> str:
    return "".join(each for each in why if not each.isdigit())


def _marked(note: str, job: Job) -> str:
    return f"{'⚡' * job.interruptions} {note}".strip()


class Loss:
    """The latest loss of a job, asked for when there is a new step."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client, self._job_id = client, job_id
        self._step, self._loss = 0, ""

    def words(self, step: int) -> str:
        """Of the latest step that has one; empty before."""
        if step > self._step:
            for point in self._client.metrics(self._job_id, after_step=self._step):
                self._step = point.step
                self._loss = f"loss {point.values['loss']:.4f}" if "loss" in point.values else self._loss
        return self._loss


def _line_by_line(client: Client, job_id: str, out: Output) -> Job:
    for event in client.events(job_id, follow=True):
        if event.type != EventType.CHECKPOINT_COMMITTED:
            out.say(sentence(event))
    return client.get_job(job_id)
