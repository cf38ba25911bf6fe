"""`--estimate` of `giornata train` and `giornata generate`: what a job would take and cost, without submitting it."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from giornata.cli.jobs.submission import SubmissionOptions, check, send_inputs
from giornata.cli.settings import Settings
from giornata.cli.settings.connection import connect
from giornata.cli.ui.output import Output
from giornata.cli.ui.text import duration
from giornata.domain.billing.money import format_usd
from giornata.domain.errors import Fault
from giornata.protocol.jobs import Estimate

UNKNOWN = "not known"


def estimate_job(
    asked: SubmissionOptions,
    settings: Settings,
    fields: Callable[[], dict[str, Any]],
    out: Output,
    *,
    others: Iterable[Fault],
) -> None:
    """Check and upload as for a submission, and say what the server expects. Raises InvalidInput with all faults."""
    faults = list(others)
    if asked.continued is not None:
        hint = "give DIR, --model and the other options of the job"
        faults.append(Fault(where="--continue", message="cannot be combined with --estimate", hint=hint))
    with tempfile.TemporaryDirectory(prefix="giornata-masks-") as copies:
        job = check(asked, settings, fields, copies=Path(copies), others=faults)
        with connect(settings) as client:
            found = client.estimate(send_inputs(client, job, out), priority=job.terms["priority"] or 0)
    say_estimate(found, out)


def say_estimate(found: Estimate, out: Output) -> None:
    """Print an estimate, and what it rests on."""
    for line in estimate_lines(found):
        out.say(line)
    out.hint(f"  time and cost   {found.basis}")
    if found.expectation:
        out.hint(f"  start           {found.expectation}")
    out.hint("  nothing was submitted; the same command without --estimate submits the job")
    out.result(found)


def estimate_lines(found: Estimate) -> list[str]:
    """Steps or pictures, time, cost and start, for people."""
    steps = UNKNOWN if found.total_steps is None else str(found.total_steps)
    work = ("steps", steps)
    if found.pixel_steps is not None:
        work = ("pictures", f"{found.pictures}, {_rounded(found.pixel_steps / 1e6)} megapixel-steps")
    time = _figure(found.run_s, found.run_s_range, duration)
    price = _figure(found.cost_micro_usd, found.cost_micro_usd_range, format_usd)
    start = UNKNOWN if found.expected_start_at is None else f"{found.expected_start_at:%Y-%m-%d %H:%M} UTC"
    rows = (work, ("time", time), ("cost", price), ("place in the queue", str(found.queue_position)))
    return [f"{name:<20}{value}" for name, value in (*rows, ("start", start))]


def _figure(value: float | None, ends: Sequence[float] | None, words: Callable[[float], str]) -> str:
    if value is not None:
        return f"about {words(value)}"
    if ends is None:
        return UNKNOWN
    least, greatest = (words(each) for each in ends)
    return f"{least} to {greatest} (a rough estimate)" if least != greatest else f"{least} (a rough estimate)"


def _rounded(amount: float) -> str:
    """Return a number with two digits at least, and no decimals from ten on."""
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.2g}"
