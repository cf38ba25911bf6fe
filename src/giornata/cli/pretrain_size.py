"""`giornata pretrain size`: how many encoders beside a run keep its trainers busy, measured on a Ray."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.output import Output, reporting
from giornata.cli.pretrain_options import Address, Config
from giornata.cli.pretrain_process import run_program
from giornata.domain.errors import Fault, InvalidInput

MEASURING = {
    "trainers": "trainers with synthetic latents",
    "encoder": "one encoder",
    "reading": "one CPU that reads and cuts",
}


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("size")(size)


def size(
    config: Config,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it down, for plan and run --measured.", show_default=False)
    ] = None,
    address: Address = None,
    trainers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Trainers to measure. Default: all of the run.", show_default=False),
    ] = None,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Steps of training in each phase, after warm-up.")
    ] = 30,
    batches: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches through the encoder in each phase, after warm-up.")
    ] = 10,
    headroom: Annotated[
        float, typer.Option(metavar="N", min=1, max=10, help="Factor on the number of encoders and CPUs.")
    ] = 1.1,
    availability: Annotated[
        float, typer.Option(metavar="N", min=0.01, max=1, help="Share of the time that an encoder is there.")
    ] = 1.0,
    as_json: JsonFlag = False,
) -> None:
    """Measure, and say how many encoders and CPUs a run needs.

    Measured are the trainers, one encoder and one CPU. Only the CPU needs data.
    """
    with reporting(as_json, stopped="stopped") as output:
        options = {
            "--address": address,
            "--trainers": trainers,
            "--steps": steps,
            "--batches": batches,
            "--headroom": headroom,
            "--availability": availability,
        }
        words = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
        report = run_program("giornata.pretrain.size", [config, *words], progress=lambda told: _tell(output, told))
        _keep(report, out)
        _say(output, report, out)
        output.result(report)


def _tell(output: Output, told: Mapping[str, Any]) -> None:
    output.hint(f"measuring {MEASURING[told['what']]}: {', '.join(told['phases'])}")


def _keep(report: Mapping[str, Any], path: Path | None) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput([Fault(where="--out", message=f"{path} cannot be written: {error.strerror}")]) from None


def _say(output: Output, report: Mapping[str, Any], path: Path | None) -> None:
    from giornata.cli.pretrain_size_words import say_sizes

    say_sizes(report, output)
    if path is not None:
        output.hint(f"plan with it: giornata pretrain plan CONFIG --measured {path}; run alike")
