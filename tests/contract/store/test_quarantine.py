"""Machines that fail get less work, then none; bad jobs and bad days take no machine with them."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.store_rig import NODE_CALLER, StoreRig

from giornata.control.attempts.claiming.claim import Asked, claim_each, nothing_yet
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.attempts.heartbeat import heartbeat
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import HealthPolicy, MachineHealth, MachineState
from giornata.protocol.node.work import Claim, ClaimReply, CompleteAttempt, FailAttempt, Heartbeat, Lease
from giornata.store import schema

OFFERS_CANARY = ("train", "canary")


def done(rig: StoreRig, lease: Lease) -> None:
    complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))


def broken(rig: StoreRig, lease: Lease, reason: Reason = Reason.NODE_DRIVER, **more: Any) -> str:
    return fail(rig.ctx, lease.attempt_id, FailAttempt(reason=reason, message="it broke", **more)).job_state


def proven(rig: StoreRig, *numbers: int) -> None:
    """These nodes' machines have done a job."""
    for number in numbers:
        rig.add_job()
        done(rig, rig.lease(number))


def health(rig: StoreRig, number: int = 1, kind: str = "train") -> MachineHealth:
    with rig.store.read() as tx:
        return tx.machines.get_each([f"machine-{number}"], [kind])[f"machine-{number}", kind]


def states(rig: StoreRig) -> dict[str, str]:
    return {row["machine_id"]: row["state"] for row in rig.rows(schema.machines)}


def test_a_black_hole_is_out_within_three_attempts_and_fails_no_job(rig: StoreRig) -> None:
    proven(rig, 1, 2)
    jobs = [rig.add_job() for _ in range(10)]
    lost = []
    for _ in range(10):
        reply = rig.claim(1)
        if reply.lease is None:
            break
        lost.append(reply.lease.job_id)
        broken(rig, reply.lease, Reason.CRASHED)
        rig.clock.advance_s(5)
    assert len(lost) == 3
    assert (reply.reason, health(rig).state) == ("quarantined", MachineState.QUARANTINED)
    assert "3 failures within 10 min: 3 × crashed" in (reply.detail or "")
    for _ in jobs:
        done(rig, rig.lease(2))
    assert {rig.job(job_id)["state"] for job_id in jobs} == {"succeeded"}
    assert states(rig) == {"machine-1": "quarantined", "machine-2": "ok"}


def test_a_new_black_hole_is_out_after_two(rig: StoreRig) -> None:
    for _ in range(5):
        rig.add_job()
    broken(rig, rig.lease(1))
    assert health(rig).state is MachineState.PROBATION
    broken(rig, rig.lease(1))
    assert rig.claim(1).reason == "quarantined"


def test_the_burst_counts_in_the_transaction_that_ends_the_attempt(rig: StoreRig) -> None:
    """Both were begun before; the end of the third failure is what stops the next hand-out."""
    proven(rig, 1)
    for _ in range(6):
        rig.add_job()
    for _ in range(2):
        broken(rig, rig.lease(1))
        rig.clock.advance_s(1)
    last = rig.lease(1)
    other_node = rig.node(99, machine="machine-1")
    assert rig.claim(other_node).reason == "probation"
    broken(rig, last)
    assert rig.claim(other_node).reason == "quarantined"


def test_a_lapsed_attempt_does_not_keep_its_machine_from_taking_the_job_back(rig: StoreRig) -> None:
    """Of a quota of one, and within the hour in which the attempt would count."""
    proven(rig, 1)
    with rig.store.begin() as tx:
        tx.machines.put(replace(health(rig), quota=1))
    job_id = rig.add_job()
    rig.lease(1)
    rig.clock.advance_s(100)
    assert lapse_leases(rig.ctx) == 1
    assert rig.lease(rig.node(99, machine="machine-1")).job_id == job_id
    rig.add_job()
    assert rig.claim(1).reason == "quota"


