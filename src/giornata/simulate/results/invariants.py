"""Invariants that hold at the end of every run under Giornata's policy, checked in the real store."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from giornata.control.projects.read_costs import read_costs
from giornata.control.timestamps import instant
from giornata.domain.billing.money import MICRO_USD, MS_PER_HOUR
from giornata.domain.jobs.reasons import BLAME, Blame, Reason
from giornata.simulate.installation import ADMIN, Installation
from giornata.simulate.plane import LARGE
from giornata.simulate.run import SimulationResult
from giornata.store.schema import bans, jobs, ledger, machines

MOST_OFF = 0.005  # of the provider's bill


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantResult:
    """One invariant: whether it held, and what was seen."""

    name: str
    held: bool
    seen: str

    @property
    def is_goal(self) -> bool:
        """True when the finding is a goal, and no invariant."""
        return self.name.startswith("goal")


def findings(ran: SimulationResult) -> tuple[InvariantResult, ...]:
    """Every invariant and every goal of the scenario."""
    found = [*_of_time(ran), *_of_jobs(ran)]
    if ran.installation is not None:
        found += [*_of_store(ran.installation, ran), *_goals(ran)]
    return tuple(found)


def _of_time(ran: SimulationResult) -> Iterator[InvariantResult]:
    billed_time = ran.world.billed_time
    off_s = billed_time.unaccounted_ms / 1000
    yield InvariantResult(
        name="billed = useful + lost + idle + start-up",
        held=abs(off_s) <= 1e-6 * billed_time.billed_ms / 1000 + 0.01,
        seen=f"{billed_time.billed_ms / 1000:.0f} s billed, {off_s:.3f} s unaccounted for",
    )


def _of_jobs(ran: SimulationResult) -> Iterator[InvariantResult]:
    stories = ran.world.trace.jobs.values()
    undone = sum(story.completions == 0 for story in stories)
    yield InvariantResult(name="every job succeeds", held=undone == 0, seen=f"{undone} of {len(stories)} did not")
    if ran.installation is None:
        return
    twice = sum(story.completions > 1 for story in stories)
    yield InvariantResult(name="no job is completed twice", held=twice == 0, seen=f"{twice} were")
    trained = sum(story.trained_to_the_end > 1 for story in stories)
    yield InvariantResult(name="nothing is trained twice to its end", held=trained == 0, seen=f"{trained} jobs were")
    stale = ran.world.trace.stale_writes_accepted
    yield InvariantResult(
        name="no write of an attempt that was replaced is accepted", held=stale == 0, seen=f"{stale} were"
    )


def _of_store(installation: Installation, ran: SimulationResult) -> Iterator[InvariantResult]:
    states = dict(
        installation.rows(
            sa.select(jobs.c.state, sa.func.count()).where(jobs.c.kind == "train").group_by(jobs.c.state)
        )
    )
    succeeded = sum(story.completions > 0 for story in ran.world.trace.jobs.values())
    yield InvariantResult(
        name="the store says what happened", held=states.get("succeeded", 0) == succeeded, seen=f"states {states}"
    )
    yield _ledger_finding(installation, ran)
    yield _amount_finding(installation)
    yield _bill_finding(installation, ran)
    yield _ban_finding(installation, ran)
    yield _quarantine_finding(installation, ran)


def _ledger_finding(installation: Installation, ran: SimulationResult) -> InvariantResult:
    """The server's ledger against what the nodes know: an end in silence is billed up to the last sign of life."""
    ((booked_ms,),) = installation.rows(
        sa.select(sa.func.coalesce(sa.func.sum(ledger.c.to_ms - ledger.c.from_ms), 0))
    )
    spent_ms = ran.world.billed_time.attempt_ms
    silent = ran.world.trace.lost_leases + sum(fleet.interruptions for fleet in ran.world.fleets.values())
    lee_ms = (silent + 1) * (ran.scenario.policy.lease_s + 60.0) * 1000 + sum(
        fleet.interruptions * fleet.offer.zombies * fleet.offer.zombie_s * 2000 for fleet in ran.world.fleets.values()
    )
    return InvariantResult(
        name="the ledger has the nodes' time in attempts, but for silent ends",
        held=abs(booked_ms - spent_ms) <= lee_ms,
        seen=f"{booked_ms / 1000:.0f} s booked, {spent_ms / 1000:.0f} s spent, {silent} silent ends",
    )


def _amount_finding(installation: Installation) -> InvariantResult:
    price, ms = ledger.c.price_micro_usd_per_hour, ledger.c.to_ms - ledger.c.from_ms
    query = sa.select(ledger.c.amount_micro_usd, price, ms)
    off = sum(abs(amount - price * spent / MS_PER_HOUR) > 1 for amount, price, spent in installation.rows(query))
    return InvariantResult(name="amounts are price times time", held=off == 0, seen=f"{off} rows are not")


