"""The trust in a machine for jobs of a kind: strikes that decay, a quota that successes raise, and a state.

    ok ── strikes ──► probation ── more, or its canary fails ──► quarantined ── time ──► probation ── success ──► ok

A burst of failures leads into quarantine at once. What is held against a machine can be taken back when it turns out
to have been a job's fault, or everybody's: then the state is what the rest of the evidence makes of it.

Sources: the quota that halves and doubles is BOINC's (sched/sched_result.cpp, where one bad result costs one, and a
good one doubles; here a bad one halves, because jobs of an hour give few results), and so is the row of ten good
results after which a host counts as reliable; the black hole is HTCondor's word for a machine that fails fast and so
draws all jobs.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from giornata.domain.jobs.reasons import BLAME, Blame, Reason

MS_PER_HOUR = 3_600_000
MS_PER_DAY = 24 * MS_PER_HOUR
RELIABLE_AFTER = 10  # successes in a row
# Failures are remembered one by one for so long, so that they can be taken back.
REMEMBERED_MS = MS_PER_DAY
MOST_REMEMBERED = 50


class MachineState(StrEnum):
    """The state that decides if a machine gets jobs of a kind."""

    OK = "ok"
    PROBATION = "probation"  # a canary first, or one job at a time
    QUARANTINED = "quarantined"  # none


_SEVERITY = {MachineState.OK: 0, MachineState.PROBATION: 1, MachineState.QUARANTINED: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """The operator's weights for failures. A machine's fault adds 1 strike, a crash adds `suspicion`."""

    half_life_s: float = 12 * 3600.0
    suspicion: float = 0.5
    probation_strikes: float = 1.5
    quarantine_strikes: float = 2.5
    quarantine_strikes_unproven: float = 1.25  # of a machine that has not succeeded yet, or not since its quarantine
    burst_failures: int = 3
    burst_s: float = 600.0
    slow_failures: int = 2  # within a day
    quota_per_hour: int = 16
    quota_floor: int = 1
    new_on_probation: bool = False
    cool_down_s: float = 900.0
    longest_cool_down_s: float = 24 * 3600.0
    common_cause_machines: int = 3  # so many that fail alike, and more than half of those that began anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One attempt that is held against its machine. Instants are epoch ms of the server's clock."""

    attempt_id: str
    job_id: str
    reason: Reason
    began_at_ms: int
    at_ms: int
    weight: float
    canary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHealth:
    """The record of a machine with jobs of a kind. `strikes` are those of `scored_at_ms`: see `strikes_at`."""

    machine_id: str
    kind: str
    since_ms: int
    scored_at_ms: int
    quota: int
    state: MachineState = MachineState.OK
    reason: str = ""
    strikes: float = 0.0
    successes_in_a_row: int = 0
    proven: bool = False  # it has succeeded, since its latest quarantine if there was one
    quarantines: int = 0  # in a row
    quarantined_times: int = 0  # ever
    by_hand: bool = False
    failures: tuple[Failure, ...] = ()
    canary_job_id: str | None = None

    @property
    def settled(self) -> bool:
        """True when another success would not change this record, so the write can be skipped."""
        spotless = self.state is MachineState.OK and not self.strikes and not self.failures and not self.quarantines
        return spotless and self.proven and self.successes_in_a_row >= RELIABLE_AFTER


def newcomer(machine_id: str, kind: str, *, policy: HealthPolicy, at_ms: int) -> MachineHealth:
    """A machine of which nothing is known."""
    state = MachineState.PROBATION if policy.new_on_probation else MachineState.OK
    reason = "it is new" if policy.new_on_probation else ""
    return MachineHealth(
        machine_id=machine_id,
        kind=kind,
        since_ms=at_ms,
        scored_at_ms=at_ms,
        quota=policy.quota_per_hour,
        state=state,
        reason=reason,
    )


def weight_of(reason: Reason, *, policy: HealthPolicy) -> float:
    """The strikes of an ended attempt. A job that needs more memory than the node has adds none."""
    if BLAME[reason] is Blame.MACHINE:
        return 1.0
    return policy.suspicion if reason is Reason.CRASHED else 0.0


def strikes_at(health: MachineHealth, *, policy: HealthPolicy, at_ms: int) -> float:
    """The remaining strikes: half after each half-life. A clock that was set back adds none."""
    return health.strikes * _decay(at_ms - health.scored_at_ms, policy=policy)


