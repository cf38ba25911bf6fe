"""`giornata pretrain demo`: all of pre-training on this machine, with a trainer killed in each phase."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.pretrain_process import run_program
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import duration


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("demo")(demo)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Emptied first.")] = Path("pretrain-demo-output"),
    as_json: JsonFlag = False,
) -> None:
    """Show all of it on this machine, with a kill in each phase.

    Pictures, ingest, latents, training in two phases; then every use of every picture is counted.
    """
    with reporting(as_json, stopped="stopped, with all that it had begun") as out:
        report = run_program(
            "giornata.pretrain.demo.story", [str(folder)], progress=lambda told: out.say(told["what"])
        )
        _say(out, report)
        out.result(report)
    if not report["ok"]:
        raise typer.Exit(1)


def _say(out: Output, report: Mapping[str, Any]) -> None:
    killed = " and ".join(str(each["step"]) for each in report["killed"]) or "none"
    out.say("")
    out.say(f"{report['rows']:,} pictures; {report['quarantined']:,} were broken and are in quarantine")
    out.say(f"{report['trained_once']:,} of {report['planned']:,} uses of a picture trained exactly once")
    out.say(f"{report['repeated']:,} repeated, {report['missed']:,} missed")
    out.say(f"{report['kills']} kills (after steps {killed}) undid the training of {report['undone']:,} pictures,")
    out.say("which were trained again from the checkpoint before")
    out.say(f"loss {report['loss_first']:.3f} -> {report['loss_last']:.3f} in {report['steps']:,} steps")
    out.say(f"loss curve  {report['loss_png']}")
    out.say(f"samples     {report['samples_png']}")
    out.hint(f"processor time without Ray's own processes: {duration(report['cpu_s'])}")
    for fault in report["faults_found"]:
        out.say(f"WRONG: {fault}")
