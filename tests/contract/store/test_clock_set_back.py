"""The server's clock ran ahead for a while, and was set right."""

from tests.fixtures.work import Workshop

from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.lapse import lapse_leases
from giornata.domain.attempt import CLOCKS_AGREE_MS
from giornata.protocol.work import Heartbeat
from giornata.store import schema

DAY_S = 86_400.0


def lease_s(shop: Workshop, attempt_id: str) -> float:
    """How long the lease has to run."""
    return float(shop.attempt(attempt_id)["lease_expires_at_ms"] - shop.clock.now_ms()) / 1000


def test_a_lease_that_was_granted_by_a_clock_a_day_ahead_lasts_as_long_as_any_other(shop: Workshop) -> None:
    job_id = shop.add_job()
    shop.clock.advance_s(DAY_S)
    lease = shop.lease(1)
    shop.clock.advance_s(-DAY_S)
    assert lapse_leases(shop.ctx) == 0, "its node counts on it"
    assert lease_s(shop, lease.attempt_id) == shop.ctx.policy.lease_s
    before = shop.whole_database()
    assert lapse_leases(shop.ctx) == 0
    assert shop.whole_database() == before, "once is enough"
    shop.clock.advance_s(shop.ctx.policy.lease_s + 0.001)
    assert lapse_leases(shop.ctx) == 1
    assert shop.job(job_id)["state"] == "queued"
    assert shop.lease(2).attempt == 2


def test_a_node_that_goes_on_beating_keeps_its_lease(shop: Workshop) -> None:
    """Also when it beats under a clock that was set back by less than a lease: none of it is taken away."""
    for back_s in (6.0, 60.0, DAY_S):
        shop.add_job()
        lease = shop.lease(1)
        shop.clock.advance_s(-back_s)
        lapse_leases(shop.ctx)
        heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1))
        assert lapse_leases(shop.ctx) == 0
        shop.clock.advance_s(shop.ctx.policy.lease_s)
        assert lapse_leases(shop.ctx) == 0
        assert shop.job(lease.job_id)["state"] == "running"
        shop.clock.advance_s(0.001)
        assert lapse_leases(shop.ctx) == 1


def test_servers_whose_clocks_differ_a_little_leave_one_anothers_leases_alone(shop: Workshop) -> None:
    shop.add_job()
    lease = shop.lease(1)
    before = shop.attempt(lease.attempt_id)
    shop.clock.advance_s(-CLOCKS_AGREE_MS / 1000)
    lapse_leases(shop.ctx)
    assert shop.attempt(lease.attempt_id) == before
    shop.clock.advance_s(-0.001)
    lapse_leases(shop.ctx)
    assert lease_s(shop, lease.attempt_id) == shop.ctx.policy.lease_s


def test_a_shorter_lease_of_todays_settings_takes_nothing_from_one_of_yesterdays(shop: Workshop) -> None:
    shop.add_job()
    lease = shop.lease(1)
    with shop.store.begin() as tx:
        tx.attempts.update_live(lease.attempt_id, lease_expires_at_ms=shop.clock.now_ms() + 600_000)
    shop.clock.advance_s(1)
    lapse_leases(shop.ctx)
    assert lease_s(shop, lease.attempt_id) == 599


def test_a_lease_that_ended_or_lapsed_is_left_alone(shop: Workshop) -> None:
    shop.add_job()
    shop.lease(1)
    shop.clock.advance_s(shop.ctx.policy.lease_s + 1)
    lapse_leases(shop.ctx)
    before = shop.rows(schema.attempts)
    shop.clock.advance_s(-DAY_S)
    lapse_leases(shop.ctx)
    assert shop.rows(schema.attempts) == before
