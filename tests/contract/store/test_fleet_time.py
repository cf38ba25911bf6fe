"""The billed time of the last day by its use: what the loop adds up is what the costs say."""

import pytest
from tests.contract.store.test_costs import ROOT, a_life, add_instance, during, listed
from tests.fixtures.store_rig import StoreRig

from giornata.control.monitoring import read_gauges
from giornata.control.ports.user_queries.money_store import FleetTime
from giornata.control.projects import fleet_time
from giornata.control.projects.fleet_time import DAY_MS, HOUR_MS, SETTLES_MS, sum_fleet_time

PARTS = ("startup", "useful", "lost", "at_risk", "idle")


def time_of(rig: StoreRig) -> dict[str, FleetTime]:
    return {each.fleet: each for each in read_gauges(rig.ctx).fleet_time}


def to_hour(rig: StoreRig, *, plus_s: float = 0.0) -> None:
    """Move the clock to the next full hour, and so many seconds on."""
    rig.clock.advance_s((HOUR_MS - rig.clock.now_ms() % HOUR_MS) / 1000 + plus_s)


def test_loop_adds_up_what_the_costs_of_the_day_say(rig: StoreRig) -> None:
    to_hour(rig)
    a_life(rig)
    assert time_of(rig) == {}
    sum_fleet_time(rig.ctx)
    (costs,) = during(rig, ROOT).fleets
    found = time_of(rig)["spot"]
    assert [getattr(found, f"{part}_ms") / 1000 for part in PARTS] == [getattr(costs, f"{part}_s") for part in PARTS]
    assert (found.billed_micro_usd, found.billed_ms / 1000) == (costs.billed_micro_usd, costs.billed_s)
    assert found.lost_ms > 0
    assert found.idle_ms > 0


def test_time_is_added_up_by_the_hour_and_older_hours_are_left_out(rig: StoreRig) -> None:
    to_hour(rig, plus_s=1800)
    add_instance(rig)
    for _ in range(4):
        rig.clock.advance_s(HOUR_MS / 1000)
        listed(rig)
        sum_fleet_time(rig.ctx)
        sum_fleet_time(rig.ctx)  # an hour that is added up again counts once
    assert time_of(rig)["spot"].billed_ms == 4 * HOUR_MS
    listed(rig, gone_at_ms=rig.clock.now_ms())
    rig.clock.advance_s((DAY_MS - 2 * HOUR_MS) / 1000)
    sum_fleet_time(rig.ctx)
    assert time_of(rig)["spot"].billed_ms == 1.5 * HOUR_MS
    rig.clock.advance_s(DAY_MS / 1000)
    sum_fleet_time(rig.ctx)
    assert time_of(rig) == {}


def test_hours_are_made_good_after_the_servers_were_away(rig: StoreRig) -> None:
    to_hour(rig)
    add_instance(rig)
    rig.clock.advance_s(60)
    listed(rig)
    sum_fleet_time(rig.ctx)
    rig.clock.advance_s(5 * HOUR_MS / 1000 + SETTLES_MS / 1000)
    listed(rig)
    sum_fleet_time(rig.ctx)
    assert time_of(rig)["spot"].billed_ms == 5 * HOUR_MS + SETTLES_MS + 60_000


def test_loop_that_took_long_leaves_its_server_alone_for_a_while(
    rig: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_hour(rig)
    add_instance(rig)
    monkeypatch.setattr(fleet_time, "RESTS", 10**9)
    sum_fleet_time(rig.ctx)
    rests_ms = len(rig.ctx.memory.fleet_time_rests)
    assert rests_ms > HOUR_MS
    rig.clock.advance_s(60)
    listed(rig)
    sum_fleet_time(rig.ctx)
    assert time_of(rig) == {}, "it rests"
    rig.clock.advance_s(rests_ms / 1000)
    listed(rig)
    sum_fleet_time(rig.ctx)
    assert time_of(rig)["spot"].billed_ms > HOUR_MS
