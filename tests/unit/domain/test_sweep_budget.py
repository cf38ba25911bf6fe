"""What the budget of a sweep lets begin, and how a sweep ends, for any jobs."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.billing.budget import reservation_micro_usd
from giornata.domain.jobs.job import TERMINAL, JobEvent, JobState, next_state
from giornata.domain.jobs.sweep import SweptJob, plan_sweep, stands_still, sweep_end

STATES = st.sampled_from(JobState)


@st.composite
def swept(draw: st.DrawFn, number: int, known: bool) -> SweptJob:
    state = draw(STATES)
    begun = draw(st.booleans()) or state in {JobState.RUNNING, JobState.SUCCEEDED}
    return SweptJob(
        id=f"job_{number}",
        state=state,
        begun=begun,
        held_back=state is JobState.PAUSED and draw(st.booleans()),
        spent_micro_usd=draw(st.integers(0, 1000)) if begun else 0,
        total_steps=draw(st.integers(1, 100)),
        likely_micro_usd=draw(st.integers(0, 500)) if known else None,
    )


@st.composite
def sweeps(draw: st.DrawFn, *, known: bool = True) -> list[SweptJob]:
    return [draw(swept(number, known)) for number in range(draw(st.integers(1, 8)))]


def after(jobs: list[SweptJob], budget: int | None) -> list[SweptJob]:
    plan = plan_sweep(jobs, budget_micro_usd=budget)
    moved = {
        **{job_id: {"state": JobState.QUEUED, "held_back": False} for job_id in plan.begin},
        **{job_id: {"state": JobState.PAUSED, "held_back": True} for job_id in plan.hold_back},
    }
    return [replace(job, **moved.get(job.id, {})) for job in jobs]  # type: ignore[arg-type]


def still(job: SweptJob) -> int:
    return max(0, reservation_micro_usd(budget=None, estimate=job.likely_micro_usd) - job.spent_micro_usd)


@given(sweeps(), st.integers(0, 5000))
def test_jobs_that_a_plan_starts_fit_the_budget_beside_running_ones(jobs: list[SweptJob], budget: int) -> None:
    planned = after(jobs, budget)
    begins = [job for job in planned if job.state is JobState.QUEUED and not job.begun]
    at_work = [job for job in planned if job.state not in TERMINAL and not job.may_begin]
    needed = sum(job.spent_micro_usd for job in jobs) + sum(map(still, begins)) + sum(map(still, at_work))
    assert not begins or needed <= budget


@given(sweeps(), st.integers(0, 5000))
def test_a_plan_that_was_followed_asks_for_nothing_more(jobs: list[SweptJob], budget: int) -> None:
    # A job that begun, and was held back, is at work again once it is queued: its money stays set aside.
    planned = after(jobs, budget)
    again = plan_sweep(planned, budget_micro_usd=budget)
    assert not set(again.begin) & {job.id for job in planned if not job.held_back}
    assert not {job.id for job in planned if job.held_back and job.id in again.begin}


@given(sweeps(known=False), st.integers(1, 5000))
def test_of_jobs_of_unknown_cost_at_most_one_begins(jobs: list[SweptJob], budget: int) -> None:
    unknown = [replace(job, state=JobState.PAUSED, held_back=True, begun=False, spent_micro_usd=0) for job in jobs]
    assert plan_sweep(unknown, budget_micro_usd=budget).begin == (unknown[0].id,)


@given(sweeps())
def test_without_a_budget_nothing_is_held_back(jobs: list[SweptJob]) -> None:
    plan = plan_sweep(jobs, budget_micro_usd=None)
    assert plan.hold_back == ()
    assert set(plan.begin) == {job.id for job in jobs if job.held_back}


@given(st.dictionaries(STATES, st.integers(1, 5), min_size=1))
def test_a_sweep_ends_exactly_when_all_of_its_jobs_have(counts: dict[JobState, int]) -> None:
    end = sweep_end(counts)
    assert (end is None) == bool(set(counts) - TERMINAL)
    if end is not None:
        assert next_state(JobState.RUNNING, end) in TERMINAL
        assert (end is JobEvent.SUCCEED) == (JobState.SUCCEEDED in counts)
    assert not (stands_still(counts) and JobState.RUNNING in counts)
