"""`giornata pretrain encode`: pictures and captions through the frozen encoders, once, before a run."""

from collections.abc import Mapping
from typing import Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.pretraining.pretrain import Address, Config
from giornata.cli.pretraining.pretrain_process import run_program
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import size
from giornata.pretrain.reporting.progress_lines import PacedLines


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("encode")(encode)


def encode(
    config: Config,
    address: Address = None,
    as_json: JsonFlag = False,
) -> None:
    """Encode all shards for the modes offline and hybrid.

    After a crash repeat the command: shards that are encoded already stay.
    """
    with reporting(as_json, stopped="stopped; the same command goes on") as out:
        words = [config, *([] if address is None else ["--address", address])]
        paced = PacedLines()

        def tell(told: Mapping[str, Any]) -> None:
            if (line := _line(told, paced)) is not None:
                out.hint(line)

        report = run_program("giornata.pretrain.encode", words, progress=tell)
        for resolution, one in report["latents"].items():
            unreadable = f", {one['unreadable']} of them unreadable" if one["unreadable"] else ""
            out.say(f"{resolution} px: {one['rows']:,} rows{unreadable}, {size(one['bytes'])} in {one['folder']}")
        if text := report["text"]:
            out.say(f"text: {text['rows']:,} rows, {size(text['bytes'])} in {text['folder']}, for all resolutions")
        out.say(f"{report['encoded']} shards encoded, {report['kept']} were there")
        out.result(report)


def _line(told: Mapping[str, Any], paced: PacedLines) -> str | None:
    """Shards, rate, time left and cost; None where no line is due."""
    cost = [f"${told['spent_usd']:,.2f}"] if told["spent_usd"] else []
    words = f"{told['done']:,} of {told['of']:,} shards"
    return paced.line(told["rows"], told["of_rows"], words, *cost, unit="examples")
