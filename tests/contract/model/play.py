"""Schedules: drawn, played, and cut down to what matters when one of them breaks the house."""

import itertools
import random
import threading
from collections.abc import Callable, Sequence

from tests.contract.model.calls import Town
from tests.contract.model.house import KINDS, PROJECTS, ROOT, House, Place, Row, owner
from tests.contract.model.invariants import REFERRERS, Witness
from tests.contract.model.liveness import BANNING, LivingNodes
from tests.contract.model.shares import check_costs
from tests.contract.model.together import Everything
from tests.contract.model.town_deeds import DAY_S, DEEDS, Step

from giornata.control.attempts.claim import claim_once
from giornata.control.attempts.complete import complete
from giornata.control.attempts.lapse import lapse_leases
from giornata.control.jobs.stop_job import expire_deadlines
from giornata.control.projects.set_budget import change_job, set_project_budget
from giornata.control.storage.collect import collect
from giornata.domain.attempt import CLOCKS_AGREE_MS
from giornata.domain.job import TERMINAL
from giornata.domain.reasons import Reason
from giornata.protocol.admin import SetBudget
from giornata.protocol.jobs import ChangeJob
from giornata.protocol.work import Claim, ClaimReply, CompleteAttempt

STEPS_PER_EPISODE = 120
THREADS = 4
STEPS_BETWEEN_QUIET = 12
NUMBERS = 64


def draw(dice: random.Random, count: int) -> list[Step]:
    """A schedule by chance."""
    return [(dice.choice(DEEDS), dice.randrange(NUMBERS), dice.randrange(NUMBERS)) for _ in range(count)]


def play(house: House, steps: Sequence[Step]) -> Town:
    """One thing after the other, everything looked at after each; where that led.

    Raises whatever breaks.
    """
    house.move_in()
    town, witness = Town(), Witness(house)
    witness.look()
    deeds = Everything(house, town, witness, exact=True)
    for step in steps:
        deeds.do(step)
    if len(steps) % 4 < 2:
        finish(house, witness, silent=len(steps) % 2 == 1)
    else:
        live_on(house, witness, town, failing=BANNING[len(steps) // 4 % len(BANNING)] if len(steps) % 2 else None)
    check_costs(witness.now, house, steady=not town.latest_ms)
    return town


def play_at_once(house: House, dice: random.Random, rounds: int) -> Town:
    """Threads that know of each other's leases do as they like; everything is looked at when all of them rest."""
    house.move_in()
    town, witness = Town(), Witness(house)
    witness.look()
    threads = [Everything(house, town, witness, exact=False) for _ in range(THREADS)]
    threads[0].submit(0, 2)
    for _ in range(rounds):
        plans = [draw(dice, STEPS_BETWEEN_QUIET) for _ in threads]
        jobs = [
            lambda deeds=deeds, plan=plan: [deeds.do(step) for step in plan]
            for deeds, plan in zip(threads, plans, strict=True)
        ]  # type: ignore[misc]
        at_once(jobs)
        witness.look(whole=True)
    if dice.getrandbits(1):
        live_on(house, witness, town, failing=dice.choice([None, *BANNING]))
    else:
        finish(house, witness, silent=bool(dice.getrandbits(1)))
    return town


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


def finish(house: House, witness: Witness, *, silent: bool) -> None:
    """With fresh machines every job ends, even if all of them fall silent; and then nothing is left over."""
    _harm_is_over(house, witness)
    fresh = itertools.count(100)
    for _ in range(house.ctx.policy.max_fruitless + 1):
        # A clock that was set back by less than what clocks differ by leaves leases that much longer.
        house.clock.advance_s(house.ctx.policy.lease_s + CLOCKS_AGREE_MS / 1000 + 1)
        expire_deadlines(house.ctx)
        lapse_leases(house.ctx)
        while (lease := _fresh_claim(house, next(fresh)).lease) is not None:
            if not silent:
                complete(house.ctx, lease.attempt_id, CompleteAttempt(step=100))
        if all(row.state in TERMINAL for row in witness.look().jobs):
            break
    _all_over(house, witness)


def live_on(house: House, witness: Witness, town: Town, *, failing: Reason | None) -> None:
    """With the machines that are there every job ends, whether they do it or fail it; and nothing is left over."""
    _harm_is_over(house, witness)
    LivingNodes(house, witness, failing=failing).live_on(latest_ms=town.latest_ms)
    _all_over(house, witness)


def _harm_is_over(house: House, witness: Witness) -> None:
    witness.look(whole=True)
    lapse_leases(house.ctx)  # cuts those that a clock granted which was set back since
    _lift_budgets(house, witness)


def _all_over(house: House, witness: Witness) -> None:
    unended = [row for row in witness.now.jobs if row.state not in TERMINAL]
    assert not unended, "\n".join(["a job never ends", *(_story(witness, row) for row in unended)])
    house.clock.advance_s(3 * DAY_S)
    collect(house.ctx)
    _check_clean(house, witness)


def _lift_budgets(house: House, witness: Witness) -> None:
    """Whoever waits for money gets it: a job that is paused is no job that never ends."""
    for project in PROJECTS:
        set_project_budget(house.ctx, ROOT, project, SetBudget(budget_micro_usd=None, monthly_budget_micro_usd=None))
    for row in witness.look(whole=True).jobs:
        if row.state not in TERMINAL:
            change_job(house.ctx, owner(row.project_id), row.id, ChangeJob(budget_micro_usd=None))
    paused = [row for row in witness.look(whole=True).jobs if row.state == "paused"]
    assert not paused, paused


def _story(witness: Witness, job: Row) -> str:
    """What is known of a job, for whoever has to find out why."""
    tries = [row for row in witness.attempts.values() if row.job_id == job.id]
    return "\n  ".join(map(str, [job, *sorted(tries, key=lambda row: row.number)]))


def _fresh_claim(house: House, number: int) -> ClaimReply:
    place = Place(number=number, machine=f"fresh-{number}", kinds=KINDS)
    claim = Claim(request_id=f"fresh-request-{number}", node=place.process(0), kinds=KINDS)
    return claim_once(house.ctx, place.caller, claim)


def _check_clean(house: House, witness: Witness) -> None:
    seen = witness.look(whole=True)
    referred = {(row.project_id, row.sha256) for table in REFERRERS for row in seen.tables[table]}
    assert {(row.project_id, row.sha256) for row in seen.blobs} == referred, "bytes that nothing refers to"
    lost = {row.key for row in seen.blobs if (row.project_id, row.sha256) in house.harmed}
    assert set(house.blobs.objects) | lost == {row.key for row in seen.blobs}, "objects without a row"
    assert seen.uploads == seen.idempotency == []


def shrink(steps: Sequence[Step], breaks: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """As few of the steps as still break the house: pieces are left out, ever smaller ones, while it breaks."""
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
