"""Which seconds of an attempt were of use."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.billing.accounting import Run, Seconds, account, preparation_ms, total
from giornata.domain.jobs.reasons import Reason

# 10 s until the first step was done, then 9 steps of 10 s each.
RUN = Run(
    started_at_ms=0,
    first_step_at_ms=10_000,
    seen_at_ms=100_000,
    ended_at_ms=100_000,
    reason=Reason.PREEMPTED,
    silent=False,
    start_step=20,
    last_step=30,
    committed_step=25,
)


@pytest.mark.parametrize(
    ("change", "useful_s", "lost_s", "at_risk_s"),
    [
        ({}, 50, 50, 0),
        ({"committed_step": 30}, 100, 0, 0),
        ({"committed_step": 21}, 10, 90, 0),
        ({"committed_step": 20}, 0, 100, 0),
        ({"committed_step": 0}, 0, 100, 0),
        ({"reason": Reason.SUCCEEDED, "committed_step": 20}, 100, 0, 0),
        ({"reason": None, "ended_at_ms": None}, 50, 0, 50),
        ({"reason": Reason.LEASE_EXPIRED, "silent": True, "ended_at_ms": 900_000}, 50, 50, 0),
        ({"first_step_at_ms": None, "last_step": 20, "committed_step": 20}, 0, 100, 0),
        ({"seen_at_ms": 5, "ended_at_ms": 0, "first_step_at_ms": 5}, 0, 0, 0),
        ({"last_step": 21, "committed_step": 21}, 100, 0, 0),
    ],
    ids=str,
)
def test_seconds_count_up_to_the_last_committed_step(
    change: dict[str, object], useful_s: int, lost_s: int, at_risk_s: int
) -> None:
    expected = Seconds(useful_ms=useful_s * 1000, lost_ms=lost_s * 1000, at_risk_ms=at_risk_s * 1000)
    assert account(replace(RUN, **change)) == expected


@given(
    first=st.none() | st.integers(0, 10**6),
    seen=st.integers(0, 10**6),
    ended=st.none() | st.integers(0, 10**6),
    reason=st.none() | st.sampled_from(Reason),
    silent=st.booleans(),
    steps=st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100)),
)
def test_each_attempt_is_counted_once(first, seen, ended, reason, silent, steps) -> None:
    start, last, committed = steps
    run = Run(
        started_at_ms=0,
        first_step_at_ms=first,
        seen_at_ms=seen,
        ended_at_ms=ended,
        reason=reason,
        silent=silent,
        start_step=start,
        last_step=last,
        committed_step=committed,
    )
    split = account(run)
    assert min(split.useful_ms, split.lost_ms, split.at_risk_ms) >= 0
    end = seen if ended is None or silent else ended
    assert split.useful_ms + split.lost_ms + split.at_risk_ms == end
    assert split.lost_ms == 0 or split.at_risk_ms == 0


# The first beat, at 20 s, told of step 4, the latest, at 80 s, of step 24: 3 s a step, so the first began at 8 s.
TOLD = replace(
    RUN,
    first_step_at_ms=20_000,
    start_step=0,
    last_step=28,
    committed_step=28,
    first_step=4,
    stepped_to=24,
    stepped_at_ms=80_000,
)


@pytest.mark.parametrize(
    ("change", "preparation_s"),
    [
        ({}, 8),
        ({"reason": Reason.SUCCEEDED}, 8),
        ({"reason": None, "ended_at_ms": None}, 8),
        # Nothing of it was of use, so what came before its steps was lost with them.
        ({"committed_step": 0}, 0),
        # One beat alone tells no pace: the first step was made by then.
        ({"stepped_to": 4, "stepped_at_ms": 20_000}, 20),
        ({"first_step": None}, 20),
        ({"first_step": 20}, 0),
        # No beat told of a step.
        ({"first_step_at_ms": None, "reason": Reason.SUCCEEDED}, 0),
    ],
    ids=str,
)
def test_attempt_seconds_before_first_step_count_as_preparation(
    change: dict[str, object], preparation_s: int
) -> None:
    assert preparation_ms(replace(TOLD, **change)) == preparation_s * 1000


def test_a_jobs_seconds_are_those_of_its_attempts() -> None:
    part = Seconds(useful_ms=1, lost_ms=2, at_risk_ms=3)
    assert total([part, part]) == Seconds(useful_ms=2, lost_ms=4, at_risk_ms=6)
    assert total([]) == Seconds()
