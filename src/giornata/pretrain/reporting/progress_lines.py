"""The progress of a run, as a bar for people or as lines every few seconds."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0


class PacedLines:
    """Makes a line of progress every LINE_EVERY_S, for output that is no terminal."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._first: tuple[float, int] | None = None
        self._last_s = 0.0

    def line(self, done: int, of: int | None, *words: str, unit: str = "") -> str | None:
        """The words, the rate in `unit` and the time left; None where no line is due. `done` counts those that were
        done before the first call as well."""
        now_s = self._clock_s()
        if self._first is not None and now_s - self._last_s < LINE_EVERY_S:
            return None
        first_s, first_done = self._first = self._first or (now_s, done)
        self._last_s = now_s
        per_s = (done - first_done) / (now_s - first_s) if now_s > first_s else 0.0
        told = [*words]
        if unit and per_s:
            told.append(f"{per_s:,.1f} {unit}/s")
        if of is not None and per_s:
            told.append(f"{timedelta(seconds=round((of - done) / per_s))} left")
        return " · ".join(told)


class TerminalProgress:
    """A bar with the figures that matter; on output that is no terminal, a line every LINE_EVERY_S."""

    def __init__(self, stream: TextIO, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._console, self._paced = Console(file=stream), PacedLines(clock_s)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._progress.add_task("starting Ray", total=None, words="")
        self._phase = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "phase":
                self._phase = message["name"]
                if not self._console.is_terminal:
                    self._console.print(self._phase)
            case "progress":
                self._progress.update(
                    self._task,
                    description=self._phase,
                    completed=message["step"],
                    total=message["total"],
                    words=_figures(message),
                )
                if not self._console.is_terminal:
                    self._say(self._paced.line(message["step"], message["total"], _figures(message)))
            case "note":
                self._say(message["words"])
            case "crash":
                self._say(crash_words(message))
            case "evaluation":
                self._say(evaluation_words(message))
            case "checkpoint" if not self._console.is_terminal:
                self._say(f"step {message['step']} is safe")

    def _say(self, words: str | None) -> None:
        if words is not None:
            self._console.print(f"  {words}", highlight=False, soft_wrap=True, markup=False)


def evaluation_words(message: dict[str, Any]) -> str:
    """A line on an evaluation that has ended."""
    name = message["checkpoint"]
    if "failed" in message:
        return f"{name} was not evaluated: {message['failed']}"
    if "skipped" in message:
        return f"{name} was not evaluated: {message['skipped']}"
    numbers = [f"{tag.rpartition('/')[2].replace('_', ' ')} {each:.4g}" for tag, each in message["numbers"].items()]
    return f"{name} is evaluated: {', '.join(numbers) or 'samples are drawn'}"


def crash_words(message: dict[str, Any]) -> str:
    """A line on a crash and what follows it."""
    then = "the run ends" if message["final"] else "they start again from the last checkpoint"
    return f"the trainers crashed after step {message['step']}: {message['words']} ({then})"


def _figures(message: dict[str, Any]) -> str:
    metrics = message["metrics"]
    words = [f"step {message['step']}/{message['total']}", f"{metrics['images_per_s']:.0f} images/s"]
    if "loss" in metrics:
        words.insert(1, f"loss {metrics['loss']:.3f}")
    if "mfu" in metrics:
        words.append(f"MFU {metrics['mfu']:.0%}")
    words.append(f"data wait {metrics['data_wait_share']:.0%}")
    if metrics["spent_usd"]:
        words.append(f"${metrics['spent_usd']:,.2f}")
    return " · ".join(words)
