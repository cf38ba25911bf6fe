"""Pictures of a run, as PNG and SVG. Needs matplotlib."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from benchmarks.simulate.comparison import PolicyRun
from giornata.domain.billing.money import MICRO_USD
from giornata.simulate.results.story import BeatSeen

SIZE = (9.0, 4.5)
DPI = 144
# Colors that are told apart by those who see red and green alike (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
INK, QUIET = "#222222", "#8a8a8a"


def draw_all(ran: PolicyRun, folder: Path) -> list[Path]:
    """Draw everything there is to be drawn of a run; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, draw in PICTURES.items():
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        if not draw(ran, axes):
            continue
        _tidy(axes)
        stem = f"{ran.scenario.name}-{ran.policy}-{name}"
        for kind in ("png", "svg"):
            file = folder / f"{stem}.{kind}"
            # No date in the file: equal runs give equal files.
            figure.savefig(file, metadata={"Date": None} if kind == "svg" else {"Software": None})
            files.append(file)
    return files


def _life(ran: PolicyRun, axes: Axes) -> bool:
    """One job's life: the one with the most attempts."""
    job = max(ran.world.trace.jobs.values(), key=lambda story: (len(story.attempts), story.id), default=None)
    beats = [] if job is None else [beat for beat in ran.world.trace.beats if beat.job_id == job.id]
    if job is None or not beats:
        return False
    begin_s = beats[0].at_s
    machines = list(dict.fromkeys(beat.machine_id for beat in beats))
    for number, machine_id in enumerate(machines):
        of = [beat for beat in beats if beat.machine_id == machine_id]
        color = COLORS[number % len(COLORS)]
        _beats(axes, [beat for beat in of if beat.phase == "training"], begin_s, color, machine_id, hollow=False)
        _beats(axes, [beat for beat in of if beat.phase != "training"], begin_s, color, None, hollow=True)
    axes.axhline(job.steps, color=QUIET, linewidth=0.8, linestyle=":")
    if job.done_ms is not None:
        done_min = ((job.done_ms - ran.world.agenda.start_ms) / 1000 - begin_s) / 60
        axes.plot([done_min], [job.steps], marker="*", markersize=14, color=INK, linestyle="none", label="done")
    axes.set_title(
        f"The life of {job.id}: {_many(len(job.attempts), 'attempt')} on {_many(len(machines), 'machine')}"
    )
    axes.set_xlabel("minutes since its first heartbeat")
    axes.set_ylabel("step")
    axes.set_ylim(bottom=-0.02 * job.steps, top=1.08 * job.steps)
    title = "heartbeats by machine (hollow: preparing)"
    axes.legend(
        loc="upper left", fontsize="small", title_fontsize="small", frameon=False, title=title, alignment="left"
    )
    return True


def _beats(axes: Axes, beats: list[BeatSeen], begin_s: float, color: str, label: str | None, *, hollow: bool) -> None:
    axes.scatter(
        [(beat.at_s - begin_s) / 60 for beat in beats],
        [beat.step for beat in beats],
        s=14,
        facecolors="none" if hollow else color,
        edgecolors=color,
        linewidths=0.8,
        label=label,
    )


