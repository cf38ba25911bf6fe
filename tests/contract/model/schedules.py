"""Schedules: drawn, played, and cut down to what matters when one of them breaks an invariant."""

import itertools
import random
import threading
from collections.abc import Callable, Sequence

from tests.contract.model.actions import ACTIONS, AUDIT_ACTIONS, DAY_S, PICTURE_ACTIONS, Step
from tests.contract.model.audit_actions import give_up_audits
from tests.contract.model.calls import Actors
from tests.contract.model.concurrent_actions import Everything
from tests.contract.model.end_at_once import ACTIONS_THERE, check_gone, check_pins, focus_of
from tests.contract.model.invariants import REFERRERS, InvariantChecker
from tests.contract.model.last_pictures import draw_the_rest
from tests.contract.model.liveness import BANNING, LivingNodes
from tests.contract.model.model_rig import KINDS, NOT_ASKED_FOR, PROJECTS, ROOT, ModelRig, NodePlace, Row, owner
from tests.contract.model.quota_checks import lift_ceilings
from tests.contract.model.shares import check_costs

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.end_of_life.delete_project import delete_project
from giornata.control.end_of_life.finish_deletions import finish_deletions
from giornata.control.jobs.settle_sweep import settle_sweeps
from giornata.control.jobs.stop_job import expire_deadlines
from giornata.control.projects.set_budget import change_job, set_project_budget
from giornata.control.storage.collect import collect
from giornata.domain.jobs.attempt import CLOCKS_AGREE_MS
from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.jobs import ChangeJob
from giornata.protocol.node.work import Claim, ClaimReply, CompleteAttempt
from giornata.protocol.project.admin import SetBudget

STEPS_PER_EPISODE = 120
THREADS = 4
STEPS_BETWEEN_QUIET = 12
NUMBERS = 64


def draw(dice: random.Random, count: int) -> list[Step]:
    """A schedule by chance. Every third one is mostly about pictures, every sixth about audits."""
    actions = (PICTURE_ACTIONS, PICTURE_ACTIONS, AUDIT_ACTIONS, ACTIONS, ACTIONS, ACTIONS)[dice.randrange(6)]
    return _steps(dice, actions, count)


def draw_at_once(dice: random.Random, count: int) -> list[Step]:
    """What one thread does. Every third is mostly about the end of life, every sixth about pictures or audits."""
    actions = (PICTURE_ACTIONS, AUDIT_ACTIONS, ACTIONS_THERE, ACTIONS_THERE, ACTIONS, ACTIONS)[dice.randrange(6)]
    return _steps(dice, actions, count)


def _steps(dice: random.Random, actions: Sequence[str], count: int) -> list[Step]:
    return [(dice.choice(actions), dice.randrange(NUMBERS), dice.randrange(NUMBERS)) for _ in range(count)]


