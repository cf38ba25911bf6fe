"""When a job goes back to a machine that failed it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.fleets.capacity import Demand, Offer
from giornata.domain.jobs.attempt import CLOCKS_AGREE_MS
from giornata.domain.jobs.backoff import BackoffNode, BackoffPolicy, Ban, Obstacle, Outlook, outlook, pause_s
from giornata.domain.jobs.reasons import BAN, Reason

NOW = 1_790_000_000_000
POLICY = BackoffPolicy(first_s=10.0, longest_s=300.0)
TRAIN = Demand(kind="train", jobs=1, project_id="ann")
OFFER = Offer(kinds=("train",), vram_bytes=24)


def ago(seconds: float) -> int:
    return NOW - round(seconds * 1000)


def host(name: str, *, until_ms: int | str | None = "", **offer) -> BackoffNode:
    quarantines = {} if until_ms == "" else {"train": until_ms}
    return BackoffNode(machine_id=name, offer=replace(OFFER, **offer), quarantines=quarantines)


def ban(name: str, seconds_ago: float = 5.0, reason: Reason = Reason.CRASHED) -> Ban:
    return Ban(machine_id=name, reason=reason, at_ms=ago(seconds_ago))


def seen(bans, hosts, *, demand: Demand = TRAIN, fruitless: int = 1, arrival_s: float | None = None):
    return outlook(demand, bans, hosts, fruitless=fruitless, arrival_s=arrival_s, policy=POLICY, now_ms=NOW)


def test_the_pause_grows_up_to_the_longest():
    pauses = [pause_s(fruitless, policy=POLICY) for fruitless in (0, 1, 2, 3, 4, 5, 1000)]
    assert pauses == [10, 10, 30, 90, 270, 300, 300]


@pytest.mark.parametrize("reason", [reason for reason in Reason if BAN[reason]])
def test_a_job_of_the_only_machine_goes_back_whatever_the_reason(reason: Reason):
    found = seen([ban("a", 5, reason)], [host("a")])
    assert found == Outlook(obstacle=Obstacle.BANNED, at_ms=ago(-5), machine_id="a", hosts=1)


def test_banned_job_waits_for_other_machine_that_may_take_it():
    assert seen([ban("a")], [host("a"), host("b")]) is None


@pytest.mark.parametrize(
    "other",
    [
        host("b", kinds=("x-own",)),
        host("b", vram_bytes=8),
        host("b", project_id="bob"),
        host("b", until_ms=None),
    ],
)
def test_a_machine_that_cannot_take_it_is_no_other(other: BackoffNode):
    found = seen([ban("a")], [host("a"), other], demand=replace(TRAIN, min_vram_bytes=16))
    assert found is not None
    assert (found.obstacle, found.machine_id) == (Obstacle.BANNED, "a")


def test_banned_job_returns_to_present_machine_whose_failure_is_oldest():
    bans = [ban("a", 300), ban("b", 200), ban("c", 100)]
    found = seen(bans, [host("b"), host("c")], fruitless=3)
    assert found is not None
    assert (found.machine_id, found.at_ms) == ("b", ago(100 - 90)), "the pause counts from the latest failure"


def test_banned_job_waits_for_time_in_which_fleet_may_bring_other_machine():
    found = seen([ban("a", 5)], [host("a")], arrival_s=1800.0)
    assert found is not None
    assert (found.may_come, found.at_ms) == (True, ago(5 - 1800))


def test_a_quarantined_machine_gets_it_when_the_quarantine_ends():
    found = seen([ban("a")], [host("a", until_ms=NOW + 60_000), host("b", until_ms=NOW + 30_000)])
    assert found == Outlook(obstacle=Obstacle.QUARANTINED, at_ms=NOW + 30_000, hosts=2, quarantined=2)
    assert seen([ban("a")], [host("a", until_ms=None)]) == Outlook(
        obstacle=Obstacle.QUARANTINED, at_ms=None, hosts=1, quarantined=1
    )


def test_a_job_that_is_too_large_for_all_fails_after_the_longest_pause():
    large = replace(TRAIN, min_vram_bytes=32)
    found = seen([ban("a", 5, Reason.NODE_TOO_SMALL)], [host("a")], demand=large)
    assert found == Outlook(obstacle=Obstacle.TOO_SMALL, at_ms=ago(5 - 300), hosts=1)
    assert seen([ban("a", 5, Reason.NODE_TOO_SMALL)], [host("a"), host("b", vram_bytes=None)], demand=large) is None
    assert seen([], [host("a")], demand=large) is None, "nobody has tried it: it waits for its owner, or a node"


def test_outlook_of_banned_job_is_none_when_no_node_serves_its_project():
    assert seen([ban("a")], []) is None
    assert seen([ban("a")], [host("a", project_id="bob")]) is None


def test_a_clock_that_was_set_back_does_not_make_it_wait_longer():
    early = Ban(machine_id="a", reason=Reason.CRASHED, at_ms=NOW + CLOCKS_AGREE_MS + 1)
    found = seen([early], [host("a")])
    assert found is not None
    assert found.at_ms == NOW


@given(
    fruitless=st.integers(0, 40),
    ages_s=st.lists(st.floats(-100_000, 100_000), min_size=1, max_size=5),
    arrival_s=st.none() | st.floats(0, 5400),
)
def test_a_job_that_a_connected_machine_could_take_goes_back_within_a_bound(
    fruitless: int, ages_s: list[float], arrival_s: float | None
):
    bans = [ban(f"m{number}", age_s) for number, age_s in enumerate(ages_s)]
    found = seen(bans, [host(each.machine_id) for each in bans], fruitless=fruitless, arrival_s=arrival_s)
    assert found is not None
    assert found.at_ms is not None
    assert found.at_ms <= NOW + CLOCKS_AGREE_MS + 1000 * max(POLICY.longest_s, arrival_s or 0.0)
    assert found.machine_id is not None
