"""What the demo shows while it works: a board that redraws itself on a terminal, plain lines in a pipe."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from giornata.cli.demo_scene import Scene, changes, reached, running_attempt
from giornata.cli.ui.output import Output
from giornata.cli.ui.text import standing
from giornata.domain.job import JobState
from giornata.protocol.admin import Node, NodeState
from giornata.protocol.jobs import Job

Monotonic = Callable[[], float]

BAR_CELLS = 26
REFRESHES_PER_S = 8
STATUS_EVERY_S = 10.0
_STYLES = {JobState.SUCCEEDED: "green", JobState.FAILED: "red", JobState.QUEUED: "dim", JobState.RUNNING: ""}


class Board(Protocol):
    """Where the demo says what it does."""

    def stage(self, text: str) -> None:
        """What is being done now."""

    def note(self, text: str) -> None:
        """Something that happened, and stays to be read."""

    def show(self, scene: Scene) -> None:
        """The jobs and nodes, now."""


def clock(elapsed_s: float) -> str:
    """`1:05`."""
    return f"{int(elapsed_s) // 60}:{int(elapsed_s) % 60:02d}"


class PlainBoard:
    """A line for each thing that happens, and where everything stands now and then."""

    def __init__(self, out: Output, monotonic_s: Monotonic) -> None:
        self._out, self._monotonic_s, self._began_s = out, monotonic_s, monotonic_s()
        self._last, self._stood_at_s = Scene(), 0.0

    def stage(self, text: str) -> None:
        """Nothing: what happens is told when it has happened."""

    def note(self, text: str) -> None:
        """One line."""
        self._out.say(f"{clock(self._elapsed_s()):>5}  {text}")

    def show(self, scene: Scene) -> None:
        """A line for each change."""
        before, self._last = self._last, scene
        for text in changes(before, scene):
            self.note(text)
        if scene.jobs and self._elapsed_s() - self._stood_at_s >= STATUS_EVERY_S:
            self._stood_at_s = self._elapsed_s()
            self.note("steps: " + ", ".join(f"{job.name} {reached(job)}/{job.total_steps}" for job in scene.jobs))

    def _elapsed_s(self) -> float:
        return self._monotonic_s() - self._began_s


class LiveBoard:
    """One row for each job, one for each node; what happened scrolls away above. Drawn again by its Live."""

    def __init__(self, console: Console, monotonic_s: Monotonic) -> None:
        self._console, self._monotonic_s, self._began_s = console, monotonic_s, monotonic_s()
        self._scene, self._stage = Scene(), Spinner("dots", style="cyan")

    def stage(self, text: str) -> None:
        """The line with the spinner."""
        self._stage.update(text=Text(text))

    def note(self, text: str) -> None:
        """A line above the board."""
        line = Text(f"{clock(self._elapsed_s()):>5}  ", style="dim")
        self._console.print(Text.assemble(line, (text, "yellow" if "⚡" in text else "")))

    def show(self, scene: Scene) -> None:
        """What the board shows from now on; what has changed is said above it."""
        before, self._scene = self._scene, scene
        for text in changes(before, scene):
            self.note(text)

    def __rich__(self) -> RenderableType:
        return picture(self._scene, self._stage, elapsed_s=self._elapsed_s())

    def _elapsed_s(self) -> float:
        return self._monotonic_s() - self._began_s


@contextmanager
def board(out: Output, monotonic_s: Monotonic = time.monotonic) -> Iterator[Board]:
    """The board that suits where the words go."""
    if not out.live:
        yield PlainBoard(out, monotonic_s)
        return
    # Not the console of plain output: its soft wrap lets a row that is too long spoil the redrawing.
    console = Console(file=out.console.file, highlight=False)
    shown = LiveBoard(console, monotonic_s)
    with Live(shown, console=console, refresh_per_second=REFRESHES_PER_S, transient=True):
        yield shown


def picture(scene: Scene, stage: RenderableType, *, elapsed_s: float) -> Group:
    """The whole board."""
    parts: list[RenderableType] = [Text()]
    if scene.jobs:
        parts += [_jobs_table(scene), Text()]
    if scene.nodes or scene.lost:
        parts += [_nodes_table(scene), Text()]
    foot = Table.grid(padding=(0, 2))
    foot.add_row(Text(f"{clock(elapsed_s):>5}", style="dim"), stage)
    return Group(*parts, foot)


def _jobs_table(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(6):
        table.add_column(no_wrap=True)
    for job in scene.jobs:
        attempt = running_attempt(job)
        where = attempt.node_name if attempt is not None else standing(job)
        tries = f"attempt {len(job.attempts)}" if len(job.attempts) > 1 else ""
        table.add_row(
            Text(f"  {job.name}"),
            bar(job),
            Text(f"{reached(job):>4}/{job.total_steps or 0}", style="" if reached(job) else "dim"),
            Text(f"{where}", style=_STYLES.get(job.state, "")),
            Text(f"{'⚡' * job.interruptions}", style="yellow"),
            Text(tries, style="dim"),
        )
    return table


def bar(job: Job, cells: int = BAR_CELLS) -> Text:
    """Steps that are safe in a checkpoint, steps since then, steps to come."""
    total = max(1, job.total_steps or 1)
    done = cells * min(total, reached(job)) // total
    safe = done if job.state is JobState.SUCCEEDED else min(done, cells * job.committed_step // total)
    parts = (("━" * safe, "green"), ("━" * (done - safe), "yellow"), ("─" * (cells - done), "dim"))
    return Text.assemble(*parts)


def _nodes_table(scene: Scene) -> Table:
    names = {job.id: job.name for job in scene.jobs}
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        table.add_column(no_wrap=True)
    lost = {node.id for node in scene.lost}
    for node in sorted((*scene.nodes, *scene.lost), key=lambda node: node.name):
        if node.id in lost:
            table.add_row(Text(f"  {node.name}"), Text("killed ⚡", style="yellow"))
            continue
        table.add_row(
            Text(f"  {node.name}"),
            Text(str(node.state), style="green" if node.state is NodeState.BUSY else "dim"),
            Text(_processes(node), style="dim"),
            Text(", ".join(_work(node, names)), style="dim"),
        )
    return table


def _processes(node: Node) -> str:
    known = [("agent", node.pid), ("engine", node.engine_pid)]
    return ", ".join(f"{what} {pid}" for what, pid in known if pid is not None)


def _work(node: Node, names: dict[str, str]) -> Sequence[str]:
    return [names.get(job_id, job_id) for job_id in node.job_ids]
