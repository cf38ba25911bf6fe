"""`giornata pretrain encode`: pictures and captions through the frozen encoders, once, before a run."""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from giornata.cli.model import run_model_code
from giornata.cli.options import JsonFlag
from giornata.cli.output import reporting
from giornata.cli.words import size
from giornata.domain.errors import Fault, GiornataError, InvalidInput


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("encode")(encode)


def encode(
    config: Annotated[str, typer.Argument(help="A recipe (shapes), or a TOML file.", show_default=False)],
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster. Default: this machine.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Encode all shards for the modes offline and hybrid. What is done is kept: after a crash, run it again."""
    with reporting(as_json) as out:
        report = _job([config, *([] if address is None else ["--address", address])])
        for resolution, one in report["latents"].items():
            unreadable = f", {one['unreadable']} of them unreadable" if one["unreadable"] else ""
            out.say(f"{resolution} px: {one['rows']:,} rows{unreadable}, {size(one['bytes'])} in {one['folder']}")
        out.say(f"{report['encoded']} shards encoded, {report['kept']} were there")
        out.result(report)


def _job(words: list[str]) -> dict[str, Any]:
    """In a process of its own: the command line loads neither torch nor Ray. Raises InvalidInput with its faults."""
    with tempfile.TemporaryDirectory(prefix="giornata-") as folder:
        path = Path(folder) / "report.json"
        try:
            run_model_code("giornata.pretrain.encode", [*words, "--report", str(path)])
        except GiornataError:
            if not path.is_file():
                raise
        report: dict[str, Any] = json.loads(path.read_bytes())
    if "faults" in report:
        raise InvalidInput(Fault(**each) for each in report["faults"])
    return report