def failed(health: MachineHealth, failure: Failure, *, policy: HealthPolicy) -> MachineHealth:
    """After one more failure of a weight above 0. A report that is counted already changes nothing.

    Attempts that lived beside one another and end alike are one event: a disk is full once, however many jobs it
    hits. The first of them counts.
    """
    if any(each.attempt_id == failure.attempt_id for each in health.failures):
        return health
    same_event = any(
        each.reason is failure.reason and each.weight and failure.began_at_ms < each.at_ms for each in health.failures
    )
    noted = replace(failure, weight=0.0) if same_event else failure
    kept = [each for each in health.failures if each.at_ms > failure.at_ms - REMEMBERED_MS]
    now = replace(
        _scored(health, policy=policy, at_ms=failure.at_ms, more=noted.weight),
        failures=(*kept, noted)[-MOST_REMEMBERED:],
        successes_in_a_row=0,
        quota=health.quota if same_event else max(policy.quota_floor, health.quota // 2),
    )
    return _worse(now, policy=policy, at_ms=failure.at_ms)


def succeeded(health: MachineHealth, *, policy: HealthPolicy, at_ms: int, canary: bool = False) -> MachineHealth:
    """After a job that it did to the end. A canary ends its probation, but wipes nothing off."""
    scored = _scored(health, policy=policy, at_ms=at_ms)
    strikes = scored.strikes if canary else _rounded(scored.strikes / 2)
    in_a_row = min(RELIABLE_AFTER, health.successes_in_a_row + (0 if canary else 1))
    now = replace(
        scored,
        strikes=strikes,
        quota=min(policy.quota_per_hour, health.quota * 2),
        successes_in_a_row=in_a_row,
        proven=True,
        quarantines=0 if in_a_row == RELIABLE_AFTER else health.quarantines,
        failures=tuple(each for each in health.failures if each.at_ms > at_ms - REMEMBERED_MS),
        canary_job_id=None if canary else health.canary_job_id,
    )
    if health.state is MachineState.PROBATION and not health.by_hand:
        return _moved(now, MachineState.OK, "", at_ms=at_ms)
    return now


def taken_back(
    health: MachineHealth, is_void: Callable[[Failure], bool], *, policy: HealthPolicy, at_ms: int
) -> MachineHealth:
    """Return the record without failures that were not the machine's own; the others give its state."""
    void = [each for each in health.failures if is_void(each)]
    if not void:
        return health
    back = sum(each.weight * _decay(at_ms - each.at_ms, policy=policy) for each in void)
    counted = sum(1 for each in void if each.weight)
    now = replace(
        _scored(health, policy=policy, at_ms=at_ms, more=-back),
        failures=tuple(each for each in health.failures if not is_void(each)),
        quota=min(policy.quota_per_hour, health.quota * 2**counted),
    )
    return _better(now, policy=policy, at_ms=at_ms)


def confirmed(
    health: MachineHealth, attempt_ids: Collection[str], *, policy: HealthPolicy, at_ms: int
) -> MachineHealth:
    """A suspicion turns out to be right: another machine did what crashed here, so the crash weighs as a fault."""
    more, failures = 0.0, []
    for each in health.failures:
        grows = each.attempt_id in attempt_ids and 0 < each.weight < 1
        more += (1 - each.weight) * _decay(at_ms - each.at_ms, policy=policy) if grows else 0.0
        failures.append(replace(each, weight=1.0) if grows else each)
    if not more:
        return health
    now = replace(_scored(health, policy=policy, at_ms=at_ms, more=more), failures=tuple(failures))
    return _worse(now, policy=policy, at_ms=at_ms)


def shut_out(health: MachineHealth, *, reason: str, at_ms: int) -> MachineHealth:
    """Quarantined by an operator, until an operator lets it go."""
    more = int(health.state is not MachineState.QUARANTINED)
    moved = _moved(health, MachineState.QUARANTINED, reason, at_ms=at_ms)
    return replace(moved, by_hand=True, quarantined_times=health.quarantined_times + more)


def let_go(health: MachineHealth, *, policy: HealthPolicy, at_ms: int) -> MachineHealth:
    """Cleared by an operator: nothing is held against it any more."""
    clean = replace(health, strikes=0.0, scored_at_ms=at_ms, failures=(), quarantines=0, by_hand=False)
    clean = replace(clean, quota=policy.quota_per_hour, canary_job_id=None)
    return _moved(clean, MachineState.OK, "", at_ms=at_ms)


def cool_down_ends_ms(health: MachineHealth, *, policy: HealthPolicy) -> int | None:
    """Return the automatic end of the machine's quarantine; the time doubles with each in a row.

    None: the quarantine never ends by itself, or the machine is in no quarantine.
    """
    if health.state is not MachineState.QUARANTINED or health.by_hand:
        return None
    doubled_s = policy.cool_down_s * 2.0 ** min(max(0, health.quarantines - 1), 30)
    return health.since_ms + round(min(doubled_s, policy.longest_cool_down_s) * 1000)


def cooled_down(health: MachineHealth, *, policy: HealthPolicy, at_ms: int) -> MachineHealth:
    """Return the record on probation, without strikes and with little credit, after its quarantine; else as it is."""
    ends_ms = cool_down_ends_ms(health, policy=policy)
    if ends_ms is None or at_ms < ends_ms:
        return health
    clean = replace(health, strikes=0.0, scored_at_ms=at_ms, failures=(), proven=False, successes_in_a_row=0)
    clean = replace(clean, quota=policy.quota_floor, canary_job_id=None)
    return _moved(clean, MachineState.PROBATION, "its quarantine is over", at_ms=at_ms)


def void_failures(failures: Iterable[tuple[str, str, Reason]], *, alike_on: int) -> frozenset[str]:
    """Return the attempts of a finally failed job for which no machine is to blame.

    The input is (attempt, machine, reason) of each.

    A crash says nothing against a machine when the job is the bad one; a fault that looks like a machine's is the
    job's if `alike_on` different machines had it with this one job.
    """
    rows = list(failures)
    machines: dict[Reason, set[str]] = {}
    for _, machine_id, reason in rows:
        machines.setdefault(reason, set()).add(machine_id)
    return frozenset(
        attempt_id
        for attempt_id, _, reason in rows
        if BLAME[reason] is Blame.UNDECIDED or (BLAME[reason] is Blame.MACHINE and len(machines[reason]) >= alike_on)
    )


def common_cause(*, failing: Collection[str], fine: Collection[str], jobs: int, policy: HealthPolicy) -> bool:
    """Return True when so many machines fail alike within the burst's minutes that none of them can be the cause.

    `failing` had such an end, with so many different `jobs`: if it was one job, that may be the bad one. `fine` did a
    first step or a whole job meanwhile; a machine that did both is failing.
    """
    sick = set(failing)
    return jobs > 1 and len(sick) >= policy.common_cause_machines and len(sick) > len(set(fine) - sick)


def _verdict(health: MachineHealth, *, policy: HealthPolicy, at_ms: int) -> tuple[MachineState, str]:
    counted = [each for each in health.failures if each.weight]
    if any(each.canary for each in counted):
        return MachineState.QUARANTINED, "its canary failed"
    recent = [each for each in counted if each.at_ms > at_ms - policy.burst_s * 1000]
    if len(recent) >= policy.burst_failures:
        return MachineState.QUARANTINED, f"{len(recent)} failures within {policy.burst_s / 60:g} min: {_why(recent)}"
    slow = [each for each in counted if each.reason is Reason.TOO_SLOW]
    if len(slow) >= policy.slow_failures:
        return MachineState.QUARANTINED, f"too slow, {len(slow)} times within a day"
    most = policy.quarantine_strikes if health.proven else policy.quarantine_strikes_unproven
    said = f"{health.strikes:.1f} strikes: {_why(counted)}"
    if health.strikes >= most:
        return MachineState.QUARANTINED, said
    if health.strikes >= policy.probation_strikes or (not health.proven and counted):
        return MachineState.PROBATION, said
    return MachineState.OK, ""


def _why(failures: Iterable[Failure]) -> str:
    reasons = [each.reason.value for each in failures]
    return ", ".join(f"{reasons.count(each)} × {each}" for each in dict.fromkeys(reasons)) or "from earlier"


def _worse(health: MachineHealth, *, policy: HealthPolicy, at_ms: int) -> MachineHealth:
    state, reason = _verdict(health, policy=policy, at_ms=at_ms)
    if health.by_hand or _SEVERITY[state] < _SEVERITY[health.state]:
        return health
    if state is health.state:
        return replace(health, reason=reason)
    more = int(state is MachineState.QUARANTINED)
    moved = _moved(health, state, reason, at_ms=at_ms)
    return replace(moved, quarantines=health.quarantines + more, quarantined_times=health.quarantined_times + more)


def _better(health: MachineHealth, *, policy: HealthPolicy, at_ms: int) -> MachineHealth:
    state, reason = _verdict(health, policy=policy, at_ms=at_ms)
    fewer = int(health.state is MachineState.QUARANTINED and not health.by_hand)
    quarantines = max(0, health.quarantines - fewer)
    if state is MachineState.OK and not health.proven and (quarantines or policy.new_on_probation):
        state, reason = MachineState.PROBATION, "it has yet to succeed"
    if health.by_hand or _SEVERITY[state] >= _SEVERITY[health.state]:
        return health
    return replace(_moved(health, state, reason, at_ms=at_ms), quarantines=quarantines)


def _moved(health: MachineHealth, state: MachineState, reason: str, *, at_ms: int) -> MachineHealth:
    return replace(health, state=state, reason=reason, since_ms=at_ms)


def _scored(health: MachineHealth, *, policy: HealthPolicy, at_ms: int, more: float = 0.0) -> MachineHealth:
    strikes = _rounded(strikes_at(health, policy=policy, at_ms=at_ms) + more)
    return replace(health, strikes=strikes, scored_at_ms=at_ms)


def _rounded(strikes: float) -> float:
    """Return 0 for strikes of at most 0.01, because sums of powers never reach 0 exactly."""
    return strikes if strikes > 0.01 else 0.0


def _decay(age_ms: int, *, policy: HealthPolicy) -> float:
    return float(0.5 ** (max(0, age_ms) / (policy.half_life_s * 1000)))
