"""What work cost on each day and by a label: the days of an attempt add up to its bill."""

import random
from datetime import date, timedelta

import pytest
from tests.fixtures.picture_rig import PictureRig
from tests.fixtures.store_rig import PRICE, StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.projects import read_daily_costs as reading
from giornata.control.projects.read_daily_costs import read_daily_costs
from giornata.control.timestamps import instant
from giornata.domain.billing.money import MS_PER_DAY
from giornata.domain.errors import Forbidden, InvalidInput
from giornata.protocol.node.work import CompleteAttempt, Heartbeat
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.protocol.project.daily_costs import DailyCosts

ROOT = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")
ANN = Caller(project_id="ann", scopes=Scope.MEMBER.reach, key_id="key_ann")
NODES = Caller(project_id=ROOT_PROJECT, scopes=Scope.NODE.reach, key_id="key_of_node")
PER_S = PRICE // 3600
AWKWARD = "=HYPERLINK(\"https://evil.example\",'here')"


def before_midnight(rig: StoreRig, seconds: float) -> date:
    """Move the clock to so many seconds before a midnight in UTC; return the day that begins then."""
    rig.clock.advance_s((-rig.clock.now_ms() % MS_PER_DAY + MS_PER_DAY) / 1000 - seconds)
    return (instant(rig.clock.now_ms()) + timedelta(seconds=seconds)).date()


def costs(rig: StoreRig, caller: Caller = ROOT, label: str | None = None) -> DailyCosts:
    return read_daily_costs(rig.ctx, caller, None, None, label)


def lines(found: DailyCosts) -> list[tuple[date, str | None, int]]:
    return [(each.day, each.value, each.cost_micro_usd) for each in found.items]


def test_an_attempt_that_lives_across_midnight_is_cut_there(rig: StoreRig) -> None:
    day = before_midnight(rig, 10)
    rig.add_job()
    lease = rig.lease(1)
    rig.clock.advance_s(2 * 86_400 + 30)
    heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1))
    whole = get_job(rig.ctx, ROOT, lease.job_id).cost_micro_usd
    found = costs(rig)
    days = [timedelta(days=2), timedelta(days=1), timedelta(0), timedelta(days=-1)]
    seconds = [20, 86_400, 86_400, 10]
    assert lines(found) == [(day + each, None, s * PER_S) for each, s in zip(days, seconds, strict=True)]
    assert found.total_micro_usd == whole
    only = read_daily_costs(rig.ctx, ROOT, day, day, None)
    assert lines(only) == [(day, None, 86_400 * PER_S)], "what lies outside of the days is not counted"


@pytest.mark.parametrize("ended", [False, True])
def test_project_sees_the_last_day_of_an_attempt_that_began_many_days_before(rig: StoreRig, *, ended: bool) -> None:
    rig.add_project("ann")
    day = before_midnight(rig, 10)
    rig.add_job(project_id="ann")
    lease = rig.lease(1)
    rig.clock.advance_s(9 * 86_400 + 30)
    if ended:
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
    else:
        heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1))
    last = day + timedelta(days=9)
    found = read_daily_costs(rig.ctx, ANN, last, last, None)
    assert lines(found) == [(last, None, 20 * PER_S)]
    assert costs(rig, ANN).total_micro_usd == get_job(rig.ctx, ANN, lease.job_id).cost_micro_usd


