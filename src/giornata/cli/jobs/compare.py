"""`giornata compare`: training jobs side by side, and the table that sweeps share with it."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.options import JsonFlag, job_ids, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import Output, reporting
from giornata.domain.billing.money import format_usd
from giornata.protocol.sweeps import Comparison, SweptJobReply

LONGEST_VALUE = 200
OUTCOME = ("job", "state", "steps", "loss", "held out", "cost", "sheet")


def register(app: typer.Typer) -> None:
    """Add the command `compare` to `app`."""
    app.command("compare")(compare)


def compare(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...",
            help="Training jobs: the id of each, the beginning of the id, the name, or: last.",
            show_default=False,
            autocompletion=job_ids,
        ),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Show training jobs side by side: loss, cost, and what differs."""
    with reporting(as_json) as out, connect(settings_of(context)) as client:
        found = client.compare_jobs([find_job(client, word) for word in words])
        say_outcomes(found.jobs, out)
        say_reasons(found.jobs, out)
        _say_differences(found, out)
        out.result(found)


def say_outcomes(jobs: Sequence[SweptJobReply], out: Output, *, fields: Sequence[str] | None = None) -> None:
    """Print a row for each job: with what it has in `fields`, or without any with its name."""
    before = ("#", *(("name",) if fields is None else fields))
    rows = [(str(each.number), *_known_by(each, fields), *_outcome(each)) for each in jobs]
    places = {name: len(before) + place for place, name in enumerate(OUTCOME)}
    out.table(
        (*before, *OUTCOME),
        rows,
        right=(0, *(places[name] for name in ("steps", "loss", "held out", "cost"))),
        prose=(1,) if fields is None else (),
        spare=(places["sheet"], places["held out"]),
    )


def say_reasons(jobs: Sequence[SweptJobReply], out: Output) -> None:
    """Print why jobs failed or wait, with their numbers."""
    for each in jobs:
        if why := each.error or each.waiting_because:
            out.hint(f"  {each.number}: {why}")


def _say_differences(found: Comparison, out: Output) -> None:
    """Print the fields in which the specs differ, with a column for each job."""
    if len(found.jobs) < 2:
        return
    if not found.differs:
        out.say("their specs are the same")
        return
    rows = [(field, *(_text(each.changes.get(field)) for each in found.jobs)) for field in found.differs]
    headers = ("differs", *(str(each.number) for each in found.jobs))
    out.say("")
    out.table(headers, rows, prose=range(1, len(headers)))


def _known_by(job: SweptJobReply, fields: Sequence[str] | None) -> list[str]:
    return [job.name] if fields is None else [_text(job.changes.get(field)) for field in fields]


def _text(value: Any) -> str:
    if value is None:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _outcome(job: SweptJobReply) -> tuple[str, ...]:
    steps = str(job.step) if job.total_steps is None else f"{job.step}/{job.total_steps}"
    return (
        job.job_id,
        str(job.state),
        steps,
        "–" if job.loss is None else f"{job.loss:.4f}",
        "–" if job.validation_loss is None else f"{job.validation_loss:.4f}",
        format_usd(job.cost_micro_usd),
        "–" if job.sheet is None else job.sheet.name,
    )
