"""A ranking in words and tables."""

import textwrap
from collections.abc import Iterable

from giornata.cli.output import Output
from giornata.pretrain.planning.choices import Choice, ChosenPhase
from giornata.pretrain.planning.ranking import Ranking
from giornata.pretrain.planning.reasons import machines_words, reasons, usd

WIDE = 96
ESTIMATED = "~"

Column = tuple[str, list[str], bool]  # header, cells, whether it is aligned to the right


def say_ranking(ranking: Ranking, out: Output, *, every: bool) -> None:
    """The table, the cheapest choice phase by phase, and why."""
    request = ranking.request
    phases = f"{len(request.phases)} phase{'' if len(request.phases) == 1 else 's'}"
    out.say(
        f"{request.name}: {request.samples / 1e6:,.1f} M samples of {request.model}, {phases}; "
        f"price book {request.prices}, {request.trainer_term.replace('_', ' ')}"
    )
    out.say("")
    best = ranking.best
    if best is None:
        say_lines(("Nothing can be priced.", *ranking.left_out), out)
        return
    whole = every or not out.console.is_terminal
    shown = ranking.choices if whole else chief_choices(ranking)
    narrow = out.console.is_terminal and out.console.width < WIDE
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
    """One row for each choice. `narrow`: what 80 columns hold."""
    rows = list(choices)
    gpus = [f"{row.machines.gpus} {row.machines.trainer.gpu}" for row in rows]
    columns: list[Column] = [
        ("trainers", [f"{row.machines.instances} {row.machines.trainer.short}" for row in rows], False),
        ("mode", [row.mode.value for row in rows], False),
        ("days", [f"{row.bill.hours / 24:.1f}" for row in rows], True),
        ("train", [usd(row.bill.trainer_usd) for row in rows], True),
        ("encode", [usd(row.bill.encoder_usd + row.bill.precompute_usd) for row in rows], True),
        ("store", [usd(row.bill.storage_usd) for row in rows], True),
        ("total", [_estimated(row) + usd(row.bill.total_usd) for row in rows], True),
    ]
    if not narrow:
        columns.insert(1, ("GPUs", gpus, False))
        columns.insert(4, ("GPU h", [f"{row.bill.gpu_hours:,.0f}" for row in rows], True))
    return columns


def _estimated(choice: Choice) -> str:
    return ESTIMATED if choice.estimated else ""


def phase_columns(phases: Iterable[ChosenPhase], *, narrow: bool) -> list[Column]:
    """One row for each phase of a choice."""
    rows = list(phases)
    columns: list[Column] = [
        ("pixels", [str(row.resolution) for row in rows], True),
        ("samples", [f"{row.samples / 1e6:,.1f} M" for row in rows], True),
        ("images/s", [f"{row.images_per_s:,.0f}" for row in rows], True),
        ("MFU", [f"{row.training.mfu * row.images_per_s / row.training.images_per_s:.0%}" for row in rows], True),
        ("hours", [f"{row.hours:,.0f}" for row in rows], True),
    ]
    if not narrow:
        columns.insert(2, ("steps", [f"{row.steps:,}" for row in rows], True))
    if any(row.encoders for row in rows):
        columns.append(("encoders", [str(row.encoders) for row in rows], True))
    if any(row.stored_bytes for row in rows):
        columns.append(("stored", [f"{row.stored_bytes / 1e12:,.0f} TB" for row in rows], True))
        columns.append(("encoded in", [f"{row.encoding_hours:,.0f} h" for row in rows], True))
    return columns


def say_table(columns: list[Column], out: Output) -> None:
    """Columns as a table."""
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
