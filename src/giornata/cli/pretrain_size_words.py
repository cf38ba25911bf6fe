"""Measured sizes in words and a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from giornata.cli.output import Output
from giornata.cli.pretrain_plan_words import ESTIMATED, WIDE, Column, say_lines, say_table
from giornata.cli.words import size

NOISY = 0.25
"""A spread between the quartiles of more than this share of the median is pointed out."""


def say_sizes(report: Mapping[str, Any], out: Output) -> None:
    """What was measured on what, a row for each phase, and what follows."""
    measured = report["measured"]
    out.say("")
    out.say(
        f"{measured['name']}, {measured['model']}, {measured['mode']}: {_some(measured['trainers'], 'trainer')} on"
        f" {measured['trainer_device']}, encoders on {measured['encoder_device']};"
        f" headroom {measured['headroom']:g}, availability {measured['availability']:g}"
    )
    out.say("")
    narrow = out.console.is_terminal and out.console.width < WIDE
    say_table(columns(report["sizes"], narrow=narrow), out)
    if any(each["estimated"] for each in report["sizes"]):
        out.hint(f"{ESTIMATED} estimated from fewer trainers; everything else was measured")
    else:
        out.hint("all rates were measured")
    out.say("")
    say_lines((*findings(report), *report["notes"]), out)


def columns(sizes: list[Mapping[str, Any]], *, narrow: bool) -> list[Column]:
    """One row for each phase. `narrow`: what 80 columns hold."""
    found: list[Column] = [
        ("phase", [each["name"] for each in sizes], False),
        ("pixels", [str(each["resolution"]) for each in sizes], True),
        ("trainers ask", [_demand(each) for each in sizes], True),
        ("one encoder", [_rate(each["encoder_images_per_s"]) for each in sizes], True),
        ("encoders", [f"{each['pool']['encoders']:,}" for each in sizes], True),
        ("CPUs", [_count(each["pool"]["cpus"]) for each in sizes], True),
    ]
    if not narrow:
        found.insert(4, ("one CPU", [_rate(each["cpu_images_per_s"]) for each in sizes], True))
        found.append(("data", [f"{size(round(each['pool']['bytes_per_s']))}/s" for each in sizes], True))
        found.append(("configured", [f"{each['asked']} feed {each['fed_share']:.0%}" for each in sizes], True))
    return found


def findings(report: Mapping[str, Any]) -> Iterator[str]:
    """Sentences, the most important first."""
    hourly = report["trainers_usd_per_h"]
    for each in report["sizes"]:
        pool, idle = each["pool"], 1 - each["fed_share"]
        if idle > 0:
            lost = f", {idle * hourly:,.2f} USD an hour" if hourly else ""
            yield (
                f"Phase {each['name']}: with the configured {_some(each['asked'], 'encoder')} trainers would wait"
                f" {idle:.0%} of the time{lost}; set encoders = {pool['encoders']}."
            )
        elif each["asked"] > pool["encoders"]:
            yield (
                f"Phase {each['name']}: {pool['encoders']} of the configured {each['asked']} encoders are enough;"
                f" set encoders = {pool['encoders']}."
            )
    if start_s := report["measured"]["encoder_start_s"]:
        most = max(each["pool"]["bridging_bytes"] for each in report["sizes"])
        yield (
            f"An encoder that is lost takes {start_s:,.0f} s to come back. What it would have brought meanwhile is"
            f" {size(round(most))}: trainers do not notice where as much lies ready in Ray's object stores."
        )
    for phase in report["measured"]["phases"]:
        for name in ("trainers", "encoder", "cpu"):
            rate = phase[name]
            if rate and rate["spread"] > NOISY:
                yield (
                    f"Phase {phase['name']}, {name}: measurements scatter by {rate['spread']:.0%} of their median"
                    " (between the quartiles); measure again when less else runs there."
                )


def _demand(each: Mapping[str, Any]) -> str:
    return f"{ESTIMATED if each['estimated'] else ''}{_rate(each['demand_images_per_s'])}"


def _rate(images_per_s: float | None) -> str:
    if images_per_s is None:
        return "–"
    return f"{images_per_s:,.0f}/s" if images_per_s >= 100 else f"{images_per_s:.1f}/s"


def _count(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
