"""Several fleets under one queue, through their loops: the cheapest that can deliver, in time."""

from dataclasses import replace

import pytest
from tests.fixtures.fleets import ToyFleet, ask_for_work, governed, node_of, with_fleets
from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.caller import Caller
from giornata.control.fleet_loops import fleet_loops
from giornata.control.fleets.operator_actions import pause_fleet, resume_fleet
from giornata.control.loops import Loops
from giornata.domain.errors import FleetUnavailable
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.node.work import ClaimReply, CompleteAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

SLOW = ScalingPolicy(max_nodes=3, expected_startup_s=600)
QUICK = replace(SLOW, expected_startup_s=60)
# Deadlines are rounded down to five minutes before fleets look at them.
SOON_S, LATE_S = 400, 1500


class Two:
    """A cheap fleet whose nodes take long to come, a dear one whose nodes are quick, and their loops."""

    def __init__(self, rig: StoreRig, *, cheap: ScalingPolicy = SLOW, dear: ScalingPolicy = QUICK) -> None:
        self.rig, self.cheap, self.dear = rig, ToyFleet(price=100_000), ToyFleet(price=900_000)
        fleets = {
            "cheap": governed(self.cheap, "cheap", scaling=cheap),
            "dear": governed(self.dear, "dear", scaling=dear),
        }
        rig.ctx = with_fleets(rig.ctx, fleets)
        self._schedule = fleet_loops(fleets)
        self._loops = Loops(rig.ctx, self._schedule)
        self.turns(2)

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            for each in self._schedule:
                assert self._loops.run_once(each)
            self.rig.clock.advance_s(1)

    def job(self, *, within_s: float | None = None) -> str:
        deadline = {} if within_s is None else {"deadline_at_ms": self.rig.clock.now_ms() + round(within_s * 1000)}
        return self.rig.add_job(**deadline)

    def node(self, fleet: str, number: int = 0, *, turn: int = 0) -> ClaimReply:
        """The node on one of the fleet's instances asks for work."""
        there = sorted(getattr(self, fleet).instances.values(), key=lambda each: each.id)
        info = node_of(there[number], fleet=fleet).model_copy(update={"node_id": f"node_{fleet}_{number:04d}"})
        return ask_for_work(self.rig, info, request=f"{fleet}-{number}-{turn:04d}")

    @property
    def nodes(self) -> tuple[int, int]:
        """Asked for in the cheap fleet, and in the dear one."""
        return self.cheap.wanted, self.dear.wanted

    def ever(self, fleet: str) -> set[str]:
        """What the provider was ever asked for."""
        return {call for call in getattr(self, fleet).calls if call.startswith("desired")}


@pytest.fixture
def two(rig: StoreRig) -> Two:
    return Two(rig)


def test_a_deadline_that_the_cheap_fleet_cannot_make_has_the_dearer_one_asked(two: Two) -> None:
    job_id = two.job(within_s=SOON_S)
    two.turns(8)
    assert two.nodes == (0, 1)
    assert two.ever("cheap") == {"desired 0"}
    lease = two.node("dear").lease
    assert lease is not None
    assert lease.job_id == job_id


def test_a_deadline_that_the_cheap_fleet_makes_leaves_the_dearer_one_alone(two: Two) -> None:
    two.job(within_s=LATE_S)
    two.turns(8)
    assert two.nodes == (1, 0)
    assert two.ever("dear") == {"desired 0"}


def test_a_job_without_a_deadline_leaves_the_dearer_one_alone(two: Two) -> None:
    two.job()
    two.turns(8)
    assert (two.nodes, two.ever("dear")) == ((1, 0), {"desired 0"})


@pytest.mark.parametrize("listed", [True, False])
def test_a_cheap_node_that_is_on_its_way_and_comes_too_late_does_not_count(two: Two, listed: bool) -> None:
    two.cheap.delivers = listed
    two.job()
    two.turns()
    two.job(within_s=SOON_S)
    two.turns(8)
    assert two.nodes == (1, 1)


def test_a_cheap_node_that_is_on_its_way_and_comes_in_time_does(two: Two) -> None:
    two.job()
    two.turns()
    two.rig.clock.advance_s(540)
    two.job(within_s=SOON_S)
    two.turns(8)
    assert (two.nodes, two.ever("dear")) == ((2, 0), {"desired 0"})


def test_a_cheap_node_that_idles_is_in_time_for_everything(two: Two) -> None:
    two.job()
    two.turns()
    lease = two.node("cheap").lease
    assert lease is not None
    complete(two.rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
    two.node("cheap", turn=1)
    two.job(within_s=SOON_S)
    two.turns(8)
    assert two.ever("dear") == {"desired 0"}


def test_a_deadline_that_nobody_can_make_costs_no_more_than_another_job(rig: StoreRig) -> None:
    """Two slow fleets, and the cheap one is full with the node that it has asked for."""
    two = Two(rig, cheap=replace(SLOW, max_nodes=1), dear=SLOW)
    two.job(within_s=SOON_S)
    two.turns(8)
    assert (two.nodes, two.ever("dear")) == ((1, 0), {"desired 0"})


def test_the_dearer_one_keeps_what_it_was_asked_for_until_the_job_has_it(two: Two) -> None:
    two.cheap.delivers = two.dear.delivers = False
    two.job()
    two.job(within_s=SOON_S)
    two.turns(70)
    assert two.nodes == (1, 1)
    assert two.ever("dear") == {"desired 0", "desired 1"}


def test_a_fleet_that_is_away_stops_no_other_and_gets_no_share(rig: StoreRig) -> None:
    away, well = ToyFleet(price=1), ToyFleet(price=900)
    ctx = with_fleets(rig.ctx, {"away": governed(away, "away"), "well": governed(well, "well")})
    loops = Loops(ctx, fleet_loops(ctx.fleets))
    by_name = {each.name: each for each in fleet_loops(ctx.fleets)}
    assert sorted(by_name) == ["reconcile:away", "reconcile:well", "scale:away", "scale:well"]
    assert all(loops.run_once(each) for each in by_name.values())
    rig.add_job()
    away.trouble = FleetUnavailable("it rains")
    assert not loops.run_once(by_name["scale:away"])
    assert all(loops.run_once(by_name[name]) for name in ("reconcile:well", "scale:well"))
    assert len(well.instances) == 1, "the dearer one gets what the cheap one cannot deliver"
    status = {each.name: each for each in loops.status()}
    assert status["scale:away"].errors == 1
    assert status["scale:well"].errors == 0
    assert not status["scale:away"].vital


def test_jobs_of_a_paused_fleet_go_to_another_that_costs_more(rig: StoreRig) -> None:
    two = Two(rig)
    operator = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
    pause_fleet(rig.ctx, operator, "cheap")
    two.job()
    two.turns()
    assert two.nodes == (0, 1)
    resume_fleet(rig.ctx, operator, "cheap")
    two.job()
    two.turns()
    assert two.nodes == (1, 1)
