"""Who is slow, and when moving pays; beside each case that fires stands one that must not."""

from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.machines.stragglers import (
    Mark,
    Member,
    StragglerPolicy,
    Trail,
    is_as_usual,
    is_slow,
    is_stuck,
    may_move_at_once,
    move_pays,
    paces_s,
    wait_for_a_node_s,
)

POLICY = StragglerPolicy()
# Like the machines of a fleet: a few per cent apart.
USUAL_S = (0.97, 0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.05)


def members(steps_s: tuple[float, ...] = USUAL_S, *, start_up_s: float = 60.0) -> list[Member]:
    return [
        Member(machine_id=f"machine-{number}", step_s=step_s, start_up_s=start_up_s)
        for number, step_s in enumerate(steps_s)
    ]


def slow(step_s: float, cohort: list[Member] | None = None) -> bool:
    return is_slow(step_s, machine_id="this", cohort=members() if cohort is None else cohort, policy=POLICY)


@pytest.mark.parametrize(("step_s", "expected"), [(12.0, True), (2.0, True), (1.8, True), (1.7, False)])
def test_twelve_times_slower_is_slow(step_s: float, expected: bool) -> None:
    assert slow(step_s) is expected


def test_heat_that_takes_a_fifth_is_not() -> None:
    assert not slow(1.25)


def test_spread_between_machines_of_one_gpu_model_makes_no_straggler() -> None:
    """Half as slow again as the median: the outliers of a published measurement (SC22, arXiv 2208.11035)."""
    assert not slow(1.5)
    assert not slow(1.5 * 1.1), "in an hour that is slower by a tenth"


def test_fast_is_never_slow() -> None:
    assert not slow(0.01)


def test_machines_that_are_all_alike_do_not_make_a_trifle_slow() -> None:
    assert not slow(1.7, members((1.0,) * 20)), "the spread is 0, and the floor holds"
    assert slow(1.8, members((1.0,) * 20))


def test_a_few_odd_machines_in_the_cohort_hide_nobody_while_sigma_would() -> None:
    odd = (*USUAL_S, 12.0, 14.0, 11.0)
    assert slow(12.0, members(odd))
    assert (12.0 - mean(odd)) / stdev(odd) < 2


def test_small_cohorts_say_nothing() -> None:
    assert not slow(12.0, members(USUAL_S[:5]))
    assert slow(12.0, members(USUAL_S[:6]))


def test_many_attempts_of_two_machines_say_nothing() -> None:
    two = [Member(machine_id=f"machine-{number % 2}", step_s=1.0, start_up_s=60.0) for number in range(20)]
    assert not slow(12.0, two)


def test_earlier_attempts_of_the_same_machine_prove_nothing() -> None:
    own = [Member(machine_id="this", step_s=12.0, start_up_s=60.0)] * 30
    assert slow(12.0, [*members(), *own]), "it cannot make itself usual"
    assert not slow(12.0, [*members(USUAL_S[:3]), *own]), "nor the cohort large"


@given(st.floats(0.01, 100), st.floats(0.01, 1.4))
def test_no_scale_of_time_makes_the_usual_slow(scale: float, factor: float) -> None:
    cohort = members(tuple(scale * each for each in USUAL_S))
    assert not slow(scale * factor, cohort)


@pytest.mark.parametrize(
    ("steps_left", "step_s", "wait_s", "expected"),
    [
        (1000, 12.0, 0.0, True),
        (5, 12.0, 0.0, False),  # 60 s here, 65 there
        (1000, 12.0, 20_000.0, False),  # a long wait
        (1000, 1.2, 0.0, False),  # a little slower
        (0, 12.0, 0.0, False),  # done
    ],
)
def test_moving_has_to_pay(steps_left: int, step_s: float, wait_s: float, expected: bool) -> None:
    assert move_pays(steps_left=steps_left, step_s=step_s, others=members(), wait_s=wait_s, policy=POLICY) is expected


def test_a_long_start_up_weighs_against_moving() -> None:
    hour = members(start_up_s=3600.0)
    assert not move_pays(steps_left=300, step_s=12.0, others=hour, wait_s=0.0, policy=POLICY)
    assert move_pays(steps_left=300, step_s=12.0, others=members(), wait_s=0.0, policy=POLICY)


@pytest.mark.parametrize(
    ("idle", "busy", "coming", "expected"),
    [(1, 0, 0, 0.0), (0, 0, 0, None), (0, 3, 0, 900.0), (0, 0, 1, 600.0), (0, 1, 1, 600.0), (2, 9, 9, 0.0)],
)
def test_wait_for_node_is_none_without_idle_busy_or_coming_nodes(
    idle: int, busy: int, coming: int, expected: float | None
) -> None:
    waits = wait_for_a_node_s(idle=idle, busy=busy, coming=coming, job_s=3600.0, coming_s=600.0)
    assert waits == expected


@pytest.mark.parametrize(
    ("idle", "busy", "coming", "ahead", "expected"),
    [
        *((2, 0, 0, 1, 0.0), (1, 0, 0, 1, None), (1, 0, 1, 1, 600.0), (0, 0, 1, 1, None)),
        *((0, 3, 0, 1, 1800.0), (0, 3, 0, 3, None), (2, 3, 0, 2, 900.0)),
    ],
)
def test_jobs_that_are_moved_already_take_the_first_nodes(
    idle: int, busy: int, coming: int, ahead: int, expected: float | None
) -> None:
    waits = wait_for_a_node_s(idle=idle, busy=busy, coming=coming, job_s=3600.0, coming_s=600.0, ahead=ahead)
    assert waits == expected


