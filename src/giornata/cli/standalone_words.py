"""The view of a standalone run: a progress bar on a terminal, lines in a pipe."""

import threading
from types import TracebackType

from rich.progress import TaskID

from giornata.cli.ui.output import Output
from giornata.cli.ui.text import size
from giornata.cli.ui.watch import progress_bar
from giornata.domain.visible_text import visible
from giornata.standalone.storage import CheckpointManifest

LINES = 10
"""In a pipe, this many lines tell of the steps of a whole run."""


class RunView:
    """Shows one run. Called by the run's loop and by the thread that stores checkpoints."""

    def __init__(self, out: Output, *, total: int) -> None:
        self._out, self._total = out, total
        self._lock = threading.Lock()
        self._phase = ""
        self._told = 0
        self._held_out = ""
        self._bar = progress_bar(out)
        self._task: TaskID = self._bar.add_task("starting", total=total, note="")

    def __enter__(self) -> "RunView":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def phase(self, name: str, done: int | None, total: int | None) -> None:
        """Show the phase of the engine."""
        with self._lock:
            self._bar.update(self._task, description=name, completed=done or 0, total=total or self._total, note="")
            if name != self._phase and not self._out.live:
                self._out.hint(f"{name} …")
            self._phase = name

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Show a step with its loss and speed, in the bar or as an occasional line."""
        words = [f"loss {metrics['loss']:.4f}"] if "loss" in metrics else []
        if "validation_loss" in metrics:
            self._held_out = f"held out {metrics['validation_loss']:.4f}"
        words += [self._held_out] if self._held_out else []
        words += [f"{metrics['images_per_s']:.2f} images/s"] if "images_per_s" in metrics else []
        with self._lock:
            self._bar.update(self._task, completed=step, total=total, note=", ".join(words))
            part = step * LINES // total
            if part > self._told and not self._out.live:
                self._out.hint(f"step {step}/{total}  {', '.join(words)}")
            self._told = max(part, self._told)

    def stored(self, manifest: CheckpointManifest) -> None:
        """Say that a checkpoint is stored."""
        self.say(f"checkpoint {manifest.step} is safe ({size(manifest.size_bytes)})")

    def say(self, line: str) -> None:
        """Print a line, above the bar on a live terminal."""
        with self._lock:
            if self._out.live:
                self._bar.console.print(visible(line), markup=False)
            else:
                self._out.say(line)
