"""Draw the loss curve of a run as PNG, with its phases and kills. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.pretrain_demo.kills import Kill
from giornata.protocol.pretraining import PretrainConfig

INK, FAINT, LINE, JUDGED, KILLED, PAPER = "#1d1f23", "#6c7079", "#2f6fb2", "#d9822b", "#b3261e", "#f4f5f7"
WINDOW = 9
Rows = Sequence[Mapping[str, float]]


def draw_losses(path: Path, rows: Rows, kills: Sequence[Kill], config: PretrainConfig) -> None:
    """Write a chart of the training loss, its running mean, the validation loss, phases and kills."""
    figure = Figure(figsize=(9, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    steps, losses = _series(rows, "loss")
    axes.plot(steps, losses, color=LINE, alpha=0.25, linewidth=1)
    axes.plot(steps, running_mean(losses, WINDOW), color=LINE, linewidth=2, label="training loss, running mean")
    axes.plot(
        *_series(rows, "validation_loss"),
        "o-",
        color=JUDGED,
        markersize=4,
        label="validation loss (averaged weights)",
    )
    _mark_phases(axes, rows, config)
    for kill in kills:
        label = "kill -9 of a trainer" if kill is kills[0] else None
        axes.axvline(kill.step, color=KILLED, linestyle=(0, (4, 3)), linewidth=1.4, label=label)
    _dress(axes, steps, len(kills))
    figure.savefig(path)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Average each value with up to window // 2 neighbors on each side."""
    half = window // 2
    parts = [values[max(0, place - half) : place + half + 1] for place in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _series(rows: Rows, name: str) -> tuple[list[float], list[float]]:
    found = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _mark_phases(axes: Axes, rows: Rows, config: PretrainConfig) -> None:
    for place, phase in enumerate(config.phases):
        steps = [row["step"] for row in rows if row["phase"] == place]
        if not steps:
            continue
        if place % 2:
            axes.axvspan(steps[0] - 0.5, steps[-1] + 0.5, color=PAPER, zorder=0)
        words = f"{phase.resolution} px"
        middle = (steps[0] + steps[-1]) / 2
        axes.text(middle, 0.97, words, transform=axes.get_xaxis_transform(), ha="center", va="top", color=FAINT)


def _dress(axes: Axes, steps: Sequence[float], kills: int) -> None:
    times = {1: "once", 2: "twice"}.get(kills, f"{kills} times")
    axes.set_title(f"Pre-training from nothing, killed {times}", loc="left", color=INK, fontsize=13)
    axes.set_xlabel("step", color=FAINT)
    axes.set_ylabel("loss", color=FAINT)
    axes.set_xlim(0, max(steps, default=1) + 1)
    axes.set_ylim(bottom=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=FAINT)
    axes.grid(axis="y", color="#e4e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.93), labelcolor=INK, fontsize=9)
