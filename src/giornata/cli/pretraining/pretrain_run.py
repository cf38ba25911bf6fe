"""`giornata pretrain run`: train on this machine's Ray or on a cluster's; with --synthetic, measure both rates."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.pretraining.pretrain import Address, Config
from giornata.cli.pretraining.pretrain_process import run_program
from giornata.cli.ui.output import Output, reporting
from giornata.domain.errors import Fault, GiornataError, InvalidInput

EXIT_STOPPED = 3
MEASURING = {"trainers": "trainers with made-up latents", "encoder": "one encoder with made-up pictures"}


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("run")(run)


def run(
    config: Config,
    address: Address = None,
    synthetic: Annotated[
        bool,
        typer.Option(
            "--synthetic", help="Measure the speed of trainers and encoders with synthetic rows, and train nothing."
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With --synthetic: steps to measure in each phase. Default: 30.",
            show_default=False,
        ),
    ] = None,
    trainers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With --synthetic: number of trainers to measure. Default: workers.trainers.",
            show_default=False,
        ),
    ] = None,
    kept: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="With --synthetic: TOML file for the measured rates, for `plan --assume`.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train through all phases, from the last checkpoint.

    Stop the run with Ctrl-C. The same command resumes it. With --synthetic the command measures speed, without data.
    """
    with reporting(as_json, stopped="stopped") as out:
        measuring = {"--steps": steps, "--trainers": trainers, "--out": kept}
        if not synthetic and (wrong := [name for name, value in measuring.items() if value is not None]):
            message, hint = "cannot go without --synthetic", "leave it out"
            raise InvalidInput(Fault(where=name, message=message, hint=hint) for name in wrong)
        options = {"--address": address, "--steps": steps, "--trainers": trainers}
        given = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
        if synthetic:
            run_synthetic([config, *given], kept, out)
            return
        code, report = _run([config, *given])
        _tell(out, report)
        out.result(report)
    if code:
        raise typer.Exit(code)


def _run(words: list[str]) -> tuple[int, dict[str, Any]]:
    """Run the program in its own process, which shows its progress on standard error."""
    with tempfile.TemporaryDirectory(prefix="giornata-") as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "giornata.pretrain.run", *words, "--report", str(path)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            code = _awaited(process)
        report: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    if "faults" in report:
        raise InvalidInput(Fault(**each) for each in report["faults"])
    if code not in {0, EXIT_STOPPED}:
        raise GiornataError(report.get("error", "the run failed; its last messages are above"))
    return code, report


def _awaited(process: "subprocess.Popen[bytes]") -> int:
    """Ctrl-C reaches both, and SIGTERM is handed on; it is the run that answers."""
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(out: Output, report: dict[str, Any]) -> None:
    state = "done" if report["finished"] else "stopped; the same command goes on from here"
    out.say(f"{state}: {report['steps']:,} steps, {report['trained_once']:,} of {report['planned']:,} rows trained")
    for name in ("repeated", "missed", "unreadable", "left_out", "quarantined"):
        if report[name]:
            out.say(f"  {name.replace('_', ' ')}: {report[name]:,}")


def run_synthetic(words: Sequence[str], kept: Path | None, out: Output) -> None:
    """Measure in a process of its own, tell it, and keep the rates in a file."""
    from giornata.pretrain.planning.facts import load_facts
    from giornata.pretrain.planning.from_config import assumed_rates

    report = run_program("giornata.pretrain.synthetic", words, progress=lambda told: _tell_measuring(out, told))
    if kept is not None:
        try:
            kept.write_text(assumed_rates(report, load_facts()), encoding="utf-8")
        except OSError as error:
            raise InvalidInput(
                [Fault(where="--out", message=f"{kept} cannot be written: {error.strerror}")]
            ) from None
    say_rates(report, out)
    if kept is not None:
        out.hint(f"plan with it: giornata pretrain plan CONFIG --assume {kept}")
    out.result(report)


def _tell_measuring(out: Output, told: Mapping[str, Any]) -> None:
    out.hint(f"measuring {MEASURING[told['what']]}: {', '.join(told['phases'])}")


def say_rates(report: Mapping[str, Any], out: Output) -> None:
    """Print the devices, a row of rates for each phase, and findings."""
    from giornata.cli.pretraining.pretrain_plan import say_lines, say_table

    sizes = report["sizes"]
    out.say("")
    out.say(f"{report['name']}, {report['model']}, {report['mode']}")
    out.say(
        f"{_some(report['trainers'], 'trainer')} on {report['trainer_device']}, encoders on"
        f" {report['encoder_device']}"
    )
    out.say("")
    say_table(
        [
            ("phase", [each["name"] for each in sizes], False),
            ("pixels", [str(each["resolution"]) for each in sizes], True),
            ("at once", [str(each["micro_batch"]) for each in sizes], True),
            ("trainers", [_demand(each) for each in sizes], True),
            ("one encoder", [_rate(each["encoder_images_per_s"]) for each in sizes], True),
            ("encoders", [f"{each['encoders']:,}" for each in sizes], True),
            ("for each trainer", [f"{each['encoders'] / report['trainers']:.2g}" for each in sizes], True),
        ],
        out,
    )
    if any(each["estimated"] for each in sizes):
        out.hint("~ is estimated from fewer trainers")
    out.say("")
    say_lines((*findings(report), *report["notes"]), out)


def findings(report: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on the number of encoders in the configuration."""
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
