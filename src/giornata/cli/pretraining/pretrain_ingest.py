"""`giornata pretrain ingest`: captioned pictures of any form into normalized shards."""

import json
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.pretraining.pretrain import Address
from giornata.cli.pretraining.pretrain_process import run_program
from giornata.cli.ui.output import Output, reporting
from giornata.cli.ui.text import size
from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.reporting.progress_lines import PacedLines
from giornata.protocol.pretraining_checks import parse_ingest

EXIT_STOPPED = 130
MEANINGS = {
    "source_damaged": "a file of the source cannot be read from there on",
    "empty": "no picture, or one of no bytes",
    "not_a_picture": "bytes that are not a picture",
    "damaged": "cannot be decoded to its end, a wrong PNG checksum, NaN pixels",
    "too_many_pixels": "more than 179 million pixels",
    "mode": "stored in none of the modes that are kept",
    "too_small": "a side below min_side_px",
    "extreme_aspect_ratio": "longer than max_aspect_ratio",
    "no_caption": "no visible text, or fewer than min_caption_chars",
    "duplicate": "equal bytes came before",
}


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("ingest")(ingest)


def ingest(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Source: Parquet files, WebDataset, Hugging Face dataset, or folder of pictures.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="Folder or s3:// address for the shards.", show_default=False)
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Field of the table [ingest], such as min_side_px=128. May be repeated.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="TOML file with a table [ingest], or a recipe. Default: the fields' defaults.", show_default=False
        ),
    ] = None,
    address: Address = None,
    as_json: JsonFlag = False,
) -> None:
    """Check every picture, and write the sound ones as shards.

    Other pictures go to quarantine, with the reason.
    """
    with reporting(as_json) as out_words:
        options = asdict(parse_ingest(_configured(config) | _changes(changes or [])))
        words = [source, out, "--options", json.dumps(options)]
        words += ["--address", address] if address else []
        try:
            with out_words.console.status("starting Ray", refresh_per_second=4) as status:
                paced: defaultdict[str, PacedLines] = defaultdict(PacedLines)

                def tell(told: Mapping[str, Any]) -> None:
                    status.update(_progress(told))
                    line = _line(told, paced[told["what"]])
                    if not out_words.console.is_terminal and line is not None:
                        out_words.hint(line)

                report = run_program("giornata.pretrain.ingest", words, progress=tell)
        except KeyboardInterrupt:
            out_words.hint(f"stopped: {out} has no manifest, and the same command goes on")
            raise typer.Exit(EXIT_STOPPED) from None
        _say(out_words, report)
        out_words.result(report)


# ---- the options ----


def _configured(config: str | None) -> dict[str, Any]:
    """The table [ingest] of a file, over its recipe's options; or those of the recipe of that name."""
    if config is None:
        return {}
    from giornata.pretrain.recipes import read_values

    table: Any = read_values(config, where="--config").get("ingest", {})
    if not isinstance(table, dict):
        raise InvalidInput([Fault(where="ingest", message="is not a table", hint="[ingest]")])
    return table


def _changes(words: Sequence[str]) -> dict[str, Any]:
    """Options such as `min_side_px=128` or `ingest.min_side_px=128`. Values are TOML or plain text."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidInput([Fault(where="--set", message=f"{word} has no value", hint="NAME=VALUE")])
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        values[name.strip().removeprefix("ingest.")] = value
    return values


# ---- what is said ----


def _progress(told: Mapping[str, Any]) -> str:
    if told["what"] == "looking":
        return "looking through the source"
    if told["what"] == "examined":
        return f"examined {told['done']:,} rows"
    return f"wrote {told['done']:,} of {told['total']:,} shards"


def _line(told: Mapping[str, Any], paced: PacedLines) -> str | None:
    """A line of progress, rate and time left, or None where no line is due."""
    unit = {"looking": "", "examined": "examples"}.get(told["what"], "shards")
    return paced.line(told["done"], told["total"], _progress(told), unit=unit)


def _say(out: Output, report: Mapping[str, Any]) -> None:
    refused = report["rows"] - report["kept"]
    files = "1 file" if report["files"] == 1 else f"{report['files']:,} files"
    shards = "1 shard" if report["shards"] == 1 else f"{report['shards']:,} shards"
    out.say(f"source      {report['source']}  ({report['kind']}, {files}, {size(report['bytes'])})")
    out.say(f"kept        {report['kept']:,} of {report['rows']:,} rows")
    out.say(f"shards      {report['out']}  ({shards}, {size(report['shard_bytes'])})")
    if report["was_there"]:
        out.hint("was there already, of the same source and options: nothing was done")
    if not refused:
        out.say("quarantine  nothing")
        return
    out.say(f"quarantine  {report['out'].rstrip('/')}/quarantine  ({refused:,} rows)")
    out.say("")
    ordered = sorted(report["quarantined"].items(), key=lambda each: (-each[1], each[0]))
    rows = [
        (reason, f"{count:,}", f"{count / report['rows']:.2%}", MEANINGS.get(reason, "")) for reason, count in ordered
    ]
    out.table(("reason", "rows", "share", "that is"), rows, right=(1, 2), prose=(3,))
