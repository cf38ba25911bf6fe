"""Follows one order of pictures on the terminal, and fetches each picture as it is done."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import EXIT_FAILED, EXIT_PAUSED, Output
from giornata.cli.ui.text import count, size
from giornata.cli.ui.watch import coming_back, progress_bar, waiting_words, without_numbers
from giornata.domain.billing.money import format_usd
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import STANDS_STILL, JobState
from giornata.domain.visible_text import visible
from giornata.protocol.jobs import Job
from giornata.protocol.orders.order_pictures import OrderPicture

if TYPE_CHECKING:
    from giornata.client import Client

POLL_S = 1.0
PICTURES_PER_LOOK = 500
"""An order's own row is read once in a poll for each so many pictures: it holds all prompts."""


@dataclass(slots=True, kw_only=True)
class OrderProgress:
    """The pictures that have ended so far, and the files that were fetched."""

    after: int = 0
    done: int = 0
    blocked: int = 0
    failed: int = 0
    files: list[Path] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """The number of pictures that have ended."""
        return self.done + self.failed

    def words(self) -> str:
        """`4 pictures`, with those that are not as they should be."""
        odd = [f"{number} {word}" for number, word in ((self.blocked, "blocked"), (self.failed, "failed")) if number]
        return ", ".join([count(self.done, "picture"), *odd])


def follow_order(
    client: "Client", job: Job, out: Output, *, output: Path | None, sleep: Callable[[float], None] = time.sleep
) -> tuple[Job, OrderProgress]:
    """Follow an order until it has ended or is paused. Each picture is fetched into `output`, if that is given.

    A bar on a terminal; a line for each picture in a pipe. After Ctrl-C it says how to come back.
    """
    progress, bar = OrderProgress(), progress_bar(out)
    task = bar.add_task(job.name, total=job.total_steps or 1, note="")
    into = () if output is None else ("-o", str(output))
    with coming_back(out, "follow", job.id, *into), bar:
        looks, why = 0, ""
        while True:
            over = job.state in STANDS_STILL
            for picture in client.ended_pictures(job.id, after=progress.after):
                _take(client, picture, progress, out, output)
                bar.update(task, completed=progress.ended, note=progress.words())
            if over:
                break
            told = waiting_words(job.waiting_because or "")
            if told and without_numbers(told) != why:
                bar.console.print(
                    visible(told), style="dim", markup=False
                )  # above the bar, which has no room for a sentence
                why = without_numbers(told)
            sleep(POLL_S)
            looks += 1
            if looks % (1 + (job.total_steps or 0) // PICTURES_PER_LOOK) == 0:
                job = client.get_job(job.id)
    _summary(job, progress, out)
    return job, progress


def _take(client: "Client", picture: OrderPicture, progress: OrderProgress, out: Output, output: Path | None) -> None:
    progress.after = picture.id
    if picture.state is not PictureState.SUCCEEDED:
        progress.failed += 1
        if not out.live:
            out.say(f"picture {picture.number} {picture.state}" + (f": {picture.error}" if picture.error else ""))
        return
    progress.done += 1
    if picture.request is None:
        progress.blocked += 1
        return
    if output is not None:
        file = client.download_picture(picture, output)
        progress.files.append(file)
        if not out.live:
            out.say(f"{file}  {size(file.stat().st_size)}")
    elif not out.live:
        out.say(f"picture {picture.number} is done")


def _summary(job: Job, progress: OrderProgress, out: Output) -> None:
    paid = f", {format_usd(job.cost_micro_usd)}" if job.cost_micro_usd else ""
    out.say(f"{job.id} {job.state}: {progress.words()}{paid}")
    if job.state is JobState.PAUSED:
        out.say(f"{job.waiting_because}: {giornata('budget', job.id, 'USD')}")
    if job.error:
        out.say(job.error)


def finish_order(job: Job, progress: OrderProgress, output: Path | None, out: Output) -> int:
    """Print the command that fetches the pictures, unless they were fetched, and the order as JSON.

    Returns the exit status.
    """
    if output is None and progress.done:
        out.hint(f"  download      {giornata('download', job.id, '-o', 'pictures')}")
    out.result(job.model_dump(mode="json") | ({} if output is None else {"files": list(map(str, progress.files))}))
    if job.state is JobState.SUCCEEDED:
        return 0
    return EXIT_PAUSED if job.state is JobState.PAUSED else EXIT_FAILED
