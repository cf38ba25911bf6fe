"""`giornata pretrain encode`: pictures and captions through the frozen encoders, once, before a run."""

from collections.abc import Mapping
from typing import Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.output import Output, reporting
from giornata.cli.pretrain_options import Address, Config
from giornata.cli.pretrain_process import run_program
from giornata.cli.words import size


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("encode")(encode)


def encode(
    config: Config,
    address: Address = None,
    as_json: JsonFlag = False,
) -> None:
    """Encode all shards for the modes offline and hybrid.

    What is done is kept: after a crash, run it again.
    """
    with reporting(as_json, stopped="stopped; the same command goes on") as out:
        words = [config, *([] if address is None else ["--address", address])]
        report = run_program("giornata.pretrain.encode", words, progress=lambda told: _say_progress(told, out))
        for resolution, one in report["latents"].items():
            unreadable = f", {one['unreadable']} of them unreadable" if one["unreadable"] else ""
            out.say(f"{resolution} px: {one['rows']:,} rows{unreadable}, {size(one['bytes'])} in {one['folder']}")
        if text := report["text"]:
            out.say(f"text: {text['rows']:,} rows, {size(text['bytes'])} in {text['folder']}, for all resolutions")
        out.say(f"{report['encoded']} shards encoded, {report['kept']} were there")
        out.result(report)


def _say_progress(told: Mapping[str, Any], out: Output) -> None:
    """About every tenth of the shards."""
    done, of = told["done"], told["of"]
    if done * 10 // of > (done - 1) * 10 // of:
        out.hint(f"{done} of {of} shards")
