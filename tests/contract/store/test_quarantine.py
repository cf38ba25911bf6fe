"""Machines that fail get less work, then none; bad jobs and bad days take no machine with them."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.work import NODE_CALLER, Workshop

from giornata.control.attempts.claim import Asked, claim_each, nothing_yet
from giornata.control.attempts.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.lapse import lapse_leases
from giornata.control.attempts.reported_ends import fail
from giornata.domain.health import HealthPolicy, MachineHealth, MachineState
from giornata.domain.reasons import Reason
from giornata.protocol.work import Claim, ClaimReply, CompleteAttempt, FailAttempt, Heartbeat, Lease
from giornata.store import schema

OFFERS_CANARY = ("train", "canary")


def done(shop: Workshop, lease: Lease) -> None:
    complete(shop.ctx, lease.attempt_id, CompleteAttempt(step=1))


def broken(shop: Workshop, lease: Lease, reason: Reason = Reason.NODE_DRIVER, **more: Any) -> str:
    return fail(shop.ctx, lease.attempt_id, FailAttempt(reason=reason, message="it broke", **more)).job_state


def proven(shop: Workshop, *numbers: int) -> None:
    """These nodes' machines have done a job."""
    for number in numbers:
        shop.add_job()
        done(shop, shop.lease(number))


def health(shop: Workshop, number: int = 1, kind: str = "train") -> MachineHealth:
    with shop.store.read() as tx:
        return tx.machines.get_each([f"machine-{number}"], [kind])[f"machine-{number}", kind]


def states(shop: Workshop) -> dict[str, str]:
    return {row["machine_id"]: row["state"] for row in shop.rows(schema.machines)}


def test_a_black_hole_is_out_within_three_attempts_and_fails_no_job(shop: Workshop) -> None:
    proven(shop, 1, 2)
    jobs = [shop.add_job() for _ in range(10)]
    lost = []
    for _ in range(10):
        reply = shop.claim(1)
        if reply.lease is None:
            break
        lost.append(reply.lease.job_id)
        broken(shop, reply.lease, Reason.CRASHED)
        shop.clock.advance_s(5)
    assert len(lost) == 3
    assert (reply.reason, health(shop).state) == ("quarantined", MachineState.QUARANTINED)
    assert "3 failures within 10 min: 3 × crashed" in (reply.detail or "")
    for _ in jobs:
        done(shop, shop.lease(2))
    assert {shop.job(job_id)["state"] for job_id in jobs} == {"succeeded"}
    assert states(shop) == {"machine-1": "quarantined", "machine-2": "ok"}


def test_a_new_black_hole_is_out_after_two(shop: Workshop) -> None:
    for _ in range(5):
        shop.add_job()
    broken(shop, shop.lease(1))
    assert health(shop).state is MachineState.PROBATION
    broken(shop, shop.lease(1))
    assert shop.claim(1).reason == "quarantined"


def test_the_burst_counts_in_the_transaction_that_ends_the_attempt(shop: Workshop) -> None:
    """Both were begun before; the end of the third failure is what stops the next hand-out."""
    proven(shop, 1)
    for _ in range(6):
        shop.add_job()
    for _ in range(2):
        broken(shop, shop.lease(1))
        shop.clock.advance_s(1)
    last = shop.lease(1)
    other_node = shop.node(99, machine="machine-1")
    assert shop.claim(other_node).reason == "probation"
    broken(shop, last)
    assert shop.claim(other_node).reason == "quarantined"


def test_a_lapsed_attempt_does_not_keep_its_machine_from_taking_the_job_back(shop: Workshop) -> None:
    """Of a quota of one, and within the hour in which the attempt would count."""
    proven(shop, 1)
    with shop.store.begin() as tx:
        tx.machines.put(replace(health(shop), quota=1))
    job_id = shop.add_job()
    shop.lease(1)
    shop.clock.advance_s(100)
    assert lapse_leases(shop.ctx) == 1
    assert shop.lease(shop.node(99, machine="machine-1")).job_id == job_id
    shop.add_job()
    assert shop.claim(1).reason == "quota"


