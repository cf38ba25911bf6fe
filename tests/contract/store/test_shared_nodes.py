"""Money: a node costs its price once, however many attempts it has."""

import itertools

from tests.fixtures.work import PRICE, Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.lapse import lapse_leases
from giornata.control.attempts.reported_ends import release
from giornata.control.caller import Caller
from giornata.control.jobs.read_jobs import get_job, list_jobs
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.work import CompleteAttempt, Heartbeat, Lease, ReleaseAttempt

OWNER = Caller(project_id=ROOT_PROJECT, scope=Scope.MEMBER, key_id="key_owner")
PER_S = PRICE // 3600


def cost(shop: Workshop, lease: Lease) -> int:
    job = get_job(shop.ctx, OWNER, lease.job_id)
    assert job.cost_micro_usd == sum(attempt.cost_micro_usd for attempt in job.attempts)
    listed = list_jobs(shop.ctx, OWNER, states=[], labels={}, kind=None, cursor=None, limit=50).items
    assert {each.id: each.cost_micro_usd for each in listed}[lease.job_id] == job.cost_micro_usd
    return job.cost_micro_usd


def lease(shop: Workshop, node: int = 1) -> Lease:
    shop.add_job(joint_key="key")
    return shop.lease(node, joint_key="key")


def beat(shop: Workshop, *leases: Lease) -> None:
    for each in leases:
        heartbeat(shop.ctx, each.attempt_id, Heartbeat(step=1))


def test_attempts_that_are_on_a_node_together_pay_equal_shares(shop: Workshop) -> None:
    first = lease(shop)
    shop.clock.advance_s(10)
    second = lease(shop)
    shop.clock.advance_s(10)
    beat(shop, first, second)
    assert (cost(shop, first), cost(shop, second)) == (15 * PER_S, 5 * PER_S)
    third = lease(shop)
    shop.clock.advance_s(30)
    complete(shop.ctx, first.attempt_id, CompleteAttempt(step=1))
    # The others have not spoken since: the bill of one that has ended does not wait for them.
    assert cost(shop, first) == 25 * PER_S
    shop.clock.advance_s(10)
    release(shop.ctx, second.attempt_id, ReleaseAttempt())
    shop.clock.advance_s(10)
    beat(shop, third)
    costs = [cost(shop, each) for each in (first, second, third)]
    assert costs == [25 * PER_S, (5 + 10 + 5) * PER_S, (10 + 5 + 10) * PER_S]
    assert sum(costs) == 70 * PER_S, "what the node cost"
    assert [get_job(shop.ctx, OWNER, each.job_id).attempts[0].billed_s for each in (first, second)] == [50, 50]


def test_who_comes_when_another_has_left_pays_alone(shop: Workshop) -> None:
    first = lease(shop)
    shop.clock.advance_s(10)
    complete(shop.ctx, first.attempt_id, CompleteAttempt(step=1))
    after, elsewhere = lease(shop), lease(shop, 2)
    shop.clock.advance_s(10)
    beat(shop, after, elsewhere)
    assert [cost(shop, each) for each in (first, after, elsewhere)] == [10 * PER_S] * 3


def test_the_silence_of_one_is_paid_by_those_that_speak(shop: Workshop) -> None:
    silent, speaks = lease(shop), lease(shop)
    shop.clock.advance_s(20)
    beat(shop, silent, speaks)
    for _ in range(4):
        shop.clock.advance_s(30)
        beat(shop, speaks)
    assert lapse_leases(shop.ctx) == 1
    assert (cost(shop, silent), cost(shop, speaks)) == (10 * PER_S, 130 * PER_S)
    beat(shop, silent)  # it comes back, and pays its share from now on
    shop.clock.advance_s(10)
    beat(shop, silent, speaks)
    assert (cost(shop, silent), cost(shop, speaks)) == (15 * PER_S, 135 * PER_S)


def test_a_share_is_rounded_to_a_micro_dollar(shop: Workshop) -> None:
    leases = [lease(shop) for _ in range(7)]
    for _ in range(3):
        shop.clock.advance_s(1)
        beat(shop, *leases)
    costs = [cost(shop, each) for each in leases]
    assert all(abs(one - two) == 0 for one, two in itertools.pairwise(costs))
    assert abs(sum(costs) - 3 * PER_S) <= len(leases) / 2
