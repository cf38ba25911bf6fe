"""Quarantined machines are replaced, within bounds, or get another chance."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tests.fixtures.store_rig import StoreRig

from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.context import GovernedFleet
from giornata.control.fleets.operator_actions import quarantine_machine
from giornata.control.fleets.reap import reap
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.ports.fleet import Instance, InstanceState, Limits, Price
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Heartbeat, NodeInfo, Order
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")


@dataclass
class ListedFleet:
    """A provider that has these instances, and remembers what it was asked."""

    instances: dict[str, Instance] = field(default_factory=dict)
    limits: Limits = field(default_factory=lambda: Limits(excluded_after_reallocation_s=48 * 3600.0))
    reallocated: list[str] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    says: Exception | None = None  # instead of reallocating
    lists: Exception | None = None

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        raise AssertionError("the reaper scales nothing")

    def list(self) -> Sequence[Instance]:
        if self.lists is not None:
            raise self.lists
        return tuple(self.instances.values())

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        if self.says is not None:
            raise self.says
        assert reason
        self.reallocated.append(instance_id)
        del self.instances[instance_id]
        new = f"{instance_id}-again"
        self.instances[new] = Instance(id=new, state=InstanceState.STARTING)

    def drain(self, instance_id: str) -> None:
        self.drained.append(instance_id)

    def price(self) -> Price:
        return Price(micro_usd_per_hour=0, source="settings")

    def close(self) -> None: ...


def node(number: int) -> NodeInfo:
    """A node of the fleet, whose instance has another id than its machine."""
    return NodeInfo(
        node_id=f"node_{number:08d}",
        machine_id=f"machine-{number}",
        name=f"node-{number}",
        fleet="salad",
        instance_id=f"instance-{number}",
    )


def with_fleet(rig: StoreRig, count: int) -> ListedFleet:
    """A governed fleet of so many instances."""
    names = [f"instance-{number}" for number in range(1, count + 1)]
    fleet = ListedFleet({name: Instance(id=name, state=InstanceState.RUNNING) for name in names})
    governed = GovernedFleet(name="salad", driver="salad", fleet=fleet)
    rig.ctx = replace(rig.ctx, fleets={"salad": governed})
    return fleet


def quarantine(rig: StoreRig, *numbers: int) -> None:
    """By two failures of a new machine each; other machines are fine meanwhile."""
    for number in numbers:
        for _ in range(2):
            rig.add_job()
            lease = rig.lease(node(number))
            fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it broke"))
        for _ in rig.rows(schema.jobs, state="queued"):
            complete(rig.ctx, rig.lease(node(900)).attempt_id, CompleteAttempt(step=1))
        rig.clock.advance_s(700)
    for number in numbers:
        rig.claim(node(number))  # it still asks


def states(rig: StoreRig) -> dict[str, str]:
    return {row["machine_id"]: row["state"] for row in rig.rows(schema.machines)}


def keep_quarantined(rig: StoreRig) -> None:
    """Quarantines that last longer than the tests."""
    health = replace(rig.ctx.policy.health, cool_down_s=1e6, longest_cool_down_s=1e6)
    rig.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, health=health))


def test_reallocated_instance_does_not_shrink_its_fleet(rig: StoreRig) -> None:
    with_fleet(rig, 10)
    keep_quarantined(rig)
    quarantine(rig, 3)
    reconcile_fleet(rig.ctx, "salad")
    assert reap(rig.ctx).reallocated == 1
    rig.clock.advance_s(15)
    reconcile_fleet(rig.ctx, "salad")
    (gone,) = [each for each in rig.rows(schema.instances) if each["gone_at_ms"] is not None]
    (row,) = rig.rows(schema.fleets)
    assert (gone["id"], row["desired"]) == ("instance-3", 10)


def test_d39_a_bad_machine_is_replaced_while_jobs_are_active_and_by_its_instances_id(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 10)
    keep_quarantined(rig)
    quarantine(rig, 3)
    rig.add_job()
    rig.lease(node(5))  # work goes on elsewhere
    assert reap(rig.ctx)
    assert (fleet.drained, fleet.reallocated) == (["instance-3"], ["instance-3"])
    (row,) = rig.rows(schema.reallocations)
    assert (row["instance_id"], row["machine_id"]) == ("instance-3", "machine-3")
    assert "strikes" in row["reason"]
    assert rig.claim(node(3)).drain
    assert not reap(rig.ctx), "once"


def test_a_sound_machine_is_not_replaced(rig: StoreRig) -> None:
    """The paired test: one failure, and a success."""
    fleet = with_fleet(rig, 10)
    for _ in range(2):
        rig.add_job()
    complete(rig.ctx, rig.lease(node(3)).attempt_id, CompleteAttempt(step=1))
    fail(rig.ctx, rig.lease(node(3)).attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it broke"))
    assert not reap(rig.ctx)
    assert (fleet.drained, fleet.reallocated) == ([], [])


def test_quarantined_machine_drains_job_of_another_kind_before_reallocation(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 10)
    keep_quarantined(rig)
    quarantine(rig, 3)
    rig.add_job(kind="x-own")
    other = rig.lease(node(3), kinds=("x-own",))
    assert reap(rig.ctx).draining == 1
    assert fleet.reallocated == []
    assert heartbeat(rig.ctx, other.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    rig.clock.advance_s(60)
    heartbeat(rig.ctx, other.attempt_id, Heartbeat(step=1))
    assert not reap(rig.ctx)
    rig.clock.advance_s(61)
    heartbeat(rig.ctx, other.attempt_id, Heartbeat(step=1))
    assert reap(rig.ctx).reallocated == 1, "it had its time"


def test_d24_a_fleet_of_bad_machines_is_not_emptied_at_once(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 40)
    keep_quarantined(rig)
    quarantine(rig, *range(1, 11))
    rig.clock.advance_s(1)
    for _ in range(20):
        for number in range(1, 11):
            rig.claim(node(number))
        reap(rig.ctx)
        rig.clock.advance_s(10)
    assert len(fleet.reallocated) == 4, "a tenth of 40 within the hour"


def test_the_providers_limit_a_minute_holds(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 40)
    fleet.limits = Limits(reallocations_per_minute=2)
    keep_quarantined(rig)
    quarantine(rig, 1, 2, 3, 4)
    assert reap(rig.ctx).reallocated == 2
    assert not reap(rig.ctx)
    rig.clock.advance_s(61)
    for number in (1, 2, 3, 4):
        rig.claim(node(number))
    assert reap(rig.ctx).reallocated == 2


def test_fleet_that_is_mostly_quarantined_reallocates_no_machine(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 5)
    keep_quarantined(rig)
    quarantine(rig, 1, 2, 3)
    assert set(states(rig).values()) == {"quarantined", "ok"}
    assert not reap(rig.ctx)
    assert fleet.reallocated == []


def test_a_provider_that_is_away_is_asked_again_later(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 10)
    keep_quarantined(rig)
    quarantine(rig, 3)
    fleet.lists = FleetUnavailable("503")
    assert not reap(rig.ctx)
    fleet.lists, fleet.says = None, FleetUnavailable("429", retry_after_s=3)
    reap(rig.ctx)
    assert rig.rows(schema.reallocations) == []
    fleet.says = None
    rig.clock.advance_s(3)
    assert reap(rig.ctx).reallocated == 1


def test_d42_gone_is_believed_when_it_is_listed_no_more(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 10)
    keep_quarantined(rig)
    quarantine(rig, 3)
    fleet.says = InstanceGone("404")
    assert reap(rig.ctx).reallocated == 0
    assert rig.rows(schema.reallocations) == [], "it is still listed"
    del fleet.instances["instance-3"]
    reap(rig.ctx)
    (row,) = rig.rows(schema.reallocations)
    assert row["machine_id"] == "machine-3", "it counts among those that are excluded"
    assert not reap(rig.ctx)
    assert len(rig.rows(schema.reallocations)) == 1


def test_d41_an_instance_is_found_by_its_machine_where_the_node_does_not_know_its_name(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 10)
    keep_quarantined(rig)
    fleet.instances["instance-3"] = Instance(id="instance-3", state=InstanceState.RUNNING, machine_id="machine-3")
    nameless = node(3).model_copy(update={"instance_id": None})
    for _ in range(2):
        rig.add_job()
        lease = rig.lease(nameless)
        fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DISK, message="full"))
    reap(rig.ctx)
    assert fleet.reallocated == ["instance-3"]


def test_quarantined_machine_that_cannot_be_reallocated_goes_on_probation_after_backoff(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 10)
    fleet.says = FleetRefused("a static fleet has no other machines")
    rig.clock.advance_s(1)
    for _ in range(2):
        rig.add_job()
        lease = rig.lease(node(3))
        fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it broke"))
    reap(rig.ctx)
    assert states(rig) == {"machine-3": "quarantined"}
    rig.clock.advance_s(899)
    assert not reap(rig.ctx)
    rig.clock.advance_s(1)
    assert reap(rig.ctx).given_another_chance == 1
    assert states(rig) == {"machine-3": "probation"}


def test_machine_quarantined_by_operator_is_neither_reallocated_nor_released(rig: StoreRig) -> None:
    fleet = with_fleet(rig, 10)
    rig.add_job()
    complete(rig.ctx, rig.lease(node(3)).attempt_id, CompleteAttempt(step=1))
    quarantine_machine(rig.ctx, ADMIN, "machine-3", reason="smells of smoke")
    rig.clock.advance_s(1_000_000)
    rig.claim(node(3))
    assert not reap(rig.ctx)
    assert fleet.reallocated == []
    assert states(rig) == {"machine-3": "quarantined"}
