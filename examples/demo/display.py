"""Shows the demo's progress: tables that redraw themselves on a terminal, plain lines in a pipe."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from examples.demo.snapshot import DemoSnapshot, changes, last_step, running_attempt
from giornata.domain.jobs.job import JobState
from giornata.protocol.jobs import Job
from giornata.protocol.project.admin import NodeState

BAR_CELLS = 26
REFRESHES_PER_S = 8
STATUS_EVERY_S = 10.0
STYLES = {JobState.SUCCEEDED: "green", JobState.FAILED: "red", JobState.QUEUED: "dim"}


class Display:
    """Prints what happens as lines, and keeps tables of jobs and nodes below them when `live`."""

    def __init__(self, console: Console, *, live: bool, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._console, self._monotonic_s, self._started_s = console, monotonic_s, monotonic_s()
        self._snapshot, self._spinner, self._status_s = DemoSnapshot(), Spinner("dots", style="cyan"), 0.0
        self._live: Live | None = None
        if live:
            self._live = Live(self, console=console, refresh_per_second=REFRESHES_PER_S, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def stage(self, text: str) -> None:
        """Set the text beside the spinner. A pipe shows nothing: its lines report what is done."""
        self._spinner.update(text=Text(text))

    def note(self, text: str) -> None:
        """Print one line with the elapsed time."""
        line = Text.assemble((f"{clock(self._elapsed_s):>5}  ", "dim"), (text, "yellow" if "⚡" in text else ""))
        self._console.print(line, soft_wrap=self._live is None)

    def show(self, snapshot: DemoSnapshot) -> None:
        """Print each change since the last snapshot. A pipe also gets the steps of all jobs now and then."""
        before, self._snapshot = self._snapshot, snapshot
        for text in changes(before, snapshot):
            self.note(text)
        if self._live is None and snapshot.jobs and self._elapsed_s - self._status_s >= STATUS_EVERY_S:
            self._status_s = self._elapsed_s
            self.note(
                "steps: " + ", ".join(f"{job.name} {last_step(job)}/{job.total_steps}" for job in snapshot.jobs)
            )

    def __rich__(self) -> RenderableType:
        foot = Table.grid(padding=(0, 2))
        foot.add_row(Text(f"{clock(self._elapsed_s):>5}", style="dim"), self._spinner)
        return Group(Text(), *tables(self._snapshot), foot)

    @property
    def _elapsed_s(self) -> float:
        return self._monotonic_s() - self._started_s


def clock(elapsed_s: float) -> str:
    """Format seconds as `1:05`."""
    return f"{int(elapsed_s) // 60}:{int(elapsed_s) % 60:02d}"


def tables(snapshot: DemoSnapshot) -> list[RenderableType]:
    """Return a table of jobs and one of nodes, without empty ones."""
    parts: list[RenderableType] = []
    if snapshot.jobs:
        parts += [_jobs_table(snapshot), Text()]
    if snapshot.nodes or snapshot.killed:
        parts += [_nodes_table(snapshot), Text()]
    return parts


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(columns):
        table.add_column(no_wrap=True)
    return table


def _jobs_table(snapshot: DemoSnapshot) -> Table:
    table = _grid(6)
    for job in snapshot.jobs:
        attempt = running_attempt(job)
        state = "recovering" if job.recovering else str(job.state)
        table.add_row(
            Text(f"  {job.name}"),
            bar(job),
            Text(f"{last_step(job):>4}/{job.total_steps or 0}", style="" if last_step(job) else "dim"),
            Text(attempt.node_name if attempt is not None else state, style=STYLES.get(job.state, "")),
            Text("⚡" * job.interruptions, style="yellow"),
            Text(f"attempt {len(job.attempts)}" if len(job.attempts) > 1 else "", style="dim"),
        )
    return table


def bar(job: Job, cells: int = BAR_CELLS) -> Text:
    """Draw the committed steps in green, later steps in yellow, and missing steps as a dim line."""
    total = max(1, job.total_steps or 1)
    done = cells * min(total, last_step(job)) // total
    safe = done if job.state is JobState.SUCCEEDED else min(done, cells * job.committed_step // total)
    return Text.assemble(("━" * safe, "green"), ("━" * (done - safe), "yellow"), ("─" * (cells - done), "dim"))


def _nodes_table(snapshot: DemoSnapshot) -> Table:
    names = {job.id: job.name for job in snapshot.jobs}
    killed = {node.id for node in snapshot.killed}
    table = _grid(4)
    for node in sorted((*snapshot.nodes, *snapshot.killed), key=lambda node: node.name):
        if node.id in killed:
            table.add_row(Text(f"  {node.name}"), Text("killed ⚡", style="yellow"))
            continue
        processes = [f"{what} {pid}" for what, pid in (("agent", node.pid), ("engine", node.engine_pid)) if pid]
        table.add_row(
            Text(f"  {node.name}"),
            Text(str(node.state), style="green" if node.state is NodeState.BUSY else "dim"),
            Text(", ".join(processes), style="dim"),
            Text(", ".join(names.get(job_id, job_id) for job_id in node.job_ids), style="dim"),
        )
    return table