def test_failures_on_a_machine_of_one_kind_say_nothing_about_another(shop: Workshop) -> None:
    for _ in range(3):
        shop.add_job()
    shop.add_job(kind="x-own")
    for _ in range(2):
        broken(shop, shop.lease(1))
    reply = shop.claim(1, kinds=("train", "x-own"))
    assert reply.lease is not None
    assert shop.job(reply.lease.job_id)["kind"] == "x-own"


def test_a_bad_job_bans_no_machine_and_is_found_out(shop: Workshop) -> None:
    """It crashes on one machine after the other, all of which stay what they were. Others are fine meanwhile."""
    proven(shop, *range(1, 10))
    before = {number: health(shop, number) for number in (1, 2, 3)}
    bad = shop.add_job()
    for number in (1, 2, 3):
        lease = shop.lease(number)
        assert lease.job_id == bad
        state = broken(shop, lease, Reason.CRASHED)
    assert state == "failed"
    for number in (1, 2, 3):
        after = health(shop, number)
        assert (after.state, after.strikes, after.quota) == (MachineState.OK, 0.0, before[number].quota)


def test_many_bad_jobs_of_one_project_quarantine_nobody_for_long(shop: Workshop) -> None:
    """Machines that were suspected are healed in the transaction in which the job is found out."""
    proven(shop, *range(4, 10))
    bad = {shop.add_job() for _ in range(3)}
    for number in (1, 2, 3):
        for _ in bad:
            reply = shop.claim(number)
            if reply.lease is not None:
                broken(shop, reply.lease, Reason.CRASHED)
            shop.clock.advance_s(20)
    assert {shop.job(job_id)["state"] for job_id in bad} == {"failed"}
    assert set(states(shop).values()) == {"ok"}


def test_a_machines_own_fault_stands_although_the_job_was_bad_too(shop: Workshop) -> None:
    proven(shop, 1, 2)
    bad = shop.add_job()
    broken(shop, shop.lease(1), Reason.NODE_DISK)
    broken(shop, shop.lease(2), Reason.BAD_DATA)
    assert shop.job(bad)["state"] == "failed"
    assert (health(shop, 1).strikes, health(shop, 2).strikes) == (1.0, 0.0)


def test_a_fault_of_machines_that_one_job_has_everywhere_is_the_jobs(shop: Workshop) -> None:
    shop_policy = replace(shop.ctx.policy, max_fruitless=3)
    shop.ctx = replace(shop.ctx, policy=shop_policy)
    proven(shop, 1, 2, 3, 4, 5, 6)
    bad = shop.add_job()
    for number in (1, 2, 3):
        broken(shop, shop.lease(number), Reason.NODE_VRAM)
    assert shop.job(bad)["state"] == "failed"
    assert {health(shop, number).strikes for number in (1, 2, 3)} == {0.0}


def test_a_suspicion_is_sure_once_another_machine_did_the_job(shop: Workshop) -> None:
    proven(shop, 1, 2)
    shop.add_job()
    broken(shop, shop.lease(1), Reason.CRASHED)
    assert health(shop).strikes == 0.5
    done(shop, shop.lease(2))
    assert health(shop).strikes == 1.0


@pytest.mark.parametrize("at_first", [0, 20])
def test_when_the_network_fails_nobody_is_quarantined(shop: Workshop, at_first: int) -> None:
    """40 machines cannot fetch anything; some had failed three times before the others began."""
    machines = range(1, 41)
    for _ in range(200):
        shop.add_job()
    if at_first:
        proven(shop, *machines)
        shop.clock.advance_s(3600)
    for number in [1, 1, 1, 2, 2, 2, *machines, *machines]:
        reply = shop.claim(number)
        if reply.lease is not None:
            broken(shop, reply.lease, Reason.NODE_DOWNLOAD)
        shop.clock.advance_s(1)
    assert set(states(shop).values()) <= {"ok"}
    assert {row["state"] for row in shop.rows(schema.jobs) if row["state"] != "succeeded"} == {"queued"}
    assert all(shop.claim(number).lease is not None for number in machines)


