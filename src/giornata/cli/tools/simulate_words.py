"""A simulated run in words."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = tuple[str, str, str]


def rows(told: Mapping[str, Any]) -> Sequence[Row]:
    """Figures, and what they are shares of."""
    billed_s = max(1, told["billed_s"])

    def time_row(name: str, seconds: float, note: str = "") -> Row:
        return (name, _hours(seconds), f"{seconds / billed_s:.2%} of what is billed{note}")

    startup = ", ".join(f"{name.removesuffix('_s')} {_hours(value)}" for name, value in told["startup"].items())
    by_hand = "by hand: nothing" if not told["by_hand"] else f"by hand: {told['by_hand']} times"
    shares = told["attempts_per_job"]
    return [
        ("jobs", f"{told['succeeded']}/{told['jobs']}", f"succeeded; {by_hand}"),
        ("per job", f"${told['usd_per_job']:.4f}", f"${told['usd_per_job_in_attempts']:.4f} for its own time alone"),
        ("a job", f"{told['median_job_min']:.1f} min", _spread(told)),
        ("makespan", f"{told['makespan_h']:.2f} h", f"on at most {told['nodes']} nodes of a fleet"),
        ("billed", _hours(told["billed_s"]), f"${told['usd']:.2f}"),
        time_row("useful", told["useful_s"]),
        time_row("lost", told["lost_s"]),
        time_row("idle", told["idle_s"]),
        time_row("start-up", told["startup_s"], f": {startup}"),
        ("per step", f"${told['usd_per_step']:.7f}", f"${told['usd_per_useful_step']:.7f} per useful step"),
        ("attempts", f"{shares['one']:.1%}", f"of jobs took one, {shares['two']:.1%} two, {shares['more']:.1%} more"),
        ("interrupted", str(told["interruptions"]), f"instances; {told['reallocated']} were reallocated"),
    ]


def finding_rows(told: Mapping[str, Any]) -> Sequence[str]:
    """Return a row for each invariant and goal, with the observed values."""
    return [f"{'✓' if held else '✗'} {name}: {told['seen'][name]}" for name, held in told["invariants"].items()]


def broken_words(told: Mapping[str, Any]) -> str:
    """The last line of a run in which an invariant did not hold: how to repeat the run, and what broke."""
    return (
        f"broken: {told['scenario']} with --jobs {told['jobs']} --nodes {told['nodes']} "
        f"--seed {told['seed']}: {'; '.join(told['broken'])}"
    )


def _spread(told: Mapping[str, Any]) -> str:
    return (
        f"median; mean {told['mean_job_min']:.1f}, best {told['best_job_min']:.1f}, worst {told['worst_job_min']:.1f}"
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 360 else f"{seconds:,.0f} s"
