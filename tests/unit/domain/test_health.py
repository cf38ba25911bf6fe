"""What is held against a machine, and what it takes to be trusted again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import (
    RELIABLE_AFTER,
    Failure,
    HealthPolicy,
    MachineHealth,
    MachineState,
    common_cause,
    confirmed,
    cool_down_ends_ms,
    cooled_down,
    failed,
    let_go,
    newcomer,
    shut_out,
    strikes_at,
    succeeded,
    taken_back,
    void_failures,
    weight_of,
)

POLICY = HealthPolicy()
START_MS = 1_790_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
OK, PROBATION, QUARANTINED = MachineState.OK, MachineState.PROBATION, MachineState.QUARANTINED


def proven(**changes: object) -> MachineHealth:
    """A machine that has done its share."""
    health = newcomer("machine-1", "train", policy=POLICY, at_ms=START_MS)
    for _ in range(RELIABLE_AFTER):
        health = succeeded(health, policy=POLICY, at_ms=START_MS)
    return replace(health, **changes)  # type: ignore[arg-type]


def failure(
    number: int, at_ms: int, reason: Reason = Reason.NODE_DRIVER, *, began_at_ms: int | None = None, **more: object
) -> Failure:
    """Failure `number`, which began when it ended unless said otherwise."""
    values = {
        "attempt_id": f"att_{number}",
        "job_id": f"job_{number}",
        "reason": reason,
        "began_at_ms": at_ms if began_at_ms is None else began_at_ms,
        "at_ms": at_ms,
        "weight": weight_of(reason, policy=POLICY),
        **more,
    }
    return Failure(**values)  # type: ignore[arg-type]


def after(health: MachineHealth, *failures: Failure) -> MachineHealth:
    for each in failures:
        health = failed(health, each, policy=POLICY)
    return health


@pytest.mark.parametrize("reason", Reason)
def test_strike_weight_is_zero_for_reasons_that_are_not_machine_faults(reason: Reason) -> None:
    whole = {Reason.NODE_DRIVER, Reason.NODE_VRAM, Reason.NODE_DISK, Reason.NODE_DOWNLOAD, Reason.TOO_SLOW}
    whole |= {Reason.NODE_START, Reason.AUDIT_MISMATCH}
    expected = 1.0 if reason in whole else 0.5 if reason is Reason.CRASHED else 0.0
    assert weight_of(reason, policy=POLICY) == expected


def test_strikes_halve_with_each_half_life() -> None:
    struck = after(proven(), failure(1, START_MS))
    half_life_ms = round(POLICY.half_life_s * 1000)
    assert strikes_at(struck, policy=POLICY, at_ms=START_MS + half_life_ms) == pytest.approx(0.5)
    assert strikes_at(struck, policy=POLICY, at_ms=START_MS + 3 * half_life_ms) == pytest.approx(0.125)


def test_a_clock_that_is_set_back_makes_no_strike_grow() -> None:
    struck = after(proven(), failure(1, START_MS))
    assert strikes_at(struck, policy=POLICY, at_ms=START_MS - HOUR_MS) == 1.0


def test_a_week_old_failure_counts_nothing_any_more() -> None:
    struck = after(proven(), failure(1, START_MS), failure(2, START_MS + HOUR_MS))
    assert struck.state is PROBATION
    again = after(succeeded(struck, policy=POLICY, at_ms=START_MS + 7 * 24 * HOUR_MS))
    again = after(again, failure(3, START_MS + 7 * 24 * HOUR_MS + 1))
    assert again.state is OK
    assert again.strikes == pytest.approx(1.0)


def test_the_quota_halves_down_to_its_floor_and_doubles_up_to_its_cap() -> None:
    health, quotas = proven(), []
    for number in range(6):
        health = failed(health, failure(number, START_MS + number * HOUR_MS), policy=POLICY)
        quotas.append(health.quota)
    assert quotas == [8, 4, 2, 1, 1, 1]
    for number in range(6):
        health = succeeded(health, policy=POLICY, at_ms=START_MS + 10 * HOUR_MS + number)
        quotas.append(health.quota)
    assert quotas[6:] == [2, 4, 8, 16, 16, 16]


def test_three_failures_within_minutes_are_a_burst() -> None:
    health = after(proven(), *(failure(number, START_MS + number * MINUTE_MS, Reason.CRASHED) for number in (1, 2)))
    assert health.state is OK
    health = after(health, failure(3, START_MS + 3 * MINUTE_MS, Reason.CRASHED))
    assert (health.state, health.quarantines) == (QUARANTINED, 1)
    assert health.reason == "3 failures within 10 min: 3 × crashed"


def test_three_crashes_within_hours_are_no_burst() -> None:
    crashes = [failure(number, START_MS + number * HOUR_MS, Reason.CRASHED) for number in (1, 2, 3)]
    assert after(proven(), *crashes).state is OK


def test_a_new_machine_has_less_credit() -> None:
    new = newcomer("machine-1", "train", policy=POLICY, at_ms=START_MS)
    assert new.state is OK
    once = after(new, failure(1, START_MS))
    assert once.state is PROBATION
    assert after(once, failure(2, START_MS + MINUTE_MS)).state is QUARANTINED


def test_single_failure_of_proven_machine_keeps_it_ok() -> None:
    assert after(proven(), failure(1, START_MS)).state is OK


def test_new_machines_may_be_put_on_probation_by_policy() -> None:
    strict = HealthPolicy(new_on_probation=True)
    new = newcomer("machine-1", "train", policy=strict, at_ms=START_MS)
    assert new.state is PROBATION
    assert succeeded(new, policy=strict, at_ms=START_MS).state is OK


def test_attempts_that_one_event_ended_count_once() -> None:
    beside = [
        failure(number, START_MS + number, Reason.NODE_DISK, began_at_ms=START_MS - HOUR_MS) for number in range(8)
    ]
    health = after(proven(), *beside)
    assert (health.state, health.strikes, health.quota) == (OK, pytest.approx(1.0), 8)


def test_attempts_one_after_the_other_count_each() -> None:
    one_by_one = [failure(number, START_MS + number * MINUTE_MS, Reason.NODE_DISK) for number in range(3)]
    assert after(proven(), *one_by_one).state is QUARANTINED


def test_a_report_that_comes_twice_counts_once() -> None:
    once = after(proven(), failure(1, START_MS))
    assert after(once, failure(1, START_MS)) == once


def test_a_success_ends_probation_and_halves_the_strikes() -> None:
    health = after(proven(), failure(1, START_MS), failure(2, START_MS + HOUR_MS))
    assert health.state is PROBATION
    health = succeeded(health, policy=POLICY, at_ms=START_MS + HOUR_MS)
    assert (health.state, health.proven) == (OK, True)
    assert health.strikes < 1.0


def test_a_success_does_not_end_a_quarantine() -> None:
    health = after(proven(), *(failure(number, START_MS + number) for number in range(3)))
    assert succeeded(health, policy=POLICY, at_ms=START_MS + MINUTE_MS).state is QUARANTINED


def test_a_canary_ends_probation_but_wipes_nothing_off() -> None:
    health = after(proven(), failure(1, START_MS), failure(2, START_MS + 1000))
    cleared = succeeded(health, policy=POLICY, at_ms=START_MS + 1000, canary=True)
    assert (cleared.state, cleared.quota) == (OK, health.quota * 2)
    assert cleared.strikes == pytest.approx(health.strikes)


def test_a_canary_that_fails_leads_into_quarantine() -> None:
    health = after(
        newcomer("machine-1", "train", policy=POLICY, at_ms=START_MS), failure(1, START_MS, Reason.CRASHED)
    )
    assert health.state is PROBATION
    dead = after(health, failure(2, START_MS + HOUR_MS, Reason.CRASHED, weight=1.0, canary=True))
    assert (dead.state, dead.reason) == (QUARANTINED, "its canary failed")


def test_strikes_and_quarantine_are_undone_when_job_was_to_blame() -> None:
    before = proven()
    bad = [failure(number, START_MS + number * MINUTE_MS, Reason.CRASHED) for number in range(3)]
    struck = after(before, *bad)
    assert struck.state is QUARANTINED
    healed = taken_back(struck, lambda each: True, policy=POLICY, at_ms=START_MS + HOUR_MS)
    assert (healed.state, healed.strikes, healed.quota, healed.quarantines) == (OK, 0.0, before.quota, 0)
    assert not healed.failures


def test_strikes_of_remaining_failures_stand_when_one_is_taken_back() -> None:
    mixed = [failure(number, START_MS + number * MINUTE_MS) for number in range(3)]
    struck = after(proven(), *mixed, failure(9, START_MS + 4 * MINUTE_MS, Reason.CRASHED))
    healed = taken_back(struck, lambda each: each.attempt_id == "att_9", policy=POLICY, at_ms=START_MS + HOUR_MS)
    assert healed.state is QUARANTINED
    assert healed.strikes == pytest.approx(
        strikes_at(after(proven(), *mixed), policy=POLICY, at_ms=START_MS + HOUR_MS), rel=1e-3
    )


def test_a_suspicion_that_proves_right_weighs_as_a_fault() -> None:
    suspected = after(proven(), failure(1, START_MS, Reason.CRASHED))
    sure = confirmed(suspected, {"att_1"}, policy=POLICY, at_ms=START_MS)
    assert (suspected.strikes, sure.strikes) == (0.5, 1.0)
    assert confirmed(sure, {"att_1"}, policy=POLICY, at_ms=START_MS) == sure


def test_the_reason_says_what_is_held_against_it_now() -> None:
    new = newcomer("machine-1", "train", policy=POLICY, at_ms=START_MS)
    suspected = after(new, failure(1, START_MS, Reason.CRASHED))
    sure = confirmed(suspected, {"att_1"}, policy=POLICY, at_ms=START_MS)
    assert (suspected.reason, sure.reason) == ("0.5 strikes: 1 × crashed", "1.0 strikes: 1 × crashed")
    assert sure.since_ms == suspected.since_ms


def test_a_suspicion_of_another_attempt_is_left_alone() -> None:
    suspected = after(proven(), failure(1, START_MS, Reason.CRASHED))
    assert confirmed(suspected, {"att_7"}, policy=POLICY, at_ms=START_MS) == suspected


def test_quarantine_ends_after_a_time_that_doubles() -> None:
    health, at_ms, lengths = proven(), START_MS, []
    for turn in range(3):
        health = after(health, *(failure(turn * 10 + number, at_ms + number) for number in range(3)))
        assert health.state is QUARANTINED
        ends_ms = cool_down_ends_ms(health, policy=POLICY)
        assert ends_ms is not None
        lengths.append((ends_ms - health.since_ms) / 1000)
        assert cooled_down(health, policy=POLICY, at_ms=ends_ms - 1) == health
        health = cooled_down(health, policy=POLICY, at_ms=ends_ms)
        assert (health.state, health.quota, health.proven) == (PROBATION, 1, False)
        at_ms = ends_ms + 1
    assert lengths == [900, 1800, 3600]


def test_ten_successes_make_the_earlier_quarantines_forgotten() -> None:
    health = proven(quarantines=4)
    for _ in range(RELIABLE_AFTER):
        health = succeeded(health, policy=POLICY, at_ms=START_MS)
    assert health.quarantines == 0


def test_machine_quarantined_by_hand_stays_out_until_released_by_hand() -> None:
    out = shut_out(proven(), reason="smells of smoke", at_ms=START_MS)
    assert cool_down_ends_ms(out, policy=POLICY) is None
    assert cooled_down(out, policy=POLICY, at_ms=START_MS + 1000 * HOUR_MS) == out
    assert taken_back(out, lambda each: True, policy=POLICY, at_ms=START_MS).state is QUARANTINED
    assert let_go(out, policy=POLICY, at_ms=START_MS).state is OK


def test_twice_too_slow_within_a_day_is_enough_though_canaries_succeed() -> None:
    health = after(proven(), failure(1, START_MS, Reason.TOO_SLOW))
    health = succeeded(health, policy=POLICY, at_ms=START_MS + HOUR_MS, canary=True)
    health = after(health, failure(2, START_MS + 5 * HOUR_MS, Reason.TOO_SLOW))
    assert health.state is QUARANTINED
    late = after(
        after(proven(), failure(1, START_MS, Reason.TOO_SLOW)), failure(2, START_MS + 25 * HOUR_MS, Reason.TOO_SLOW)
    )
    assert late.state is OK


def test_a_crash_is_void_when_the_job_failed_and_a_fault_when_it_had_it_everywhere() -> None:
    rows = [("a", "m1", Reason.CRASHED), ("b", "m2", Reason.NODE_DISK), ("c", "m3", Reason.CRASHED)]
    assert void_failures(rows, alike_on=3) == {"a", "c"}
    everywhere = [(f"a{number}", f"m{number}", Reason.NODE_VRAM) for number in range(3)]
    assert void_failures(everywhere, alike_on=3) == {"a0", "a1", "a2"}
    same_machine = [(f"a{number}", "m1", Reason.NODE_VRAM) for number in range(3)]
    assert void_failures(same_machine, alike_on=3) == set()


@pytest.mark.parametrize(
    ("failing", "fine", "expected"),
    [(40, 0, True), (3, 0, True), (2, 0, False), (1, 39, False), (3, 37, False), (21, 19, True), (20, 20, False)],
)
def test_common_cause_is_found_when_most_machines_fail_several_jobs(failing: int, fine: int, expected: bool) -> None:
    sick = {f"sick-{number}" for number in range(failing)}
    well = {f"well-{number}" for number in range(fine)}
    assert common_cause(failing=sick, fine=well, jobs=2, policy=POLICY) is expected
    assert common_cause(failing=sick, fine=well | sick, jobs=2, policy=POLICY) is expected
    assert not common_cause(failing=sick, fine=well, jobs=1, policy=POLICY), "then the job may be the cause"


REASONS = st.sampled_from([Reason.NODE_DRIVER, Reason.CRASHED, Reason.NODE_DISK, Reason.TOO_SLOW])
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["fail", "succeed", "canary", "cool"]), REASONS, st.integers(0, 5_000_000))
)


@given(ACTIONS)
def test_machine_health_stays_in_bounds_and_all_failures_can_be_taken_back(
    actions: list[tuple[str, Reason, int]],
) -> None:
    health, at_ms = newcomer("machine-1", "train", policy=POLICY, at_ms=START_MS), START_MS
    for number, (action, reason, later_ms) in enumerate(actions):
        at_ms += later_ms
        if action == "fail":
            health = failed(health, failure(number, at_ms, reason), policy=POLICY)
        elif action == "cool":
            health = cooled_down(health, policy=POLICY, at_ms=at_ms)
        else:
            health = succeeded(health, policy=POLICY, at_ms=at_ms, canary=action == "canary")
        assert POLICY.quota_floor <= health.quota <= POLICY.quota_per_hour
        assert health.strikes >= 0
        assert health.quarantines <= health.quarantined_times
    innocent = taken_back(health, lambda each: True, policy=POLICY, at_ms=at_ms)
    assert not innocent.failures
    assert innocent.state is not QUARANTINED or innocent.strikes >= POLICY.quarantine_strikes_unproven