def test_while_others_are_fine_a_black_hole_is_still_one(shop: Workshop) -> None:
    """The same as before, with 38 machines that can fetch: two that cannot are out."""
    machines = range(1, 41)
    proven(shop, *machines)
    for _ in range(200):
        shop.add_job()
    for number in [*machines, *machines, *machines]:
        reply = shop.claim(number)
        if reply.lease is None:
            continue
        if number <= 2:
            broken(shop, reply.lease, Reason.NODE_DOWNLOAD)
        else:
            heartbeat(shop.ctx, reply.lease.attempt_id, Heartbeat(step=1))
            done(shop, reply.lease)
        shop.clock.advance_s(1)
    out = {machine for machine, state in states(shop).items() if state == "quarantined"}
    assert out == {"machine-1", "machine-2"}


def test_a_quota_ends_hand_out_until_the_hour_is_over(shop: Workshop) -> None:
    policy = HealthPolicy(quota_per_hour=4, burst_failures=99, probation_strikes=99, quarantine_strikes=99)
    shop.ctx = replace(shop.ctx, policy=replace(shop.ctx.policy, health=policy))
    proven(shop, 1)
    for _ in range(6):
        shop.add_job()
    broken(shop, shop.lease(1))  # 4 → 2
    shop.clock.advance_s(60)
    live = shop.lease(1)
    reply = shop.claim(1)
    assert (reply.lease, reply.reason) == (None, "quota")
    assert "more in 3540 s" in (reply.detail or "")
    done(shop, live)  # 2 → 4, and it gives its share back
    assert shop.claim(1).lease is not None


def test_of_two_nodes_of_one_machine_one_gets_the_last_of_the_quota(shop: Workshop) -> None:
    policy = HealthPolicy(quota_per_hour=2, burst_failures=99, probation_strikes=99, quarantine_strikes=99)
    shop.ctx = replace(shop.ctx, policy=replace(shop.ctx.policy, health=policy))
    proven(shop, 1)
    shop.add_job()
    broken(shop, shop.lease(1))  # 2 → 1
    shop.clock.advance_s(3601)
    nodes = [shop.node(50 + number, machine="machine-1") for number in range(4)]
    for _ in nodes:
        shop.add_job()
    replies: list[ClaimReply] = []
    threads = [threading.Thread(target=lambda node=node: replies.append(shop.claim(node))) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reply.reason or "lease" for reply in replies) == ["lease", "quota", "quota", "quota"]


def test_the_same_in_one_batch_of_claims(shop: Workshop) -> None:
    for _ in range(4):
        shop.add_job()
    broken(shop, shop.lease(1))
    asked = [Asked(caller=NODE_CALLER, claim=_claim(shop, 50 + number, machine="machine-1")) for number in range(3)]
    replies = claim_each(shop.ctx, asked)
    assert [reply.reason for reply in replies if isinstance(reply, ClaimReply)] == [None, "probation", "probation"]


def test_waiting_costs_a_quarantined_node_no_write(shop: Workshop) -> None:
    for _ in range(4):
        shop.add_job()
    for _ in range(2):
        broken(shop, shop.lease(1))
    before = shop.whole_database()
    reply = nothing_yet(shop.ctx, Asked(caller=NODE_CALLER, claim=_claim(shop, 1)))
    assert reply is not None
    assert reply.reason == "quarantined"
    assert shop.whole_database() == before


def test_a_canary_comes_before_real_work(shop: Workshop) -> None:
    proven(shop, 1)
    real = [shop.add_job() for _ in range(4)]
    for _ in range(2):
        broken(shop, shop.lease(1))
        shop.clock.advance_s(1)
    assert health(shop).state is MachineState.PROBATION
    canary = shop.lease(1, kinds=OFFERS_CANARY)
    row = shop.job(canary.job_id)
    assert (row["kind"], row["project_id"], row["only_machine_id"]) == ("canary", "default", "machine-1")
    assert row["spec"] == {"steps": 20}
    quota = health(shop).quota
    done(shop, canary)
    assert (health(shop).state, health(shop).quota) == (MachineState.OK, quota * 2)
    assert shop.lease(1, kinds=OFFERS_CANARY).job_id in real