def test_failures_on_a_machine_of_one_kind_say_nothing_about_another(rig: StoreRig) -> None:
    for _ in range(3):
        rig.add_job()
    rig.add_job(kind="x-own")
    for _ in range(2):
        broken(rig, rig.lease(1))
    reply = rig.claim(1, kinds=("train", "x-own"))
    assert reply.lease is not None
    assert rig.job(reply.lease.job_id)["kind"] == "x-own"


def test_a_bad_job_bans_no_machine_and_is_found_out(rig: StoreRig) -> None:
    """It crashes on one machine after the other, all of which stay what they were. Others are fine meanwhile."""
    proven(rig, *range(1, 10))
    before = {number: health(rig, number) for number in (1, 2, 3)}
    bad = rig.add_job()
    for number in (1, 2, 3):
        lease = rig.lease(number)
        assert lease.job_id == bad
        state = broken(rig, lease, Reason.CRASHED)
    assert state == "failed"
    for number in (1, 2, 3):
        after = health(rig, number)
        assert (after.state, after.strikes, after.quota) == (MachineState.OK, 0.0, before[number].quota)


def test_many_bad_jobs_of_one_project_quarantine_nobody_for_long(rig: StoreRig) -> None:
    """Machines that were suspected are healed in the transaction in which the job is found out."""
    proven(rig, *range(4, 10))
    bad = {rig.add_job() for _ in range(3)}
    for number in (1, 2, 3):
        for _ in bad:
            reply = rig.claim(number)
            if reply.lease is not None:
                broken(rig, reply.lease, Reason.CRASHED)
            rig.clock.advance_s(20)
    assert {rig.job(job_id)["state"] for job_id in bad} == {"failed"}
    assert set(states(rig).values()) == {"ok"}


def test_a_machines_own_fault_stands_although_the_job_was_bad_too(rig: StoreRig) -> None:
    proven(rig, 1, 2)
    bad = rig.add_job()
    broken(rig, rig.lease(1), Reason.NODE_DISK)
    broken(rig, rig.lease(2), Reason.BAD_DATA)
    assert rig.job(bad)["state"] == "failed"
    assert (health(rig, 1).strikes, health(rig, 2).strikes) == (1.0, 0.0)


def test_a_fault_of_machines_that_one_job_has_everywhere_is_the_jobs(rig: StoreRig) -> None:
    shop_policy = replace(rig.ctx.policy, max_fruitless=3)
    rig.ctx = replace(rig.ctx, policy=shop_policy)
    proven(rig, 1, 2, 3, 4, 5, 6)
    bad = rig.add_job()
    for number in (1, 2, 3):
        broken(rig, rig.lease(number), Reason.NODE_VRAM)
    assert rig.job(bad)["state"] == "failed"
    assert {health(rig, number).strikes for number in (1, 2, 3)} == {0.0}


def test_a_suspicion_is_sure_once_another_machine_did_the_job(rig: StoreRig) -> None:
    proven(rig, 1, 2)
    rig.add_job()
    broken(rig, rig.lease(1), Reason.CRASHED)
    assert health(rig).strikes == 0.5
    done(rig, rig.lease(2))
    assert health(rig).strikes == 1.0


@pytest.mark.parametrize("at_first", [0, 20])
def test_network_failure_on_all_machines_quarantines_none(rig: StoreRig, at_first: int) -> None:
    """40 machines cannot fetch anything; some had failed three times before the others began."""
    machines = range(1, 41)
    for _ in range(200):
        rig.add_job()
    if at_first:
        proven(rig, *machines)
        rig.clock.advance_s(3600)
    for number in [1, 1, 1, 2, 2, 2, *machines, *machines]:
        reply = rig.claim(number)
        if reply.lease is not None:
            broken(rig, reply.lease, Reason.NODE_DOWNLOAD)
        rig.clock.advance_s(1)
    assert set(states(rig).values()) <= {"ok"}
    assert {row["state"] for row in rig.rows(schema.jobs) if row["state"] != "succeeded"} == {"queued"}
    assert all(rig.claim(number).lease is not None for number in machines)