def _fleet(ran: PolicyRun, axes: Axes) -> bool:
    """How large the fleet was, and how long the queue."""
    samples = ran.world.trace.samples
    if not samples:
        return False
    hours = [sample.at_s / 3600 for sample in samples]
    running = [sample.running for sample in samples]
    both = [sample.running + sample.starting for sample in samples]
    axes.fill_between(hours, running, color=COLORS[0], alpha=0.85, linewidth=0, step="post", label="nodes running")
    axes.fill_between(
        hours, running, both, color=COLORS[5], alpha=0.5, linewidth=0, step="post", label="nodes starting"
    )
    axes.step(
        hours,
        [sample.at_work for sample in samples],
        color=COLORS[4],
        linewidth=1.2,
        where="post",
        label="jobs at work",
    )
    axes.set_ylabel("nodes, jobs at work")
    axes.set_ylim(0, 1.25 * max(1, *both))
    axes.set_xlim(0, hours[-1] or 1)
    axes.set_xlabel("hours")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    waiting = axes.twinx()
    waiting.plot(hours, [sample.queued for sample in samples], color=COLORS[1], linewidth=1.6, label="jobs that wait")
    waiting.set_ylabel("jobs that wait", color=COLORS[1])
    waiting.tick_params(axis="y", colors=COLORS[1])
    waiting.set_ylim(bottom=0)
    waiting.spines["top"].set_visible(False)
    axes.set_title(f"Fleet and queue: {ran.scenario.name}, policy of {ran.policy}")
    handles = [each for part in (axes, waiting) for each in part.get_legend_handles_labels()[0]]
    labels = [each for part in (axes, waiting) for each in part.get_legend_handles_labels()[1]]
    axes.legend(handles, labels, loc="upper center", ncols=4, fontsize="small", frameon=False)
    return True


def _cost(ran: PolicyRun, axes: Axes) -> bool:
    """What a useful step cost on each machine."""
    price = ran.scenario.offers[0].price_micro_usd_per_hour / MICRO_USD / 3_600_000
    costs = sorted(
        each.billed_ms * price / each.useful_steps * 1000
        for each in ran.world.billed_time.machines.values()
        if each.useful_steps >= 1
    )
    none = sum(each.useful_steps < 1 and each.billed_ms > 0 for each in ran.world.billed_time.machines.values())
    if not costs:
        return False
    axes.bar(range(1, len(costs) + 1), costs, width=0.9, color=COLORS[0])
    middle = costs[len(costs) // 2]
    axes.axhline(middle, color=COLORS[1], linewidth=1.2, label=f"median machine: ${middle:.3f}")
    if costs[-1] > 8 * middle:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(f"What 1000 useful steps cost, machine by machine: {ran.scenario.name}, policy of {ran.policy}")
    axes.set_xlabel(f"machines, cheapest first ({none} more were billed and brought nothing)")
    axes.set_ylabel("US dollars")
    axes.set_xlim(0, len(costs) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    return True


def _times(ran: PolicyRun, axes: Axes) -> bool:
    """How long jobs took."""
    minutes = sorted(m for story in ran.world.trace.jobs.values() if (m := story.minutes) is not None)
    if not minutes:
        return False
    # What lies far out would squeeze the rest into one bar: it is counted at the edge.
    edge = min(minutes[-1], 3.0 * minutes[len(minutes) // 2])
    beyond = [each for each in minutes if each > edge]
    axes.hist([min(each, edge) for each in minutes], bins=60, color=COLORS[0], edgecolor="white", linewidth=0.3)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    middle, mean = minutes[len(minutes) // 2], sum(minutes) / len(minutes)
    axes.axvline(middle, color=COLORS[1], linewidth=1.2, label=f"median {middle:.1f} min")
    axes.axvline(mean, color=COLORS[4], linewidth=1.2, linestyle="--", label=f"mean {mean:.1f} min")
    if beyond:
        label = f"{len(beyond)} beyond {edge:.0f} min, the last {minutes[-1]:.0f} min, are in the last bar"
        axes.plot([], [], " ", label=label)
    axes.set_title(f"How long jobs took: {ran.scenario.name}, policy of {ran.policy}")
    axes.set_xlabel("minutes from the first start to the end")
    axes.set_ylabel("jobs")
    axes.legend(loc="upper right", frameon=False, fontsize="small")
    return True


PICTURES: dict[str, Callable[[PolicyRun, Axes], bool]] = {
    "job-life": _life,
    "fleet-and-queue": _fleet,
    "cost-by-machine": _cost,
    "job-times": _times,
}


def _tidy(axes: Axes) -> None:
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.title.set_color(INK)
    axes.title.set_fontsize("medium")


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