def test_a_canary_that_fails_ends_in_quarantine_and_is_over(shop: Workshop) -> None:
    shop.add_job()
    broken(shop, shop.lease(1), Reason.CRASHED)
    shop.clock.advance_s(11)  # one that waits is asked for its health every ten seconds
    canary = shop.lease(1, kinds=OFFERS_CANARY)
    shop.add_job()
    assert broken(shop, canary, Reason.CRASHED) == "failed"
    assert shop.claim(1, kinds=OFFERS_CANARY).reason == "quarantined"


def test_a_machine_has_one_canary_at_a_time_and_no_other_machine_gets_it(shop: Workshop) -> None:
    shop.add_job()
    shop.add_job()
    broken(shop, shop.lease(1), Reason.CRASHED)
    shop.clock.advance_s(11)  # one that waits is asked for its health every ten seconds
    canary = shop.lease(1, kinds=OFFERS_CANARY)
    second = shop.claim(shop.node(77, machine="machine-1"), kinds=OFFERS_CANARY)
    assert (second.lease, second.reason) == (None, "probation")
    assert len(shop.rows(schema.jobs, kind="canary")) == 1
    assert shop.lease(2, kinds=OFFERS_CANARY).job_id != canary.job_id


def test_no_canary_for_a_machine_in_good_standing(shop: Workshop) -> None:
    """The paired test of those above."""
    proven(shop, 1)
    shop.add_job()
    lease = shop.lease(1, kinds=OFFERS_CANARY)
    assert shop.job(lease.job_id)["kind"] == "train"
    assert not shop.rows(schema.jobs, kind="canary")


def test_one_fault_of_an_engine_counts_once(shop: Workshop) -> None:
    proven(shop, 1)
    for _ in range(3):
        shop.add_job(joint_key="key")
    first = shop.lease(1)
    others = [shop.lease(1, joint_key="key") for _ in range(2)]
    together = tuple(lease.attempt_id for lease in [first, *others])
    for lease in [first, *others]:
        broken(shop, lease, Reason.NODE_DRIVER, together=together)
    assert (health(shop).state, health(shop).strikes) == (MachineState.OK, 1.0)


def test_a_new_machine_may_have_to_show_a_canary_first(shop: Workshop) -> None:
    policy = HealthPolicy(new_on_probation=True)
    shop.ctx = replace(shop.ctx, policy=replace(shop.ctx.policy, health=policy))
    shop.add_job()
    canary = shop.lease(1, kinds=OFFERS_CANARY)
    assert shop.job(canary.job_id)["kind"] == "canary"
    done(shop, canary)
    assert shop.job(shop.lease(1, kinds=OFFERS_CANARY).job_id)["kind"] == "train"


def test_who_looks_for_a_companion_gets_no_canary(shop: Workshop) -> None:
    shop.add_job()
    broken(shop, shop.lease(1), Reason.CRASHED)
    shop.clock.advance_s(11)
    companion = shop.add_job(joint_key="key")
    assert shop.lease(1, kinds=OFFERS_CANARY, joint_key="key").job_id == companion
    assert not shop.rows(schema.jobs, kind="canary")


def _claim(shop: Workshop, number: int, *, machine: str | None = None) -> Claim:
    return Claim(request_id=f"request-of-{number}", node=shop.node(number, machine=machine), kinds=("train",))


def test_who_is_refused_hears_of_an_empty_queue_in_whichever_way_it_is_answered(shop: Workshop) -> None:
    """Looking without writing and claiming agree."""
    shop.add_job()
    broken(shop, shop.lease(1))
    with shop.store.begin() as tx:
        tx.connection.execute(sa.update(schema.machines).values(state="quarantined"))
        tx.connection.execute(sa.update(schema.jobs).values(state="canceled"))
    shop.clock.advance_s(60)
    assert [shop.claim(1).reason for _ in range(2)] == ["empty-queue"] * 2
    shop.add_job()
    shop.clock.advance_s(60)
    assert [shop.claim(1).reason for _ in range(2)] == ["quarantined"] * 2
