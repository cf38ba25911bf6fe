"""The server's clock ran ahead for a while, and was set right."""

from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.lapse import lapse_leases
from giornata.control.attempts.heartbeat import heartbeat
from giornata.domain.jobs.attempt import CLOCKS_AGREE_MS
from giornata.protocol.node.work import Heartbeat
from giornata.store import schema

DAY_S = 86_400.0


def lease_s(rig: StoreRig, attempt_id: str) -> float:
    """How long the lease has to run."""
    return float(rig.attempt(attempt_id)["lease_expires_at_ms"] - rig.clock.now_ms()) / 1000


def test_a_lease_that_was_granted_by_a_clock_a_day_ahead_lasts_as_long_as_any_other(rig: StoreRig) -> None:
    job_id = rig.add_job()
    rig.clock.advance_s(DAY_S)
    lease = rig.lease(1)
    rig.clock.advance_s(-DAY_S)
    assert lapse_leases(rig.ctx) == 0, "its node counts on it"
    assert lease_s(rig, lease.attempt_id) == rig.ctx.policy.lease_s
    before = rig.whole_database()
    assert lapse_leases(rig.ctx) == 0
    assert rig.whole_database() == before, "once is enough"
    rig.clock.advance_s(rig.ctx.policy.lease_s + 0.001)
    assert lapse_leases(rig.ctx) == 1
    assert rig.job(job_id)["state"] == "queued"
    assert rig.lease(2).attempt == 2


def test_a_node_that_goes_on_beating_keeps_its_lease(rig: StoreRig) -> None:
    """Also when it beats under a clock that was set back by less than a lease: none of it is taken away."""
    for back_s in (6.0, 60.0, DAY_S):
        rig.add_job()
        lease = rig.lease(1)
        rig.clock.advance_s(-back_s)
        lapse_leases(rig.ctx)
        heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1))
        assert lapse_leases(rig.ctx) == 0
        rig.clock.advance_s(rig.ctx.policy.lease_s)
        assert lapse_leases(rig.ctx) == 0
        assert rig.job(lease.job_id)["state"] == "running"
        rig.clock.advance_s(0.001)
        assert lapse_leases(rig.ctx) == 1


def test_servers_whose_clocks_differ_a_little_leave_one_anothers_leases_alone(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    before = rig.attempt(lease.attempt_id)
    rig.clock.advance_s(-CLOCKS_AGREE_MS / 1000)
    lapse_leases(rig.ctx)
    assert rig.attempt(lease.attempt_id) == before
    rig.clock.advance_s(-0.001)
    lapse_leases(rig.ctx)
    assert lease_s(rig, lease.attempt_id) == rig.ctx.policy.lease_s


def test_a_shorter_lease_of_todays_settings_takes_nothing_from_one_of_yesterdays(rig: StoreRig) -> None:
    rig.add_job()
    lease = rig.lease(1)
    with rig.store.begin() as tx:
        tx.attempts.update_live(lease.attempt_id, lease_expires_at_ms=rig.clock.now_ms() + 600_000)
    rig.clock.advance_s(1)
    lapse_leases(rig.ctx)
    assert lease_s(rig, lease.attempt_id) == 599


def test_a_lease_that_ended_or_lapsed_is_left_alone(rig: StoreRig) -> None:
    rig.add_job()
    rig.lease(1)
    rig.clock.advance_s(rig.ctx.policy.lease_s + 1)
    lapse_leases(rig.ctx)
    before = rig.rows(schema.attempts)
    rig.clock.advance_s(-DAY_S)
    lapse_leases(rig.ctx)
    assert rig.rows(schema.attempts) == before
