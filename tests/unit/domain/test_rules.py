"""The rules of the domain, as properties."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import giornata
from giornata.domain import errors
from giornata.domain.billing.money import (
    MICRO_USD,
    MS_PER_HOUR,
    cost_micro_usd,
    cost_per_step_micro_usd,
    format_rate_usd,
    format_usd,
)
from giornata.domain.errors import Fault, GiornataError, IllegalTransition, InvalidInput
from giornata.domain.jobs.attempt import (
    PRIOR_MTBI_S,
    RENEWALS_PER_LEASE,
    checkpoint_interval_s,
    lease_expires_at_ms,
    mean_time_between_interruptions_s,
    must_stop,
    renew_every_s,
)
from giornata.domain.jobs.job import TERMINAL, TRANSITIONS, JobEvent, JobState, next_state, sources
from giornata.domain.jobs.reasons import (
    AMBIGUOUS_WHEN_SHARED,
    BAN,
    BLAME,
    INTERRUPTION,
    REPORTABLE_FAILURES,
    REPORTABLE_RELEASES,
    RETRY,
    STRIKE,
    Blame,
    Reason,
    job_fails,
)
from giornata.domain.jobs.routing import AFFINITY_WINDOW, Candidate, rank

# ---- jobs ----


@given(st.lists(st.sampled_from(JobEvent)))
def test_terminal_states_never_change(events: list[JobEvent]) -> None:
    state = JobState.QUEUED
    for event in events:
        before = state
        try:
            state = next_state(state, event)
        except IllegalTransition:
            assert state is before
        if before in TERMINAL:
            assert state is before


def test_the_states_with_no_way_out_are_the_terminal_ones() -> None:
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED, JobState.EXPIRED} == TERMINAL


@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, JobEvent)))
def test_the_table_is_total(state: JobState, event: JobEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
        assert state in sources(event)
    else:
        assert state not in sources(event)
        with pytest.raises(IllegalTransition, match=f"cannot {event} a job that is {state}"):
            next_state(state, event)


def test_every_state_is_reached_and_every_event_does_something() -> None:
    assert {JobState.QUEUED, *TRANSITIONS.values()} == set(JobState)
    assert {event for _, event in TRANSITIONS} == set(JobEvent)


# ---- reasons ----


@pytest.mark.parametrize("table", [BLAME, RETRY, STRIKE, BAN, INTERRUPTION, AMBIGUOUS_WHEN_SHARED])
def test_every_reason_has_a_row_in_every_table(table: dict[Reason, object]) -> None:
    assert set(table) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_strike_retry_and_ban_tables_agree_with_blame_of_reason(reason: Reason) -> None:
    blame = BLAME[reason]
    assert not (STRIKE[reason] and blame is not Blame.MACHINE), "only a machine's own fault is held against it"
    assert not (RETRY[reason] and blame in {Blame.JOB, Blame.USER, Blame.NOBODY})
    assert BAN[reason] <= RETRY[reason], "a ban means something only when the job goes on"


def test_ambiguous_reasons_of_shared_batch_are_reportable_retried_and_not_blamed_on_job() -> None:
    open_ones = {reason for reason, is_open in AMBIGUOUS_WHEN_SHARED.items() if is_open}
    assert open_ones <= REPORTABLE_FAILURES
    assert all(RETRY[reason] for reason in open_ones)
    assert not any(BLAME[reason] is Blame.JOB for reason in open_ones)
    assert Reason.CRASHED in open_ones
    assert Reason.NODE_DISK not in open_ones


def test_reportable_reasons_are_failures_or_releases_and_the_rest_are_server_decided() -> None:
    assert not REPORTABLE_FAILURES & REPORTABLE_RELEASES
    decided_by_server = {
        Reason.SUCCEEDED,
        Reason.CANCELED,
        Reason.LEASE_EXPIRED,
        Reason.NODE_START,
        Reason.OVER_BUDGET,
        Reason.SUPERSEDED,
        Reason.AUDIT_MISMATCH,
    }
    assert set(Reason) - REPORTABLE_FAILURES - REPORTABLE_RELEASES == decided_by_server


@given(
    reason=st.sampled_from(Reason),
    crashed=st.integers(0, 20),
    max_crashed=st.integers(1, 10),
    fruitless=st.integers(0, 30),
    max_fruitless=st.integers(1, 20),
)
def test_job_failure_follows_blame_of_reason_and_crash_and_fruitless_limits(
    reason: Reason, crashed: int, max_crashed: int, fruitless: int, max_fruitless: int
) -> None:
    fails = job_fails(
        reason,
        crashes=crashed,
        max_crashed_machines=max_crashed,
        fruitless=fruitless,
        max_fruitless=max_fruitless,
    )
    if reason in {Reason.SUCCEEDED, Reason.CANCELED, Reason.OVER_BUDGET}:
        assert not fails
    elif BLAME[reason] is Blame.JOB:
        assert fails
    elif reason is Reason.CRASHED:
        assert fails is (crashed >= max_crashed or fruitless >= max_fruitless)
    else:
        assert fails is (fruitless >= max_fruitless)


# ---- order ----

CANDIDATES = st.builds(
    Candidate,
    job_id=st.text("abc", min_size=1, max_size=3),
    audit=st.booleans(),
    interrupted=st.booleans(),
    priority=st.integers(-100, 100),
    pinned=st.booleans(),
    turn=st.integers(0, 5 * AFFINITY_WINDOW),
    model_held=st.booleans(),
)


@given(CANDIDATES, CANDIDATES)
def test_the_order_is_audit_pinned_interrupted_priority_window_model_turn(one: Candidate, two: Candidate) -> None:
    first, second = sorted([one, two], key=rank)
    if one.audit != two.audit:
        assert second.audit
    elif one.pinned != two.pinned:
        assert first.pinned
    elif one.interrupted != two.interrupted:
        assert first.interrupted
    elif one.priority != two.priority:
        assert first.priority > second.priority
    elif abs(one.turn - two.turn) >= AFFINITY_WINDOW:
        assert first.turn < second.turn
    elif rank(one)[:5] == rank(two)[:5] and one.model_held != two.model_held:
        assert first.model_held
    elif rank(one)[:6] == rank(two)[:6]:
        assert (first.turn, first.job_id) <= (second.turn, second.job_id)


@given(CANDIDATES, CANDIDATES)
def test_no_two_jobs_have_the_same_place(one: Candidate, two: Candidate) -> None:
    assert (rank(one) == rank(two)) <= (one.job_id == two.job_id)


# ---- money ----


@given(price=st.integers(0, 10**9), billed_ms=st.integers(0, 30 * 24 * MS_PER_HOUR))
def test_cost_is_exact_to_half_a_micro_dollar(price: int, billed_ms: int) -> None:
    cost = cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=billed_ms)
    assert abs(2 * (cost * MS_PER_HOUR - price * billed_ms)) <= MS_PER_HOUR


@given(price=st.integers(0, 10**9), one_ms=st.integers(0, 10**9), two_ms=st.integers(0, 10**9))
def test_cost_grows_with_time_and_splitting_an_interval_hardly_matters(price: int, one_ms: int, two_ms: int) -> None:
    one, two, both = (
        cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=ms) for ms in (one_ms, two_ms, one_ms + two_ms)
    )
    assert both >= max(one, two)
    assert abs(both - one - two) <= 1


@pytest.mark.parametrize(("price", "billed_ms"), [(-1, 0), (0, -1)])
def test_negative_money_and_time_are_refused(price: int, billed_ms: int) -> None:
    with pytest.raises(ValueError, match="never negative"):
        cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=billed_ms)


def test_an_hour_costs_its_price() -> None:
    assert cost_micro_usd(price_micro_usd_per_hour=123_457, billed_ms=MS_PER_HOUR) == 123_457


def test_cost_per_step_needs_a_step() -> None:
    assert cost_per_step_micro_usd(total_micro_usd=100, steps=0) is None
    assert cost_per_step_micro_usd(total_micro_usd=100, steps=8) == 12.5


@pytest.mark.parametrize(
    ("micro_usd", "text"),
    [
        (None, "–"),
        (0, "$0"),
        (1, "$0.000001"),
        (240, "$0.00024"),
        (2259, "$0.002259"),
        (21_345, "$0.0213"),
        (600_000, "$0.60"),
        (1_230_000, "$1.23"),
        (1_234_560_000, "$1,234.56"),
        (0.00123, "$0.00000000123"),
    ],
)
def test_dollars_as_people_read_them(micro_usd: float | None, text: str) -> None:
    assert format_usd(micro_usd) == text
    assert MICRO_USD == 1_000_000


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0, "$0"), (2.13e-6, "$0.00000213"), (4e-10, "$0.000000000400"), (0.0213, "$0.0213"), (3.5, "$3.50")],
)
def test_a_rate_has_three_digits_however_small_it_is(usd: float, text: str) -> None:
    assert format_rate_usd(usd) == text


# ---- leases ----


@given(lease_s=st.floats(1, 3600), renewed_s=st.floats(0, 1e6), elapsed_s=st.floats(0, 7200))
def test_a_node_stops_by_its_own_clock_after_one_lease_and_not_before(
    lease_s: float, renewed_s: float, elapsed_s: float
) -> None:
    now_s = renewed_s + elapsed_s
    stops = must_stop(last_renewed_monotonic_s=renewed_s, now_monotonic_s=now_s, lease_s=lease_s)
    assert stops is (now_s - renewed_s >= lease_s)
    assert not must_stop(
        last_renewed_monotonic_s=renewed_s, now_monotonic_s=renewed_s + renew_every_s(lease_s), lease_s=lease_s
    )


@given(now_ms=st.integers(0, 2**45), lease_s=st.floats(1, 3600))
def test_two_lost_beats_in_a_row_cost_nothing(now_ms: int, lease_s: float) -> None:
    expires_ms = lease_expires_at_ms(now_ms=now_ms, lease_s=lease_s)
    third_beat_ms = now_ms + renew_every_s(lease_s) * 1000 * RENEWALS_PER_LEASE
    assert abs(expires_ms - third_beat_ms) <= 1


# ---- cadence ----


def test_mean_time_between_interruptions_without_history_is_the_prior() -> None:
    assert mean_time_between_interruptions_s(observed_run_s=0, interruptions=0) == PRIOR_MTBI_S


@given(run_s=st.floats(0, 1e9), interruptions=st.integers(0, 10**6))
def test_the_estimate_lies_between_prior_and_history(run_s: float, interruptions: int) -> None:
    estimate_s = mean_time_between_interruptions_s(observed_run_s=run_s, interruptions=interruptions)
    assert estimate_s > 0
    if interruptions:
        bounds = sorted([PRIOR_MTBI_S, run_s / interruptions])
        assert bounds[0] * (1 - 1e-9) <= estimate_s <= bounds[1] * (1 + 1e-9)


@given(
    cost_s=st.floats(0, 1e4),
    mtbi_s=st.floats(1e-3, 1e8),
    max_at_risk_s=st.floats(1e-3, 1e5),
    more_s=st.floats(0, 1e4),
)
def test_checkpoints_are_never_rarer_than_allowed_and_rarer_when_they_cost_more(
    cost_s: float, mtbi_s: float, max_at_risk_s: float, more_s: float
) -> None:
    interval_s = checkpoint_interval_s(cost_s=cost_s, mtbi_s=mtbi_s, max_at_risk_s=max_at_risk_s)
    assert cost_s <= interval_s <= max(cost_s, max_at_risk_s)
    dearer_s = checkpoint_interval_s(cost_s=cost_s + more_s, mtbi_s=mtbi_s, max_at_risk_s=max_at_risk_s)
    assert dearer_s >= interval_s


def test_checkpoint_interval_matches_youngs_formula() -> None:
    assert checkpoint_interval_s(cost_s=2, mtbi_s=100, max_at_risk_s=1000) == 20


@pytest.mark.parametrize("wrong", [{"cost_s": -1}, {"mtbi_s": 0}, {"max_at_risk_s": 0}])
def test_impossible_cadences_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="required"):
        checkpoint_interval_s(**{"cost_s": 1.0, "mtbi_s": 1.0, "max_at_risk_s": 1.0} | wrong)


# ---- errors ----


def _tree(error: type[GiornataError]) -> set[type[GiornataError]]:
    return {error}.union(*(_tree(child) for child in error.__subclasses__()))


def test_every_error_has_a_code_of_its_own_and_stands_in_the_tree_at_the_head_of_the_file() -> None:
    # A driver may narrow one down for its own use: to others it is the same error.
    tree = {each for each in _tree(GiornataError) if each.__module__ == errors.__name__}
    assert len({error.code for error in tree}) == len(tree)
    assert all(error.__name__ in (errors.__doc__ or "") for error in tree)
    assert all(error.code in (errors.__doc__ or "") for error in tree - {GiornataError})


def test_invalid_input_tells_every_fault() -> None:
    error = InvalidInput([Fault(where="a", message="is wrong", hint="mend it"), Fault(where="b", message="too")])
    assert str(error) == "a: is wrong (mend it); b: too"


def test_the_rules_need_nothing_but_the_standard_library() -> None:
    program = (
        "import pkgutil, importlib, sys, giornata.domain as d\n"
        "[importlib.import_module(m.name) for m in pkgutil.iter_modules(d.__path__, 'giornata.domain.')]\n"
        "known = set(sys.stdlib_module_names) | {'giornata', '__main__'}\n"
        "used = {m.split('.')[0] for m in sys.modules if not m.startswith('_sysconfigdata')}\n"
        "print(sorted(used - known))"
    )
    source = str(next(iter(giornata.__path__)).removesuffix("/giornata"))
    command = [sys.executable, "-S", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": source})
    assert found.stdout == "[]\n"
