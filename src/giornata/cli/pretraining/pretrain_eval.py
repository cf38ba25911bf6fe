"""`giornata pretrain eval`: what a run's weights can do, by themselves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.pretraining.pretrain import Config
from giornata.cli.pretraining.pretrain_process import run_program
from giornata.cli.ui.output import Output, reporting


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("eval")(evaluate)


def evaluate(
    config: Config,
    checkpoint: Annotated[
        str | None, typer.Option(help="Name of the checkpoint to evaluate. Default: the newest.", show_default=False)
    ] = None,
    clip: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of a CLIP model, for CLIP score and CMMD.", show_default=False),
    ] = None,
    inception: Annotated[
        Path | None, typer.Option(help="TorchScript file of the Inception network, for FID.", show_default=False)
    ] = None,
    rows: Annotated[
        int, typer.Option(metavar="N", help="Maximum number of held-out rows that are drawn for the scores.", min=1)
    ] = 256,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the sample images.")] = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a checkpoint: sample images, validation loss, scores.

    The command evaluates the averaged weights (EMA). --clip adds CLIP score and CMMD, --inception adds FID.
    """
    with reporting(as_json, stopped="stopped") as out:
        words = [config, "--rows", str(rows), "--out", str(folder)]
        words += [] if checkpoint is None else ["--checkpoint", checkpoint]
        words += [] if clip is None else ["--clip", clip]
        words += [] if inception is None else ["--inception", str(inception.absolute())]
        report = run_program("giornata.pretrain.evaluate", words, progress=lambda _: None)
        _say(out, report)
        out.result(report)


def _say(out: Output, report: Mapping[str, Any]) -> None:
    weights = "averaged weights" if report["averaged_weights"] else "weights as trained: no average has begun"
    out.say(f"{report['checkpoint']}: {report['samples']:,} pictures trained, {weights}, {report['resolution']} px")
    if report["validation_loss"] is None:
        out.hint("no validation loss: train.validation_rows is 0")
    else:
        out.say(f"validation loss {report['validation_loss']:.4f} on {report['validation_rows']:,} rows")
        levels = report["validation_loss_by_level"]
        cells = [(f"{place * 100}-{place * 100 + 99}", _number(loss)) for place, loss in enumerate(levels)]
        out.table(("timesteps", "loss"), cells, right=(1,))
    if "samples_png" in report:
        out.say(f"samples  {report['samples_png']}")
    if "cmmd" in report:
        real = report["clip_score_of_real"]
        out.say(f"CLIP score {report['clip_score']:.2f} (the real pictures: {real:.2f}), CMMD {report['cmmd']:.3f}")
    if "fid" in report:
        out.say(f"FID {report['fid']:.2f} of {report['compared_pictures']:,} pictures")


def _number(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"
