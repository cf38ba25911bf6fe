"""The report at a run's end: one object for programs, a page for people."""

import statistics
from collections import Counter
from typing import Any

import sqlalchemy as sa

from giornata.domain.billing.money import MICRO_USD
from giornata.domain.jobs.reasons import Reason
from giornata.simulate.results.invariants import findings, peak_requests
from giornata.simulate.run import SimulationResult
from giornata.store.schema import attempts


def summary(ran: SimulationResult) -> dict[str, Any]:
    """The object that `--json` prints. Equal runs give equal objects."""
    world, billed_time = ran.world, ran.world.billed_time
    stories = list(world.trace.jobs.values())
    succeeded = sum(story.completions > 0 for story in stories)
    found = findings(ran)
    return {
        "scenario": ran.scenario.name,
        "policy": "giornata",
        "seed": ran.seed,
        "trainer": ran.scenario.trainer.name,
        "jobs": len(stories),
        "nodes": ran.scenario.nodes,
        "succeeded": succeeded,
        "by_hand": len(stories) - succeeded,  # jobs that would need a person
        "makespan_h": round(ran.makespan_s / 3600, 3),
        **_seconds(ran),
        **_money(ran, succeeded),
        **_minutes(ran),
        "interruptions": sum(fleet.interruptions for fleet in world.fleets.values()),
        "attempts_per_job": _attempts_per_job(ran),
        "attempts_on_broken": world.trace.attempts_on_broken,
        "moved_off_slow_machines": _moved(ran),
        "reallocated": sum(len(fleet.reallocated) for fleet in world.fleets.values()),
        "given_up_before_they_ran": sum(len(fleet.given_up) for fleet in world.fleets.values()),
        "trials": world.trace.trials,
        "peak_requests_per_s": peak_requests(ran)[0],
        "refused": dict(sorted(world.batches.refusals.items())),
        "projects": _projects(ran),
        "steps": round(billed_time.steps),
        "invariants": {each.name: each.held for each in found},
        "seen": {each.name: each.seen for each in found},
        "broken": [f"{each.name}: {each.seen}" for each in found if not each.held and not each.is_goal],
        "ok": all(each.held for each in found if not each.is_goal),
        "goals_met": all(each.held for each in found if each.is_goal),
    }


def _seconds(ran: SimulationResult) -> dict[str, Any]:
    billed_time = ran.world.billed_time
    around = {f"{name}_s": round(spent_ms / 1000) for name, spent_ms in billed_time.around_ms.items()}
    return {
        "billed_s": round(billed_time.billed_ms / 1000),
        "useful_s": round(billed_time.useful_ms / 1000),
        "lost_s": round(billed_time.lost_ms / 1000),
        "idle_s": round(billed_time.idle_ms / 1000),
        "startup_s": round(billed_time.startup_ms / 1000),
        "startup": around,
        "lost_and_idle_share": round(
            (billed_time.lost_ms + billed_time.idle_ms) / max(1.0, billed_time.billed_ms), 5
        ),
    }


def _money(ran: SimulationResult, succeeded: int) -> dict[str, Any]:
    billed_time = ran.world.billed_time
    usd = billed_time.billed_micro_usd / MICRO_USD
    price = ran.scenario.offers[0].price_micro_usd_per_hour / MICRO_USD
    return {
        "usd": round(usd, 4),
        "usd_per_job": round(usd / max(1, succeeded), 5),
        # What the ancestor's published figure counted: a job's own time, at the price.
        "usd_per_job_in_attempts": round(billed_time.attempt_ms / 3_600_000 * price / max(1, succeeded), 5),
        "usd_per_step": round(usd / max(1.0, billed_time.steps), 8),
        "usd_per_useful_step": round(usd / max(1.0, billed_time.useful_steps), 8),
    }


def _minutes(ran: SimulationResult) -> dict[str, Any]:
    minutes = [m for story in ran.world.trace.jobs.values() if (m := story.minutes) is not None] or [0.0]
    return {
        "worst_job_min": round(max(minutes), 2),
        "mean_job_min": round(statistics.fmean(minutes), 2),
        "median_job_min": round(statistics.median(minutes), 2),
        "best_job_min": round(min(minutes), 2),
    }


def _attempts_per_job(ran: SimulationResult) -> dict[str, float]:
    """Shares of jobs by how many attempts they took."""
    stories = ran.world.trace.jobs.values()
    counts = Counter(min(3, len(story.attempts)) for story in stories)
    names = {1: "one", 2: "two", 3: "more"}
    return {name: round(counts[number] / max(1, len(stories)), 4) for number, name in names.items()}


def _projects(ran: SimulationResult) -> dict[str, dict[str, float]]:
    """Return the hours until half of each project's jobs were done; a fair queue serves small projects early."""
    start_ms = ran.world.agenda.start_ms
    ends: dict[str, list[int]] = {}
    for story in ran.world.trace.jobs.values():
        if story.done_ms is not None:
            ends.setdefault(story.project_id, []).append(story.done_ms)
    return {
        project: {
            "jobs": len(done),
            "half_done_h": round((statistics.median(done) - start_ms) / 3_600_000, 3),
            "all_done_h": round((max(done) - start_ms) / 3_600_000, 3),
        }
        for project, done in sorted(ends.items())
    }


def _moved(ran: SimulationResult) -> int:
    """Attempts that were told to give their job back because they were slow, or stood still."""
    if ran.installation is None:
        return 0
    query = sa.select(sa.func.count()).where(attempts.c.reason == Reason.TOO_SLOW)
    ((moved,),) = ran.installation.rows(query)
    return int(moved)