def play(rig: ModelRig, steps: Sequence[Step]) -> Actors:
    """One thing after the other, everything looked at after each; where that led.

    Raises whatever breaks.
    """
    rig.reset()
    actors, checker = Actors(), InvariantChecker(rig)
    checker.look()
    actions = Everything(rig, actors, checker, exact=True)
    for step in steps:
        actions.do(step)
    if len(steps) % 4 < 2:
        finish(rig, checker, actors, silent=len(steps) % 2 == 1)
    else:
        live_on(rig, checker, actors, failing=BANNING[len(steps) // 4 % len(BANNING)] if len(steps) % 2 else None)
    check_costs(checker.now, rig, steady=not actors.latest_ms)
    return actors


def play_at_once(rig: ModelRig, dice: random.Random, rounds: int) -> Actors:
    """Threads that know of each other's leases do as they like; everything is looked at when all of them rest."""
    rig.reset()
    rig.open_ending()
    actors, checker = Actors(), InvariantChecker(rig, at_once=True)
    checker.look()
    threads = [Everything(rig, actors, checker, exact=False) for _ in range(THREADS)]
    threads[0].submit(0, 2)
    for _ in range(rounds):
        actors.focus = focus_of(checker.now, dice)
        plans = [draw_at_once(dice, STEPS_BETWEEN_QUIET) for _ in threads]
        jobs = [
            lambda actions=actions, plan=plan: [actions.do(step) for step in plan]
            for actions, plan in zip(threads, plans, strict=True)
        ]  # type: ignore[misc]
        at_once(jobs)
        check_pins(checker.look(whole=True), actors.pins)
    if dice.getrandbits(1):
        live_on(rig, checker, actors, failing=dice.choice([None, *BANNING]))
    else:
        finish(rig, checker, actors, silent=bool(dice.getrandbits(1)))
    check_pins(checker.now, actors.pins)
    check_gone(checker.now)
    return actors


def at_once(jobs: Sequence[Callable[[], object]]) -> None:
    """Run them in threads of their own. Raises what the first of them raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> None:
        start.wait()
        try:
            job()
        except BaseException as failure:  # noqa: BLE001 - it is raised again below
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def finish(rig: ModelRig, checker: InvariantChecker, actors: Actors, *, silent: bool) -> None:
    """With fresh machines every job ends, even if all of them fall silent; and then nothing is left over."""
    _harm_is_over(rig, checker)
    fresh = itertools.count(100)
    for _ in range(rig.ctx.policy.max_fruitless + 1):
        # A clock that was set back by less than what clocks differ by leaves leases that much longer.
        rig.clock.advance_s(rig.ctx.policy.lease_s + CLOCKS_AGREE_MS / 1000 + 1)
        expire_deadlines(rig.ctx)
        lapse_leases(rig.ctx)
        while (lease := _fresh_claim(rig, next(fresh)).lease) is not None:
            if not silent:
                complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=100))
        if all(row.state in TERMINAL for row in checker.look().jobs if row.kind not in NOT_ASKED_FOR):
            break
    _all_over(rig, checker, actors)


def live_on(rig: ModelRig, checker: InvariantChecker, actors: Actors, *, failing: Reason | None) -> None:
    """With the machines that are there every job ends, whether they do it or fail it; and nothing is left over."""
    _harm_is_over(rig, checker)
    LivingNodes(rig, checker, failing=failing).live_on(latest_ms=actors.latest_ms)
    _all_over(rig, checker, actors)


def _harm_is_over(rig: ModelRig, checker: InvariantChecker) -> None:
    checker.look(whole=True)
    lapse_leases(rig.ctx)  # cuts those that a clock granted which was set back since
    _lift_budgets(rig, checker)


def _all_over(rig: ModelRig, checker: InvariantChecker, actors: Actors) -> None:
    draw_the_rest(rig, checker, latest_ms=actors.latest_ms)
    settle_sweeps(rig.ctx)
    give_up_audits(rig, checker)
    unended = [row for row in checker.look().jobs if row.state not in TERMINAL]
    assert not unended, "\n".join(["a job never ends", *(_story(checker, row) for row in unended)])
    rig.clock.advance_s(3 * DAY_S)
    finish_deletions(rig.ctx)
    collect(rig.ctx)
    _check_clean(rig, checker)
    _delete_a_project(rig, checker)


def _delete_a_project(rig: ModelRig, checker: InvariantChecker) -> None:
    """Nothing of it is left but what it cost, and the others have what they had."""
    others = {key for key in rig.blobs.objects if "ann" not in key.split("/")[:2]}
    bills = checker.now.ledger
    delete_project(rig.ctx, ROOT, "ann", confirm="ann")
    seen = checker.look(whole=True)
    assert set(rig.blobs.objects) == others, "bytes of a deleted project are left, or others are gone"
    assert seen.ledger == bills
    held = [row for row in seen.audits if row.project_id == "ann" and row.sha256 is not None]
    assert not held, f"audits keep bytes of a deleted project: {held}"  # their verdicts on machines stay
    for table in (
        *(name for name in REFERRERS if name != "audits"),
        "blobs",
        "pictures",
        "picture_orders",
        "uploads",
        "logs",
        "metrics",
    ):
        assert not [row for row in seen.tables[table] if "ann" in row], f"{table} has rows of a deleted project"


def _lift_budgets(rig: ModelRig, checker: InvariantChecker) -> None:
    """Whoever waits for money or for a place gets it: a job that is paused is no job that never ends."""
    lift_ceilings(rig)
    for project in PROJECTS:
        set_project_budget(rig.ctx, ROOT, project, SetBudget(budget_micro_usd=None, monthly_budget_micro_usd=None))
    for row in checker.look(whole=True).jobs:
        if row.state not in TERMINAL:
            change_job(rig.ctx, owner(row.project_id), row.id, ChangeJob(budget_micro_usd=None))
    settle_sweeps(rig.ctx)
    paused = [row for row in checker.look(whole=True).jobs if row.state == "paused"]
    assert not paused, paused


def _story(checker: InvariantChecker, job: Row) -> str:
    """What is known of a job, for whoever has to find out why."""
    tries = [row for row in checker.attempts.values() if row.job_id == job.id]
    return "\n  ".join(map(str, [job, *sorted(tries, key=lambda row: row.number)]))


def _fresh_claim(rig: ModelRig, number: int) -> ClaimReply:
    place = NodePlace(number=number, machine=f"fresh-{number}", kinds=KINDS)
    claim = Claim(request_id=f"fresh-request-{number}", node=place.process(0), kinds=KINDS)
    return claim_once(rig.ctx, place.caller, claim)


def _check_clean(rig: ModelRig, checker: InvariantChecker) -> None:
    seen = checker.look(whole=True)
    referred = {(row.project_id, row.sha256) for table in REFERRERS for row in seen.tables[table] if row.sha256}
    assert {(row.project_id, row.sha256) for row in seen.blobs} == referred, "bytes that nothing refers to"
    lost = {row.key for row in seen.blobs if (row.project_id, row.sha256) in rig.harmed}
    drawn = [row for row in seen.pictures if row.sha256 is not None]
    kept = {f"pictures/{row.project_id}/{row.lease}/{row.sha256}" for row in drawn}
    assert set(rig.blobs.objects) | lost == {row.key for row in seen.blobs} | kept, "objects without a row"
    assert seen.uploads == seen.idempotency == []


def shrink(steps: Sequence[Step], breaks: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """As few of the steps as still break an invariant: pieces are left out, ever smaller ones, while it breaks."""
    left = list(steps)
    piece = len(left) // 2
    while piece:
        start = 0
        while start < len(left):
            shorter = left[:start] + left[start + piece :]
            if breaks(shorter):
                left = shorter
            else:
                start += piece
        piece //= 2
    return left