@pytest.mark.parametrize(("live", "most"), [(1, 1), (19, 1), (20, 2), (400, 40)])
def test_a_share_of_the_cohort_may_move_at_once(live: int, most: int) -> None:
    assert may_move_at_once(live=live, policy=POLICY) == most


@pytest.mark.parametrize(
    ("silent_s", "step_s", "expected"),
    [(1801.0, 1.0, True), (1700.0, 1.0, False), (3000.0, 200.0, False), (4001.0, 200.0, True)],
)
def test_stuck_is_a_multiple_of_its_own_steps_and_never_a_short_while(
    silent_s: float, step_s: float, expected: bool
) -> None:
    assert is_stuck(silent_s=silent_s, step_s=step_s, policy=POLICY) is expected


# Machines of a provider as they were met in one day: from a fast half to a slow tenth.
MET_S = (0.80, 0.82, 0.85, 0.88, 0.92, 0.96, 1.0, 1.04, 1.1, 1.18, 1.25, 1.4, 1.6, 2.2)


def after_a_day(jobs_of_fast: int = 25) -> list[Member]:
    """The seven fast machines went on to do job after job; the others did one each and were replaced or left."""
    met = members(MET_S)
    return [each for each in met for _ in range(jobs_of_fast if each.step_s <= 1.0 else 1)]


def test_jobs_that_fast_machines_do_make_nobody_slow() -> None:
    assert not slow(1.38, members(MET_S))
    assert not slow(1.38, after_a_day())
    assert paces_s(after_a_day()) == paces_s(members(MET_S))


def test_jobs_that_fast_machines_do_hide_nobody_who_is_slow() -> None:
    assert slow(3.0, members(MET_S))
    assert slow(3.0, after_a_day())


def test_a_machine_is_as_fast_as_the_median_of_its_attempts() -> None:
    one = [Member(machine_id="one", step_s=step_s, start_up_s=60.0) for step_s in (1.0, 1.1, 9.0)]
    assert paces_s([*one, Member(machine_id="two", step_s=2.0, start_up_s=60.0)]) == {"one": 1.1, "two": 2.0}


def as_usual(step_s: float, cohort: list[Member]) -> bool:
    return is_as_usual(step_s, ascending_s=sorted(paces_s(cohort).values()), policy=POLICY)


def test_most_are_as_usual_at_a_glance_and_who_is_slow_is_not() -> None:
    cohort = [*members(), Member(machine_id="this", step_s=12.0, start_up_s=60.0)]
    assert all(as_usual(each.step_s, cohort) for each in members())
    assert not as_usual(12.0, cohort)


def test_a_machine_that_was_slow_many_times_is_not_usual_for_itself() -> None:
    own = [Member(machine_id="this", step_s=12.0, start_up_s=60.0)] * 20
    assert slow(12.0, [*members(), *own])
    assert not as_usual(12.0, [*members(), *own])


SECONDS = st.sampled_from((1.0, 1.2, 1.5, 1.6, 2.0, 2.5, 4.0, 12.0))


@given(steps=st.lists(st.tuples(st.integers(0, 5), SECONDS), min_size=1, max_size=15), step_s=SECONDS)
def test_step_time_judged_as_usual_is_never_a_straggler(steps: list[tuple[int, float]], step_s: float) -> None:
    own = Member(machine_id="machine-0", step_s=step_s, start_up_s=60.0)
    others = [Member(machine_id=f"machine-{number}", step_s=each, start_up_s=60.0) for number, each in steps]
    cohort = [own, *others]
    if as_usual(step_s, cohort):
        assert not is_slow(step_s, machine_id="machine-0", cohort=cohort, policy=POLICY)


def trail_of(marks: list[tuple[float, int]]) -> Trail:
    """Seconds and steps; the first of them is the first step."""
    trail, first = Trail(), Mark(0, marks[0][1])
    for at_s, step in marks:
        trail.follow(Mark(round(at_s * 1000), step), first=first, policy=POLICY)
    return trail


def test_the_latest_steps_are_judged_and_not_the_whole_attempt() -> None:
    steady = [(30.0 * n, 30 * n) for n in range(50)]
    slower = [(1470.0 + 30.0 * n, 1470 + 10 * n) for n in range(1, 21)]
    assert trail_of(steady).step_s(POLICY) == 1.0
    assert trail_of([*steady, *slower]).step_s(POLICY) == 3.0


def test_straggler_is_named_after_two_minutes_and_ten_steps_at_the_earliest() -> None:
    assert trail_of([(0.0, 1), (110.0, 111)]).step_s(POLICY) is None
    assert trail_of([(0.0, 1), (500.0, 9)]).step_s(POLICY) is None
    assert trail_of([(0.0, 1), (120.0, 121)]).step_s(POLICY) == 1.0


def test_steps_that_take_longer_than_the_window_are_judged_by_ten_of_them() -> None:
    assert trail_of([(100.0 * n, n) for n in range(40)]).step_s(POLICY) == 100.0


def test_an_attempt_that_ran_unwatched_is_watched_from_then_on() -> None:
    trail, first = Trail(), Mark(0, 0)
    for at_s in (5000, 5060, 5130):
        trail.follow(Mark(at_s * 1000, at_s), first=first, policy=POLICY)
    assert trail.step_s(POLICY) == 1.0
    trail = Trail()
    trail.follow(Mark(5_000_000, 100), first=first, policy=POLICY)
    assert trail.step_s(POLICY) is None, "not 50 s a step"


def test_a_trail_holds_the_window_and_no_more() -> None:
    trail = trail_of([(30.0 * n, 30 * n) for n in range(1000)])
    assert len(trail.marks) == 21
