"""Whether everything held that the demo is to show, and the tables that say so. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giornata.cli.demo_learned import LEAST_OLD, LEAST_SUBJECT, Learned, both, kept, percent, plain, taught
from giornata.cli.demo_plan import KILLS, PRICE_USD_PER_HOUR
from giornata.cli.demo_scene import Interruption
from giornata.cli.ui.text import duration
from giornata.domain.job import JobState
from giornata.domain.money import format_rate_usd, format_usd
from giornata.protocol.jobs import Job

HEADERS = ("job", "attempts", "steps", "useful", "lost", "cost", "cost per step")
RIGHT = (2, 3, 4, 5, 6)
FORMATS = 2

Hashes = Mapping[str, str]
"""sha256 by file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the demo found. `learned` has what each job's LoRA has learned and kept, by the job's name."""

    jobs: Sequence[Job]
    reference: Job
    repeated: str
    killed: Sequence[str]
    interruptions: Mapping[str, Sequence[Interruption]]
    hashes: Hashes
    reference_hashes: Hashes
    grid: Path
    learned: Mapping[str, Learned]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was to hold."""

    held: bool
    text: str


def checks(outcome: Outcome) -> tuple[Check, ...]:
    """The verdict, line by line."""
    return _succeeded(outcome), _interrupted(outcome), _identical(outcome), _taught(outcome), _kept(outcome)


def _every(outcome: Outcome) -> tuple[Job, ...]:
    return (*outcome.jobs, outcome.reference)


def _succeeded(outcome: Outcome) -> Check:
    jobs = _every(outcome)
    done = sum(job.state is JobState.SUCCEEDED for job in jobs)
    return Check(held=done == len(jobs), text=f"{done} of {len(jobs)} jobs succeeded")


def resumed(outcome: Outcome) -> int:
    """Interruptions of killed jobs that went on from a checkpoint, as their histories have it."""
    found = [each for job_id in outcome.killed for each in outcome.interruptions.get(job_id, ())]
    return sum(each.resumed_step is not None and each.resumed_step > 0 for each in found)


def _interrupted(outcome: Outcome) -> Check:
    went_on = resumed(outcome)
    held = len(set(outcome.killed)) >= KILLS and all(
        any(each.resumed_step for each in outcome.interruptions.get(job_id, ())) for job_id in outcome.killed
    )
    text = f"{len(outcome.killed)} nodes were killed with kill -9; {went_on} times a job went on from its checkpoint"
    return Check(held=held, text=text)


def identical(outcome: Outcome) -> bool:
    """Whether the interrupted job's files are those of the one that nobody interrupted, byte for byte."""
    alone = not outcome.interruptions.get(outcome.reference.id) and len(outcome.reference.attempts) == 1
    return alone and len(outcome.hashes) >= FORMATS and dict(outcome.hashes) == dict(outcome.reference_hashes)


def _identical(outcome: Outcome) -> Check:
    name, held = outcome.repeated, identical(outcome)
    if held:
        return Check(
            held=True, text=f"{name}, interrupted, has the same bytes as {outcome.reference.name}, not interrupted"
        )
    if len(outcome.reference.attempts) != 1:
        return Check(
            held=False, text=f"{outcome.reference.name} was interrupted too, so there is nothing to compare with"
        )
    names = sorted(outcome.hashes.keys() | outcome.reference_hashes.keys())
    differ = [file for file in names if outcome.hashes.get(file) != outcome.reference_hashes.get(file)]
    return Check(held=False, text=f"{name} and {outcome.reference.name} differ: {', '.join(differ) or 'no files'}")


def _taught(outcome: Outcome) -> Check:
    """The files load in diffusers, and subjects that the base does not know are drawn."""
    found = outcome.learned.values()
    shares, mean = both([each.base.subject for each in found], [each.lora.subject for each in found]), taught(found)
    held = _examined(outcome) and mean >= LEAST_SUBJECT and not any(each.base.subject for each in found)
    text = f"LoRAs draw their subjects: {shares}, {percent(mean)} on average (at least {percent(LEAST_SUBJECT)})"
    return Check(held=held and outcome.grid.is_file(), text=text)


def _kept(outcome: Outcome) -> Check:
    found = outcome.learned.values()
    shares, mean = both([each.base.old for each in found], [each.lora.old for each in found]), kept(found)
    text = f"LoRAs keep the old forms: {shares}, {percent(mean)} on average (at least {percent(LEAST_OLD)})"
    return Check(held=_examined(outcome) and mean >= LEAST_OLD, text=text)


def _examined(outcome: Outcome) -> bool:
    return len(outcome.learned) == len(outcome.jobs)


def rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """One row for each job; the columns are HEADERS."""
    return [
        (
            job.name,
            f"{len(job.attempts)}{' ' + '⚡' * job.interruptions if job.interruptions else ''}",
            str(job.step),
            duration(job.useful_s),
            duration(job.lost_s),
            format_usd(job.cost_micro_usd),
            "–" if (each := job.cost_per_useful_step_usd) is None else format_rate_usd(each),
        )
        for job in _every(outcome)
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    """The object that --json prints."""
    jobs = _every(outcome)
    return {
        "ok": all(check.held for check in checks(outcome)),
        "jobs": len(jobs),
        "succeeded": sum(job.state is JobState.SUCCEEDED for job in jobs),
        "interruptions": resumed(outcome),
        "bit_identical": identical(outcome),
        "grid": str(outcome.grid) if outcome.grid.is_file() else None,
        "seconds": round(outcome.seconds, 1),
        "useful_s": round(sum(job.useful_s for job in jobs), 1),
        "lost_s": round(sum(job.lost_s for job in jobs), 1),
        "cost_usd": round(sum(job.cost_usd for job in jobs), 6),
        "assumed_price_usd_per_hour": PRICE_USD_PER_HOUR,
        "learned": plain(outcome.learned),
        "job_ids": [job.id for job in jobs],
        "checks": [{"held": check.held, "text": check.text} for check in checks(outcome)],
    }