def test_while_others_are_fine_a_black_hole_is_still_one(rig: StoreRig) -> None:
    """The same as before, with 38 machines that can fetch: two that cannot are out."""
    machines = range(1, 41)
    proven(rig, *machines)
    for _ in range(200):
        rig.add_job()
    for number in [*machines, *machines, *machines]:
        reply = rig.claim(number)
        if reply.lease is None:
            continue
        if number <= 2:
            broken(rig, reply.lease, Reason.NODE_DOWNLOAD)
        else:
            heartbeat(rig.ctx, reply.lease.attempt_id, Heartbeat(step=1))
            done(rig, reply.lease)
        rig.clock.advance_s(1)
    out = {machine for machine, state in states(rig).items() if state == "quarantined"}
    assert out == {"machine-1", "machine-2"}


def test_a_quota_ends_hand_out_until_the_hour_is_over(rig: StoreRig) -> None:
    policy = HealthPolicy(quota_per_hour=4, burst_failures=99, probation_strikes=99, quarantine_strikes=99)
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, health=policy))
    proven(rig, 1)
    for _ in range(6):
        rig.add_job()
    broken(rig, rig.lease(1))  # 4 → 2
    rig.clock.advance_s(60)
    live = rig.lease(1)
    reply = rig.claim(1)
    assert (reply.lease, reply.reason) == (None, "quota")
    assert "more in 3540 s" in (reply.detail or "")
    done(rig, live)  # 2 → 4, and it gives its share back
    assert rig.claim(1).lease is not None


def test_last_claim_of_a_machine_quota_goes_to_one_of_its_nodes(rig: StoreRig) -> None:
    policy = HealthPolicy(quota_per_hour=2, burst_failures=99, probation_strikes=99, quarantine_strikes=99)
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, health=policy))
    proven(rig, 1)
    rig.add_job()
    broken(rig, rig.lease(1))  # 2 → 1
    rig.clock.advance_s(3601)
    nodes = [rig.node(50 + number, machine="machine-1") for number in range(4)]
    for _ in nodes:
        rig.add_job()
    replies: list[ClaimReply] = []
    threads = [threading.Thread(target=lambda node=node: replies.append(rig.claim(node))) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reply.reason or "lease" for reply in replies) == ["lease", "quota", "quota", "quota"]


def test_the_same_in_one_batch_of_claims(rig: StoreRig) -> None:
    for _ in range(4):
        rig.add_job()
    broken(rig, rig.lease(1))
    asked = [Asked(caller=NODE_CALLER, claim=_claim(rig, 50 + number, machine="machine-1")) for number in range(3)]
    replies = claim_each(rig.ctx, asked)
    assert [reply.reason for reply in replies if isinstance(reply, ClaimReply)] == [None, "probation", "probation"]


def test_waiting_costs_a_quarantined_node_no_write(rig: StoreRig) -> None:
    for _ in range(4):
        rig.add_job()
    for _ in range(2):
        broken(rig, rig.lease(1))
    before = rig.whole_database()
    reply = nothing_yet(rig.ctx, Asked(caller=NODE_CALLER, claim=_claim(rig, 1)))
    assert reply is not None
    assert reply.reason == "quarantined"
    assert rig.whole_database() == before


def test_a_canary_comes_before_real_work(rig: StoreRig) -> None:
    proven(rig, 1)
    real = [rig.add_job() for _ in range(4)]
    for _ in range(2):
        broken(rig, rig.lease(1))
        rig.clock.advance_s(1)
    assert health(rig).state is MachineState.PROBATION
    canary = rig.lease(1, kinds=OFFERS_CANARY)
    row = rig.job(canary.job_id)
    assert (row["kind"], row["project_id"], row["only_machine_id"]) == ("canary", "default", "machine-1")
    assert row["spec"] == {"steps": 20}
    quota = health(rig).quota
    done(rig, canary)
    assert (health(rig).state, health(rig).quota) == (MachineState.OK, quota * 2)
    assert rig.lease(1, kinds=OFFERS_CANARY).job_id in real


