"""`giornata pretrain plan`: hours, dollars, storage, mode and encoders of a run, before a cent is spent."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag
from giornata.cli.ui.output import EXIT_FAILED, Output, reporting


def register(group: typer.Typer) -> None:
    """Add the command to `giornata pretrain`."""
    group.command("plan")(plan)


def plan(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="The run: a recipe (sd2_base), or its TOML file.")],
    every: Annotated[bool, typer.Option("--all", help="Every mode on every cluster.")] = False,
    assume: Annotated[
        Path | None,
        typer.Option(help="TOML file with clusters, prices and rates to reckon with.", show_default=False),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="Rates of `pretrain run --synthetic --out`, instead of estimates.", show_default=False),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Price a run before anything is rented.

    Ranks modes and machines: hours, encoders, storage and dollars, with what is estimated and why.
    """
    with reporting(as_json) as out:
        priced = _ranked(config, assume, measured, out, every=every)
    if not priced:
        raise typer.Exit(EXIT_FAILED)


def _ranked(config: str, assume: Path | None, measured: Path | None, out: Output, *, every: bool) -> bool:
    """Whether everything was told that could be: prices, or that there are none without a GPU."""
    from giornata.cli import pretrain_plan_words as words
    from giornata.pretrain.planning.facts import load_facts
    from giornata.pretrain.planning.measured import read_measured, with_measured_rates
    from giornata.pretrain.planning.ranking import rank
    from giornata.pretrain.planning.reading import request_named
    from giornata.pretrain.planning.report import ranking_told

    facts = load_facts()
    request = request_named(config, facts, assume=assume)
    if measured is not None:
        request = with_measured_rates(request, read_measured(measured), facts)
    ranking = rank(request, facts, today=datetime.now(UTC).date())
    words.say_ranking(ranking, out, every=every)
    out.result(ranking_told(ranking))
    return bool(ranking.choices) or not request.priced
