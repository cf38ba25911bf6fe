"""Who may begin a job."""

from dataclasses import replace

import pytest

from giornata.domain.jobs.admission import Answer, admit, unlimited
from giornata.domain.machines.health import HealthPolicy, MachineHealth, MachineState, newcomer

POLICY = HealthPolicy()
NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
NEW = newcomer("machine-1", "train", policy=POLICY, at_ms=NOW_MS)


def ask(health: MachineHealth, *, live: int = 0, at_stake_ms: tuple[int, ...] = (), canary: bool = False) -> Answer:
    asked = admit(health, live=live, at_stake_ms=at_stake_ms, offers_canary=canary, policy=POLICY, at_ms=NOW_MS)
    return asked.answer


def test_a_machine_of_which_nothing_is_known_is_trusted_unless_policy_says_otherwise() -> None:
    assert unlimited(None, policy=POLICY)
    assert not unlimited(None, policy=HealthPolicy(new_on_probation=True))


@pytest.mark.parametrize(
    ("state", "quota", "expected"), [("ok", 16, True), ("ok", 15, False), ("probation", 16, False)]
)
def test_machine_is_unlimited_only_when_ok_with_full_quota(state: str, quota: int, expected: bool) -> None:
    assert unlimited(replace(NEW, state=MachineState(state), quota=quota), policy=POLICY) is expected


def test_the_quarantined_get_nothing_and_are_told_until_when() -> None:
    health = replace(NEW, state=MachineState.QUARANTINED, quarantines=1)
    said = admit(health, live=0, at_stake_ms=(), offers_canary=True, policy=POLICY, at_ms=NOW_MS)
    assert said.answer is Answer.QUARANTINED
    assert said.again_at_ms == NOW_MS + 900_000


def test_machine_on_probation_gets_offered_canary_first_and_one_job_at_a_time() -> None:
    health = replace(NEW, state=MachineState.PROBATION)
    assert ask(health, canary=True) is Answer.CANARY
    assert ask(health) is Answer.YES
    assert ask(health, live=1) is Answer.PROBATION
    assert ask(health, live=1, canary=True) is Answer.PROBATION


def test_the_quota_counts_what_began_within_the_hour() -> None:
    health = replace(NEW, quota=2)
    assert ask(health, at_stake_ms=(NOW_MS - 10,)) is Answer.YES
    assert ask(health, at_stake_ms=(NOW_MS - 10, NOW_MS - 20)) is Answer.QUOTA
    assert ask(health, at_stake_ms=(NOW_MS - 10, NOW_MS - HOUR_MS)) is Answer.YES


def test_the_quota_says_when_there_is_more() -> None:
    stake = (NOW_MS - 40, NOW_MS - 30, NOW_MS - 20)
    said = admit(replace(NEW, quota=2), live=0, at_stake_ms=stake, offers_canary=False, policy=POLICY, at_ms=NOW_MS)
    assert said.again_at_ms == NOW_MS - 30 + HOUR_MS
    later = admit(
        replace(NEW, quota=2), live=0, at_stake_ms=stake, offers_canary=False, policy=POLICY, at_ms=said.again_at_ms
    )
    assert later.answer is Answer.YES
