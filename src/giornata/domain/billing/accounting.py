"""Divide the seconds of an attempt into useful and lost ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from giornata.domain.jobs.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The facts about an attempt that the accounting uses. Instants are epoch milliseconds.

    `seen_at_ms` is the last proof that the node lived; `reason` is None while the attempt has not ended. A node
    that fell silent proved nothing after `seen_at_ms`, however much later its attempt was ended. The first
    heartbeat that told of a step told of `first_step`; the latest told of `stepped_to`, at `stepped_at_ms`.
    """

    started_at_ms: int
    first_step_at_ms: int | None
    seen_at_ms: int
    ended_at_ms: int | None
    reason: Reason | None
    silent: bool
    start_step: int
    last_step: int
    committed_step: int
    first_step: int | None = None
    stepped_to: int | None = None
    stepped_at_ms: int | None = None


class AttemptSpan(Protocol):
    """The row of an attempt, from any query."""

    @property
    def started_at_ms(self) -> int: ...
    @property
    def first_step_at_ms(self) -> int | None: ...
    @property
    def renewed_at_ms(self) -> int: ...
    @property
    def ended_at_ms(self) -> int | None: ...
    @property
    def lapsed(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def start_step(self) -> int: ...
    @property
    def last_step(self) -> int: ...
    @property
    def committed_step(self) -> int: ...


def run_of(attempt: AttemptSpan) -> Run:
    """Build the Run of an attempt's row."""
    reason = None if attempt.reason is None else Reason(attempt.reason)
    return Run(
        started_at_ms=attempt.started_at_ms,
        first_step_at_ms=attempt.first_step_at_ms,
        seen_at_ms=attempt.renewed_at_ms,
        ended_at_ms=attempt.ended_at_ms,
        reason=reason,
        silent=attempt.lapsed or reason in {Reason.LEASE_EXPIRED, Reason.SUPERSEDED},
        start_step=attempt.start_step,
        last_step=attempt.last_step,
        committed_step=attempt.committed_step,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Milliseconds of work. `at_risk_ms` is what a running attempt did since its last committed step."""

    useful_ms: int = 0
    lost_ms: int = 0
    at_risk_ms: int = 0


def account(run: Run) -> Seconds:
    """Split an attempt into useful, lost and undecided time.

    The whole run counts from its start to its end, to the last proof of life for one that is running or fell
    silent. All of it is useful when it succeeded. Otherwise it is useful up to the moment of the last committed
    step, which is read off the line between the first step's end (`first_step_at_ms`) and the end of the run
    (`last_step`); nothing is useful before a step was committed, because the next attempt begins afresh. The rest
    is lost, or at risk while the attempt runs.
    """
    end_ms = run.seen_at_ms if run.ended_at_ms is None or run.silent else run.ended_at_ms
    whole_ms = max(0, end_ms - run.started_at_ms)
    useful_ms = whole_ms if run.reason is Reason.SUCCEEDED else min(whole_ms, _until_committed_ms(run, end_ms))
    rest_ms = whole_ms - useful_ms
    return Seconds(
        useful_ms=useful_ms,
        lost_ms=0 if run.reason is None else rest_ms,
        at_risk_ms=rest_ms if run.reason is None else 0,
    )


def preparation_ms(run: Run) -> int:
    """Return the useful time before an attempt's first step: fetching files, loading the model, caching.

    The first step began before a heartbeat told of it: its beginning is read off the pace from then on. An attempt
    of which no heartbeat told a step is not known to have prepared anything.
    """
    if run.first_step_at_ms is None:
        return 0
    begun_ms: float = run.first_step_at_ms
    steps = (run.stepped_to or 0) - (run.first_step or 0)
    if run.first_step is not None and run.stepped_at_ms is not None and steps > 0:
        step_ms = max(0, run.stepped_at_ms - run.first_step_at_ms) / steps
        begun_ms -= (run.first_step - run.start_step) * step_ms
    return max(0, min(round(begun_ms) - run.started_at_ms, account(run).useful_ms))


def total(parts: Iterable[Seconds]) -> Seconds:
    """The sum over a job's attempts."""
    useful_ms = lost_ms = at_risk_ms = 0
    for part in parts:
        useful_ms += part.useful_ms
        lost_ms += part.lost_ms
        at_risk_ms += part.at_risk_ms
    return Seconds(useful_ms=useful_ms, lost_ms=lost_ms, at_risk_ms=at_risk_ms)


def _until_committed_ms(run: Run, end_ms: int) -> int:
    committed = run.committed_step - run.start_step
    done = max(run.last_step - run.start_step, committed)
    if committed <= 0:
        return 0
    first_ms = run.started_at_ms if run.first_step_at_ms is None else min(run.first_step_at_ms, end_ms)
    # With nothing after the committed step, the run is good to its end, as far as anybody knows.
    share = 1.0 if done == committed else (committed - 1) / (done - 1)
    return round(first_ms - run.started_at_ms + share * (end_ms - first_ms))
