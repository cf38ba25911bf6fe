"""`giornata pretrain plan`: hours, dollars, storage, mode and encoders of a run, before a cent is spent."""

import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.ui.output import EXIT_FAILED, Output, reporting
from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.planning.from_config import request_named
from giornata.pretrain.planning.pricing import Choice, ChosenPhase
from giornata.pretrain.planning.ranking import Ranking, rank
from giornata.pretrain.planning.report import (
    ESTIMATED,
    large_bytes,
    machines_words,
    ranking_told,
    reasons,
    usd,
    verdict,
)

WIDE = 112

Column = tuple[str, list[str], bool]  # header, cells, whether it is aligned to the right


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("plan")(plan)


def plan(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG", help="Configuration of the run: a TOML file, or a recipe such as sd2_base."),
    ],
    every: Annotated[
        bool, typer.Option("--all", help="Show every mode on every cluster. Default: the cheapest ones.")
    ] = False,
    assume: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with your clusters, prices and rates, such as `run --synthetic --out` writes. Default: "
            "those of the package.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate hours and dollars of a run before you rent machines.

    The command ranks modes and machines by hours, encoders, storage and dollars. It says which figures are
    estimates, and why.
    """
    with reporting(as_json) as out:
        facts = load_facts()
        request = request_named(config, facts, assume=assume)
        ranking = rank(request, facts, today=datetime.now(UTC).date())
        say_ranking(ranking, out, every=every)
        out.result(ranking_told(ranking))
    if not ranking.choices and request.priced:  # without a GPU nothing has a price, and all is told
        raise typer.Exit(EXIT_FAILED)


def say_ranking(ranking: Ranking, out: Output, *, every: bool) -> None:
    """The verdict, the table, the cheapest choice phase by phase, and why."""
    request = ranking.request
    phases = f"{len(request.phases)} phase{'' if len(request.phases) == 1 else 's'}"
    out.say(
        f"{request.name}: {samples_words(request.samples)} samples of {request.model}, {phases}"
        + (f"; price book {request.prices}, {request.trainer_term.replace('_', ' ')}" if ranking.choices else "")
    )
    out.say("")
    best = ranking.best
    narrow = out.console.is_terminal and out.console.width < WIDE
    if best is None:
        say_lines(("Nothing can be priced.", *ranking.left_out, *request.notes), out)
        return
    say_lines(verdict(ranking), out)
    out.say("")
    whole = every or not out.console.is_terminal
    shown = ranking.choices if whole else chief_choices(ranking)
    say_table(choice_columns(shown, narrow=narrow), out)
    hidden = len(ranking.choices) - len(shown)
    more = f"; {hidden} more with --all: other modes on other clusters" if hidden else ""
    out.hint(f"{ESTIMATED} rests on an estimated rate{more}")
    out.say("")
    beside = f", {best.machines.encoder.name} to encode" if best.encodes_with_others else ""
    out.say(f"The cheapest, {machines_words(best)}, {best.mode}{beside}:")
    say_table(phase_columns(best.phases, narrow=narrow), out)
    out.say("")
    say_lines((*reasons(ranking), *ranking.left_out), out)


def chief_choices(ranking: Ranking) -> list[Choice]:
    """The cheapest mode of every cluster, and every mode on the cheapest cluster."""
    best = ranking.best
    if best is None:
        return []
    mine = list(ranking.beside(best).values())
    return [
        choice
        for choice in ranking.choices
        if choice in mine or choice is next(iter(ranking.beside(choice).values()))
    ]


def choice_columns(choices: Iterable[Choice], *, narrow: bool) -> list[Column]:
    """Return one row for each choice. `narrow`: only the columns that fit into a width of 80."""
    rows = list(choices)
    gpus = [f"{row.machines.gpus} {row.machines.trainer.gpu}" for row in rows]
    columns: list[Column] = [
        ("trainers", [f"{row.machines.instances} {row.machines.trainer.short}" for row in rows], False),
        ("mode", [row.mode.value for row in rows], False),
        ("encoders", [_encoders(row, narrow=narrow) for row in rows], True),
        ("days", [f"{row.bill.hours / 24:.1f}" for row in rows], True),
        ("train", [usd(row.bill.trainer_usd) for row in rows], True),
        ("encode", [usd(row.bill.encoder_usd + row.bill.precompute_usd) for row in rows], True),
        ("store", [usd(row.bill.storage_usd) for row in rows], True),
        ("total", [_estimated(row) + usd(row.bill.total_usd) for row in rows], True),
    ]
    if not narrow:
        columns.insert(1, ("GPUs", gpus, False))
        columns.insert(5, ("GPU h", [f"{row.bill.gpu_hours:,.0f}" for row in rows], True))
    return columns


def _encoders(choice: Choice, *, narrow: bool) -> str:
    """Instances beside each phase: `64, 54 g5`; a dash for modes that have none."""
    if not any(phase.encoders for phase in choice.phases):
        return "–"
    numbers = ", ".join(str(phase.encoders) for phase in choice.phases)
    return numbers if narrow else f"{numbers} {choice.machines.encoder.short}"


def _estimated(choice: Choice) -> str:
    return ESTIMATED if choice.estimated else ""


def phase_columns(phases: Iterable[ChosenPhase], *, narrow: bool) -> list[Column]:
    rows = list(phases)
    columns: list[Column] = [
        ("pixels", [str(row.resolution) for row in rows], True),
        ("samples", [samples_words(row.samples) for row in rows], True),
        ("images/s", [f"{row.images_per_s:,.0f}" for row in rows], True),
        ("MFU", [f"{row.training.mfu * row.images_per_s / row.training.images_per_s:.0%}" for row in rows], True),
        ("hours", [f"{row.hours:,.0f}" for row in rows], True),
    ]
    if not narrow:
        columns.insert(2, ("steps", [f"{row.steps:,}" for row in rows], True))
    if any(row.encoders for row in rows):
        columns.append(("encoders", [str(row.encoders) for row in rows], True))
    if any(row.stored_bytes for row in rows):
        columns.append(("stored", [large_bytes(row.stored_bytes) for row in rows], True))
        columns.append(("encoded in", [f"{row.encoding_hours:,.0f} h" for row in rows], True))
    return columns


def samples_words(samples: float) -> str:
    """`1,126.4 M`; small numbers whole."""
    return f"{samples / 1e6:,.1f} M" if samples >= 1_000_000 else f"{samples:,}"


def say_table(columns: list[Column], out: Output) -> None:
    rows = list(zip(*(cells for _, cells, _ in columns), strict=True))
    right = [place for place, (_, _, aligned) in enumerate(columns) if aligned]
    out.table([header for header, _, _ in columns], rows, right=right)


def say_lines(lines: Iterable[str], out: Output) -> None:
    """Sentences, broken between words on a terminal."""
    for line in lines:
        for part in broken(line, out, first="· ", rest="  "):
            out.say(part)


def broken(line: str, out: Output, *, first: str, rest: str) -> list[str]:
    """A sentence in lines that the terminal holds; whole, and without what it begins with, in a pipe."""
    if not out.console.is_terminal:
        return [line]
    return textwrap.wrap(line, min(100, out.console.width), initial_indent=first, subsequent_indent=rest)
