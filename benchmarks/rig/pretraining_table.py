"""Figures of benchmarks/pretrain.py from what its processes said, and their tables. No libraries."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Of each way what it said, round by round."""


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median, least and greatest of the rounds, to so many digits that say something."""
    chosen = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{value:.{digits}g}") for name, value in chosen.items()}


def words(found: Mapping[str, float]) -> str:
    """`12.3 (11.0 to 14.1)`."""
    return f"{found['median']:g} ({found['min']:g} to {found['max']:g})"


def percent(found: Mapping[str, float]) -> str:
    """Of shares: `0.3 % (0.2 to 0.4)`."""
    median, least, most = (f"{100 * found[name]:.1f}" for name in ("median", "min", "max"))
    return f"{median} % ({least} to {most})"


def modes_summary(runs: Runs, *, over: str) -> dict[str, Any]:
    """Of each way its figures, and round by round those of `over` as times of its own (CPU), or its own as times of
    those (images/s): above 1 is better than `over`."""
    ways = {}
    for way, each in runs.items():
        pairs = list(zip(runs[over], each, strict=True))
        names = ("images_per_s", "trainer_cpu_ms", "others_cpu_ms", "wait_share")
        ways[way] = {
            **{name: spread([one[name] for one in each]) for name in names},
            "cpu_ratio": spread([base["trainer_cpu_ms"] / one["trainer_cpu_ms"] for base, one in pairs]),
            "wall_ratio": spread([one["images_per_s"] / base["images_per_s"] for base, one in pairs]),
        }
    return {"over": over, "ways": ways}


def steps_summary(runs: Runs, *, rows: int, over: str) -> dict[str, Any]:
    """Images/s, MFU and CPU ms of an image for each way; images/s and CPU as times of `over`'s, round by round."""
    ways = {}
    for way, each in runs.items():
        wall_s, cpu_s = _medians(each, "wall_s"), _medians(each, "cpu_s")
        base_wall_s, base_cpu_s = _medians(runs[over], "wall_s"), _medians(runs[over], "cpu_s")
        ways[way] = {
            "images_per_s": spread([rows / second for second in wall_s], 4),
            "cpu_ms": spread([1000 * second / rows for second in cpu_s]),
            "mfu": spread([mfu(one, rows) for one in each]),
            "wall_ratio": spread([first / second for first, second in zip(base_wall_s, wall_s, strict=True)]),
            "cpu_ratio": spread([first / second for first, second in zip(base_cpu_s, cpu_s, strict=True)]),
            "warm_cpu_s": spread([one["warm_cpu_s"][0] for one in each]),
            "peak_bytes": each[0]["peak_bytes"],
        }
    one = next(iter(runs.values()))[0]
    facts = {name: one[name] for name in ("device", "flops_per_picture", "peak_flops_per_s", "flops_per_cpu_s")}
    return {"over": over, "rows": rows, **facts, "ways": ways}


def mfu(said: Mapping[str, Any], rows: int) -> float:
    """0 to 1, of steps of so many pictures: by the clock against the device's peak; of a CPU, whose clock counts the
    work of others too, by its seconds against what matrix products do in one."""
    peak, name = said["peak_flops_per_s"], "wall_s"
    if peak is None:
        peak, name = said["flops_per_cpu_s"], "cpu_s"
    done: float = rows * said["flops_per_picture"] / statistics.median(said[name])
    return done / peak


def _medians(each: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [statistics.median(one[name]) for one in each]


def modes_table(resolution: int, told: Mapping[str, Any]) -> str:
    """Of one resolution."""
    flops, over = told["flops"], told["over"]
    share = (flops["vae"] + flops["text"]) / flops["training"]
    lines = [f"modes at {resolution} px; encoding is {share:.0%} of the FLOPs of training"]
    heads = ("images/s", "wait", "trainer's CPU ms", "others' CPU ms", f"CPU, {over} / this", f"images/s / {over}")
    lines.append(f"{'':12}" + "".join(f"{head:>26}" for head in heads))
    for way, facts in told["ways"].items():
        names = ("trainer_cpu_ms", "others_cpu_ms", "cpu_ratio", "wall_ratio")
        cells = words(facts["images_per_s"]), percent(facts["wait_share"]), *(words(facts[name]) for name in names)
        lines.append(f"{way:12}" + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines)


def steps_table(resolution: int, told: Mapping[str, Any]) -> str:
    """Of one resolution."""
    lines = [f"steps of {told['rows']} at {resolution} px, {told['device']}"]
    heads = ("images/s", "MFU", "CPU ms", f"images/s / {told['over']}", f"CPU, {told['over']} / this")
    lines.append(f"{'':18}" + "".join(f"{head:>26}" for head in heads))
    for way, facts in told["ways"].items():
        names = ("images_per_s", "mfu", "cpu_ms", "wall_ratio", "cpu_ratio")
        lines.append(f"{way:18}" + "".join(f"{words(facts[name]):>26}" for name in names))
    return "\n".join(lines)


def plan_table(choices: Sequence[Mapping[str, Any]]) -> str:
    """Cheapest first."""
    lines = [f"{'the whole schedule on':52}{'days':>7}{'USD':>10}   encoders   MFU"]
    for choice in choices:
        encoders, mfu = (", ".join(map(str, choice[name])) for name in ("encoders", "mfu"))
        lines.append(f"{choice['name']:52}{choice['days']:>7}{choice['total_usd']:>10,}   {encoders:8}   {mfu}")
    return "\n".join(lines)
