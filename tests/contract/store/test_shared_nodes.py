"""Money: a node costs its price once, however many attempts it has."""

import itertools

from tests.fixtures.store_rig import PRICE, StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.jobs.reading.read_jobs import get_job, list_jobs
from giornata.protocol.node.work import CompleteAttempt, Heartbeat, Lease, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

OWNER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_owner")
PER_S = PRICE // 3600


def cost(rig: StoreRig, lease: Lease) -> int:
    job = get_job(rig.ctx, OWNER, lease.job_id)
    assert job.cost_micro_usd == sum(attempt.cost_micro_usd for attempt in job.attempts)
    listed = list_jobs(rig.ctx, OWNER, states=[], labels={}, kind=None, cursor=None, limit=50).items
    assert {each.id: each.cost_micro_usd for each in listed}[lease.job_id] == job.cost_micro_usd
    return job.cost_micro_usd


def lease(rig: StoreRig, node: int = 1) -> Lease:
    rig.add_job(joint_key="key")
    return rig.lease(rig.node(node, places=8), joint_key="key")


def beat(rig: StoreRig, *leases: Lease) -> None:
    for each in leases:
        heartbeat(rig.ctx, each.attempt_id, Heartbeat(step=1))


def test_attempts_that_are_on_a_node_together_pay_equal_shares(rig: StoreRig) -> None:
    first = lease(rig)
    rig.clock.advance_s(10)
    second = lease(rig)
    rig.clock.advance_s(10)
    beat(rig, first, second)
    assert (cost(rig, first), cost(rig, second)) == (15 * PER_S, 5 * PER_S)
    third = lease(rig)
    rig.clock.advance_s(30)
    complete(rig.ctx, first.attempt_id, CompleteAttempt(step=1))
    # The others have not spoken since: the bill of one that has ended does not wait for them.
    assert cost(rig, first) == 25 * PER_S
    rig.clock.advance_s(10)
    release(rig.ctx, second.attempt_id, ReleaseAttempt())
    rig.clock.advance_s(10)
    beat(rig, third)
    costs = [cost(rig, each) for each in (first, second, third)]
    assert costs == [25 * PER_S, (5 + 10 + 5) * PER_S, (10 + 5 + 10) * PER_S]
    assert sum(costs) == 70 * PER_S, "what the node cost"
    assert [get_job(rig.ctx, OWNER, each.job_id).attempts[0].billed_s for each in (first, second)] == [50, 50]


def test_attempt_that_starts_after_another_ended_pays_the_whole_node_price(rig: StoreRig) -> None:
    first = lease(rig)
    rig.clock.advance_s(10)
    complete(rig.ctx, first.attempt_id, CompleteAttempt(step=1))
    after, elsewhere = lease(rig), lease(rig, 2)
    rig.clock.advance_s(10)
    beat(rig, after, elsewhere)
    assert [cost(rig, each) for each in (first, after, elsewhere)] == [10 * PER_S] * 3


def test_the_silence_of_one_is_paid_by_those_that_speak(rig: StoreRig) -> None:
    silent, speaks = lease(rig), lease(rig)
    rig.clock.advance_s(20)
    beat(rig, silent, speaks)
    for _ in range(4):
        rig.clock.advance_s(30)
        beat(rig, speaks)
    assert lapse_leases(rig.ctx) == 1
    assert (cost(rig, silent), cost(rig, speaks)) == (10 * PER_S, 130 * PER_S)
    beat(rig, silent)  # it comes back, and pays its share from now on
    rig.clock.advance_s(10)
    beat(rig, silent, speaks)
    assert (cost(rig, silent), cost(rig, speaks)) == (15 * PER_S, 135 * PER_S)


def test_a_share_is_rounded_to_a_micro_dollar(rig: StoreRig) -> None:
    leases = [lease(rig) for _ in range(7)]
    for _ in range(3):
        rig.clock.advance_s(1)
        beat(rig, *leases)
    costs = [cost(rig, each) for each in leases]
    assert all(abs(one - two) == 0 for one, two in itertools.pairwise(costs))
    assert abs(sum(costs) - 3 * PER_S) <= len(leases) / 2