def _bill_finding(installation: Installation, ran: SimulationResult) -> InvariantResult:
    """Compare the fleets' costs of `giornata costs` with the provider's bill."""
    now_ms = ran.world.agenda.now_ms()
    costs = read_costs(installation.ctx, ADMIN, instant(ran.world.agenda.start_ms), instant(now_ms + 1))
    said = sum(fleet.billed_micro_usd for fleet in costs.fleets)
    billed = ran.world.billed_time.billed_micro_usd
    return InvariantResult(
        name=f"costs are the provider's bill, to {MOST_OFF:.1%}",
        held=abs(said - billed) <= MOST_OFF * billed + _unseen_micro_usd(ran),
        seen=f"${said / MICRO_USD:.4f} said, ${billed / MICRO_USD:.4f} billed, {said / max(1.0, billed) - 1:+.3%}",
    )


def _unseen_micro_usd(ran: SimulationResult) -> float:
    """Return the cost that no listing can show, in micro-dollars.

    Instances may run and end while no listing is possible; half a listing of one other instance is added.
    """
    start_ms = ran.world.agenda.start_ms
    blind = [
        (start_ms + round(each.at_s * 1000), start_ms + round((each.at_s + each.for_s) * 1000))
        for each in ran.scenario.troubles
        if each.kind in {"server-away", "provider-away"}
    ]
    unseen = (
        ran.scenario.slowest_loop_s
        * LARGE
        * 1000
        / 2
        * max(fleet.offer.price_micro_usd_per_hour for fleet in ran.world.fleets.values())
    )
    for fleet in ran.world.fleets.values():
        for container in fleet.past:
            if container.running_since_ms is not None and container.ended_at_ms is not None:
                ran_ms = container.running_since_ms, container.ended_at_ms
                unseen += unknowable_ms(*ran_ms, blind=blind) * fleet.offer.price_micro_usd_per_hour
    return unseen / MS_PER_HOUR


def unknowable_ms(began_ms: int, ended_ms: int, *, blind: Iterable[tuple[int, int]]) -> float:
    """Return the possible error of the booked time of an instance that ended in one of the `blind` intervals.

    The error is half of the interval, whose middle is booked as the end. For an instance that also began in the
    interval, and was never listed as running, the error is its whole life.
    """
    for from_ms, to_ms in blind:
        if from_ms <= ended_ms < to_ms:
            return ended_ms - began_ms if began_ms >= from_ms else (to_ms - from_ms) / 2
    return 0.0


def _ban_finding(installation: Installation, ran: SimulationResult) -> InvariantResult:
    found = installation.rows(sa.select(bans.c.machine_id, bans.c.reason).distinct())
    unsound = _unsound(ran)
    wrong = [
        machine for machine, reason in found if BLAME[Reason(reason)] is Blame.MACHINE and machine not in unsound
    ]
    return InvariantResult(
        name="only faulty machines are banned", held=not wrong, seen=f"{len(found)} banned, wrongly: {wrong}"
    )


def _quarantine_finding(installation: Installation, ran: SimulationResult) -> InvariantResult:
    query = sa.select(machines.c.machine_id, machines.c.state).where(machines.c.state == "quarantined")
    found = {machine for machine, _ in installation.rows(query)}
    reallocated = {machine for fleet in ran.world.fleets.values() for machine in fleet.reallocated}
    wrong = sorted((found | reallocated) - _unsound(ran))
    return InvariantResult(
        name="only faulty machines are quarantined or reallocated",
        held=not wrong,
        seen=f"{len(found)} quarantined, {len(reallocated)} reallocated, wrongly: {wrong}",
    )


def _unsound(ran: SimulationResult) -> set[str]:
    fleets = ran.world.fleets.values()
    return {
        each.machine.id
        for fleet in fleets
        for each in [*fleet.past, *fleet.present.values()]
        if not each.machine.sound
    }


def _goals(ran: SimulationResult) -> Iterator[InvariantResult]:
    goals, billed_time = ran.scenario.goals, ran.world.billed_time
    if goals.lost_and_idle is not None:
        share = (billed_time.lost_ms + billed_time.idle_ms) / max(1.0, billed_time.billed_ms)
        name = f"goal: lost + idle under {goals.lost_and_idle:.0%} of what is billed"
        yield InvariantResult(name=name, held=share < goals.lost_and_idle, seen=f"{share:.2%}")
    if goals.most_attempts_on_broken is not None:
        seen = ran.world.trace.attempts_on_broken
        name = f"goal: a black hole is out within {goals.most_attempts_on_broken} attempts"
        yield InvariantResult(name=name, held=seen <= goals.most_attempts_on_broken, seen=f"{seen} attempts")
    if goals.peak_requests_per_node_s is not None:
        peak, at_rest = peak_requests(ran)
        name = "goal: after the outage no storm"
        most = max(3 * at_rest, goals.peak_requests_per_node_s * ran.scenario.nodes)
        yield InvariantResult(
            name=name, held=peak <= most, seen=f"{peak} requests in the worst second, {at_rest} before"
        )


def peak_requests(ran: SimulationResult) -> tuple[int, int]:
    """The most requests in a second of the ten minutes after the server came back, and of the ten before it went."""
    requests, start_s = ran.world.batches.requests, ran.world.agenda.start_ms // 1000
    for trouble in ran.scenario.troubles:
        if trouble.kind == "server-away":
            went, back = start_s + round(trouble.at_s), start_s + round(trouble.at_s + trouble.for_s)
            return (
                max(requests[second] for second in range(back, back + 600)),
                max(requests[second] for second in range(went - 600, went)),
            )
    return max(requests.values(), default=0), 0