def test_a_canary_that_fails_ends_in_quarantine_and_is_over(rig: StoreRig) -> None:
    rig.add_job()
    broken(rig, rig.lease(1), Reason.CRASHED)
    rig.clock.advance_s(11)  # one that waits is asked for its health every ten seconds
    canary = rig.lease(1, kinds=OFFERS_CANARY)
    rig.add_job()
    assert broken(rig, canary, Reason.CRASHED) == "failed"
    assert rig.claim(1, kinds=OFFERS_CANARY).reason == "quarantined"


def test_a_machine_has_one_canary_at_a_time_and_no_other_machine_gets_it(rig: StoreRig) -> None:
    rig.add_job()
    rig.add_job()
    broken(rig, rig.lease(1), Reason.CRASHED)
    rig.clock.advance_s(11)  # one that waits is asked for its health every ten seconds
    canary = rig.lease(1, kinds=OFFERS_CANARY)
    second = rig.claim(rig.node(77, machine="machine-1"), kinds=OFFERS_CANARY)
    assert (second.lease, second.reason) == (None, "probation")
    assert len(rig.rows(schema.jobs, kind="canary")) == 1
    assert rig.lease(2, kinds=OFFERS_CANARY).job_id != canary.job_id


def test_no_canary_for_a_machine_in_good_standing(rig: StoreRig) -> None:
    """The paired test of those above."""
    proven(rig, 1)
    rig.add_job()
    lease = rig.lease(1, kinds=OFFERS_CANARY)
    assert rig.job(lease.job_id)["kind"] == "train"
    assert not rig.rows(schema.jobs, kind="canary")


def test_engine_fault_that_ends_several_attempts_is_one_strike(rig: StoreRig) -> None:
    proven(rig, 1)
    for _ in range(3):
        rig.add_job(joint_key="key")
    first = rig.lease(1)
    others = [rig.lease(1, joint_key="key") for _ in range(2)]
    together = tuple(lease.attempt_id for lease in [first, *others])
    for lease in [first, *others]:
        broken(rig, lease, Reason.NODE_DRIVER, together=together)
    assert (health(rig).state, health(rig).strikes) == (MachineState.OK, 1.0)


def test_a_new_machine_may_have_to_show_a_canary_first(rig: StoreRig) -> None:
    policy = HealthPolicy(new_on_probation=True)
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, health=policy))
    rig.add_job()
    canary = rig.lease(1, kinds=OFFERS_CANARY)
    assert rig.job(canary.job_id)["kind"] == "canary"
    done(rig, canary)
    assert rig.job(rig.lease(1, kinds=OFFERS_CANARY).job_id)["kind"] == "train"


def test_claim_for_companion_gets_no_canary(rig: StoreRig) -> None:
    rig.add_job()
    broken(rig, rig.lease(1), Reason.CRASHED)
    rig.clock.advance_s(11)
    companion = rig.add_job(joint_key="key")
    assert rig.lease(1, kinds=OFFERS_CANARY, joint_key="key").job_id == companion
    assert not rig.rows(schema.jobs, kind="canary")


def _claim(rig: StoreRig, number: int, *, machine: str | None = None) -> Claim:
    return Claim(request_id=f"request-of-{number}", node=rig.node(number, machine=machine), kinds=("train",))


def test_refused_claim_has_the_same_reason_when_repeated_without_a_write(rig: StoreRig) -> None:
    """Looking without writing and claiming agree."""
    rig.add_job()
    broken(rig, rig.lease(1))
    with rig.store.begin() as tx:
        tx.connection.execute(sa.update(schema.machines).values(state="quarantined"))
        tx.connection.execute(sa.update(schema.jobs).values(state="canceled"))
    rig.clock.advance_s(60)
    assert [rig.claim(1).reason for _ in range(2)] == ["empty-queue"] * 2
    rig.add_job()
    rig.clock.advance_s(60)
    assert [rig.claim(1).reason for _ in range(2)] == ["quarantined"] * 2