def test_days_of_attempts_that_share_a_node_add_up_to_what_each_pays(rig: StoreRig) -> None:
    day = before_midnight(rig, 11)
    for customer in ("41", "42"):
        rig.add_job(joint_key="key", labels={"customer": customer})
    first, second = rig.lease(1, joint_key="key"), rig.lease(1, joint_key="key")
    rig.clock.advance_s(18)
    for each in (first, second):
        complete(rig.ctx, each.attempt_id, CompleteAttempt(step=1))
    found = costs(rig, label="customer")
    assert lines(found) == [
        (day, "41", 7 * PER_S // 2),
        (day, "42", 7 * PER_S // 2),
        (day - timedelta(days=1), "41", 11 * PER_S // 2),
        (day - timedelta(days=1), "42", 11 * PER_S // 2),
    ]
    assert found.total_micro_usd == 18 * PER_S
    assert sum(amount for _, _, amount in lines(costs(rig))) == 18 * PER_S


def test_days_asked_for_one_by_one_add_up_to_the_bills_of_all_whoever_was_beside_whom(rig: StoreRig) -> None:
    generator, living, jobs = random.Random(7), [], []
    day = before_midnight(rig, 20)
    for number in range(24):
        rig.add_job(joint_key="key")
        lease = rig.lease(1 + number % 2, joint_key="key")
        living.append(lease.attempt_id)
        jobs.append(lease.job_id)
        rig.clock.advance_s(generator.choice((0, 0, 1, 3)))
        while len(living) > 3 or (living and generator.random() < 0.4):
            complete(rig.ctx, living.pop(generator.randrange(len(living))), CompleteAttempt(step=1))
    rig.clock.advance_s(1)
    for each in living:
        complete(rig.ctx, each, CompleteAttempt(step=1))
    whole = sum(get_job(rig.ctx, ROOT, each).cost_micro_usd for each in jobs)
    days = [read_daily_costs(rig.ctx, ROOT, each, each, None) for each in (day - timedelta(days=1), day)]
    assert all(each.total_micro_usd > 0 for each in days)
    assert sum(each.total_micro_usd for each in days) == whole


def test_a_project_sees_its_own_costs_alone_and_its_part_of_a_lease(rig: StoreRig) -> None:
    rig.add_project("ann")
    picture_rig = PictureRig(rig)
    mine, hers = picture_rig.order(1), picture_rig.order(2, project_id="ann")
    lease = picture_rig.lease(1)
    assert {each.order_id for each in lease.pictures} == {mine, hers}
    rig.clock.advance_s(7)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=0))
    hers_alone = costs(rig, ANN, label="customer")
    assert [(each.value, each.cost_micro_usd) for each in hers_alone.items] == [
        (None, get_job(rig.ctx, ANN, hers).cost_micro_usd)
    ]
    assert costs(rig).total_micro_usd == 7 * PER_S, "an admin of the installation sees all projects"
    with pytest.raises(Forbidden):
        costs(rig, NODES)


def test_jobs_without_the_label_have_a_line_of_their_own(rig: StoreRig) -> None:
    for number, labels in enumerate(({"customer": AWKWARD}, {"team": "a"}, {"customer": "7"})):
        rig.add_job(labels=labels)
        lease = rig.lease(number + 1)
        rig.clock.advance_s(number + 1)
        complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
    found = costs(rig, label="customer")
    day = found.until
    assert lines(found) == [(day, None, 2 * PER_S), (day, "7", 3 * PER_S), (day, AWKWARD, PER_S)]
    assert found.as_csv().splitlines() == [
        "day,customer,cost_usd",
        f"{day},,0.000200",
        f"{day},7,0.000300",
        f'{day},"\'=HYPERLINK(""https://evil.example"",\'here\')",0.000100',
    ]


def test_days_that_are_none_are_refused_with_what_to_do(rig: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    day = date(2026, 11, 1)
    for since, until, label, said in (
        (day, day - timedelta(days=1), None, "after until"),
        (day - timedelta(days=366), day, None, "year"),
        (day, day, "white space", "name for a label"),
    ):
        with pytest.raises(InvalidInput, match=said):
            read_daily_costs(rig.ctx, ROOT, since, until, label)
    assert read_daily_costs(rig.ctx, ROOT, None, date.min, None).since == date.min
    assert read_daily_costs(rig.ctx, ROOT, date.max, date.max, "a").items == ()
    rig.add_job(labels={"customer": "1"})
    lease = rig.lease(1)
    rig.clock.advance_s(1)
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
    monkeypatch.setattr(reading, "MOST_LINES", 0)
    with pytest.raises(InvalidInput, match="fewer days"):
        costs(rig, label="customer")
