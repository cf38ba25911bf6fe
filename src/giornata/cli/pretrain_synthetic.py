"""`giornata pretrain run --synthetic`: both rates of a cluster in a table, and how many encoders follow."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from giornata.cli.output import Output
from giornata.cli.pretrain_process import run_program
from giornata.domain.errors import Fault, InvalidInput

MEASURING = {"trainers": "trainers with made-up latents", "encoder": "one encoder with made-up pictures"}


def run_synthetic(words: Sequence[str], kept: Path | None, out: Output) -> None:
    """Measure in a process of its own, tell it, and keep it in a file."""
    report = run_program("giornata.pretrain.synthetic", words, progress=lambda told: _tell(out, told))
    if kept is not None:
        try:
            kept.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidInput(
                [Fault(where="--out", message=f"{kept} cannot be written: {error.strerror}")]
            ) from None
    say_rates(report, out)
    if kept is not None:
        out.hint(f"plan with it: giornata pretrain plan CONFIG --measured {kept}; run alike")
    out.result(report)


def _tell(out: Output, told: Mapping[str, Any]) -> None:
    out.hint(f"measuring {MEASURING[told['what']]}: {', '.join(told['phases'])}")


def say_rates(report: Mapping[str, Any], out: Output) -> None:
    """What was measured on what, a row for each phase, and what follows."""
    from giornata.cli.pretrain_plan import say_lines, say_table

    measured, sizes = report["measured"], report["sizes"]
    out.say("")
    out.say(f"{measured['name']}, {measured['model']}, {measured['mode']}")
    out.say(
        f"{_some(measured['trainers'], 'trainer')} on {measured['trainer_device']}, encoders on"
        f" {measured['encoder_device']}"
    )
    out.say("")
    say_table(
        [
            ("phase", [each["name"] for each in sizes], False),
            ("pixels", [str(each["resolution"]) for each in sizes], True),
            ("at once", ["–" if each["micro_batch"] is None else str(each["micro_batch"]) for each in sizes], True),
            ("trainers", [_demand(each) for each in sizes], True),
            ("one encoder", [_rate(each["encoder_images_per_s"]) for each in sizes], True),
            ("encoders", [f"{each['encoders']:,}" for each in sizes], True),
            ("for each trainer", [f"{each['encoders'] / measured['trainers']:.2g}" for each in sizes], True),
        ],
        out,
    )
    if any(each["estimated"] for each in sizes):
        out.hint("~ is estimated from fewer trainers")
    out.say("")
    say_lines((*findings(report), *report["notes"]), out)


def findings(report: Mapping[str, Any]) -> Iterator[str]:
    """What the number of encoders in the configuration means."""
    for each in report["sizes"]:
        idle = 1 - each["fed_share"]
        if idle > 0:
            yield (
                f"Phase {each['name']}: with the configured {_some(each['asked'], 'encoder')} trainers would wait"
                f" {idle:.0%} of the time; set encoders = {each['encoders']}."
            )
        elif each["asked"] > each["encoders"]:
            yield (
                f"Phase {each['name']}: {each['encoders']} of the configured {each['asked']} encoders are enough;"
                f" set encoders = {each['encoders']}."
            )


def _demand(each: Mapping[str, Any]) -> str:
    return f"{'~' if each['estimated'] else ''}{_rate(each['demand_images_per_s'])}"


def _rate(images_per_s: float) -> str:
    return f"{images_per_s:,.0f}/s" if images_per_s >= 100 else f"{images_per_s:.1f}/s"


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
