"""Quarantined machines are replaced, within bounds, or get another chance."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tests.fixtures.work import Workshop

from giornata.control.attempts.complete import complete
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.reported_ends import fail
from giornata.control.caller import Caller
from giornata.control.context import GovernedFleet
from giornata.control.fleets.operator_actions import quarantine_machine
from giornata.control.fleets.reap import reap
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.ports.fleet import Instance, InstanceState, Limits, Price
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.domain.reasons import Reason
from giornata.protocol.admin import ROOT_PROJECT, Scope
from giornata.protocol.work import CompleteAttempt, FailAttempt, Heartbeat, NodeInfo, Order
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_admin")


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


def with_fleet(shop: Workshop, count: int) -> ListedFleet:
    """A governed fleet of so many instances."""
    names = [f"instance-{number}" for number in range(1, count + 1)]
    fleet = ListedFleet({name: Instance(id=name, state=InstanceState.RUNNING) for name in names})
    governed = GovernedFleet(name="salad", driver="salad", fleet=fleet)
    shop.ctx = replace(shop.ctx, fleets={"salad": governed})
    return fleet


def quarantine(shop: Workshop, *numbers: int) -> None:
    """By two failures of a new machine each; other machines are fine meanwhile."""
    for number in numbers:
        for _ in range(2):
            shop.add_job()
            lease = shop.lease(node(number))
            fail(shop.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it broke"))
        for _ in shop.rows(schema.jobs, state="queued"):
            complete(shop.ctx, shop.lease(node(900)).attempt_id, CompleteAttempt(step=1))
        shop.clock.advance_s(700)
    for number in numbers:
        shop.claim(node(number))  # it still asks


def states(shop: Workshop) -> dict[str, str]:
    return {row["machine_id"]: row["state"] for row in shop.rows(schema.machines)}


def keep_quarantined(shop: Workshop) -> None:
    """Quarantines that last longer than the tests."""
    health = replace(shop.ctx.policy.health, cool_down_s=1e6, longest_cool_down_s=1e6)
    shop.ctx = replace(shop.ctx, policy=replace(shop.ctx.policy, health=health))


def test_who_was_replaced_has_not_left_by_itself_and_the_fleet_stays_as_large(shop: Workshop) -> None:
    with_fleet(shop, 10)
    keep_quarantined(shop)
    quarantine(shop, 3)
    reconcile_fleet(shop.ctx, "salad")
    assert reap(shop.ctx).reallocated == 1
    shop.clock.advance_s(15)
    reconcile_fleet(shop.ctx, "salad")
    (gone,) = [each for each in shop.rows(schema.instances) if each["gone_at_ms"] is not None]
    (row,) = shop.rows(schema.fleets)
    assert (gone["id"], row["desired"]) == ("instance-3", 10)


def test_d39_a_bad_machine_is_replaced_while_jobs_are_active_and_by_its_instances_id(shop: Workshop) -> None:
    fleet = with_fleet(shop, 10)
    keep_quarantined(shop)
    quarantine(shop, 3)
    shop.add_job()
    shop.lease(node(5))  # work goes on elsewhere
    assert reap(shop.ctx)
    assert (fleet.drained, fleet.reallocated) == (["instance-3"], ["instance-3"])
    (row,) = shop.rows(schema.reallocations)
    assert (row["instance_id"], row["machine_id"]) == ("instance-3", "machine-3")
    assert "strikes" in row["reason"]
    assert shop.claim(node(3)).drain
    assert not reap(shop.ctx), "once"


def test_a_sound_machine_is_not_replaced(shop: Workshop) -> None:
    """The paired test: one failure, and a success."""
    fleet = with_fleet(shop, 10)
    for _ in range(2):
        shop.add_job()
    complete(shop.ctx, shop.lease(node(3)).attempt_id, CompleteAttempt(step=1))
    fail(shop.ctx, shop.lease(node(3)).attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it broke"))
    assert not reap(shop.ctx)
    assert (fleet.drained, fleet.reallocated) == ([], [])


def test_what_it_does_for_another_kind_is_handed_back_first(shop: Workshop) -> None:
    fleet = with_fleet(shop, 10)
    keep_quarantined(shop)
    quarantine(shop, 3)
    shop.add_job(kind="x-own")
    other = shop.lease(node(3), kinds=("x-own",))
    assert reap(shop.ctx).draining == 1
    assert fleet.reallocated == []
    assert heartbeat(shop.ctx, other.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    shop.clock.advance_s(60)
    heartbeat(shop.ctx, other.attempt_id, Heartbeat(step=1))
    assert not reap(shop.ctx)
    shop.clock.advance_s(61)
    heartbeat(shop.ctx, other.attempt_id, Heartbeat(step=1))
    assert reap(shop.ctx).reallocated == 1, "it had its time"


def test_d24_a_fleet_of_bad_machines_is_not_emptied_at_once(shop: Workshop) -> None:
    fleet = with_fleet(shop, 40)
    keep_quarantined(shop)
    quarantine(shop, *range(1, 11))
    shop.clock.advance_s(1)
    for _ in range(20):
        for number in range(1, 11):
            shop.claim(node(number))
        reap(shop.ctx)
        shop.clock.advance_s(10)
    assert len(fleet.reallocated) == 4, "a tenth of 40 within the hour"


def test_the_providers_limit_a_minute_holds(shop: Workshop) -> None:
    fleet = with_fleet(shop, 40)
    fleet.limits = Limits(reallocations_per_minute=2)
    keep_quarantined(shop)
    quarantine(shop, 1, 2, 3, 4)
    assert reap(shop.ctx).reallocated == 2
    assert not reap(shop.ctx)
    shop.clock.advance_s(61)
    for number in (1, 2, 3, 4):
        shop.claim(node(number))
    assert reap(shop.ctx).reallocated == 2


def test_when_most_of_a_fleet_is_quarantined_nobody_is_replaced(shop: Workshop) -> None:
    fleet = with_fleet(shop, 5)
    keep_quarantined(shop)
    quarantine(shop, 1, 2, 3)
    assert set(states(shop).values()) == {"quarantined", "ok"}
    assert not reap(shop.ctx)
    assert fleet.reallocated == []


def test_a_provider_that_is_away_is_asked_again_later(shop: Workshop) -> None:
    fleet = with_fleet(shop, 10)
    keep_quarantined(shop)
    quarantine(shop, 3)
    fleet.lists = FleetUnavailable("503")
    assert not reap(shop.ctx)
    fleet.lists, fleet.says = None, FleetUnavailable("429", retry_after_s=3)
    reap(shop.ctx)
    assert shop.rows(schema.reallocations) == []
    fleet.says = None
    shop.clock.advance_s(3)
    assert reap(shop.ctx).reallocated == 1


def test_d42_gone_is_believed_when_it_is_listed_no_more(shop: Workshop) -> None:
    fleet = with_fleet(shop, 10)
    keep_quarantined(shop)
    quarantine(shop, 3)
    fleet.says = InstanceGone("404")
    assert reap(shop.ctx).reallocated == 0
    assert shop.rows(schema.reallocations) == [], "it is still listed"
    del fleet.instances["instance-3"]
    reap(shop.ctx)
    (row,) = shop.rows(schema.reallocations)
    assert row["machine_id"] == "machine-3", "it counts among those that are excluded"
    assert not reap(shop.ctx)
    assert len(shop.rows(schema.reallocations)) == 1


def test_d41_an_instance_is_found_by_its_machine_where_the_node_does_not_know_its_name(shop: Workshop) -> None:
    fleet = with_fleet(shop, 10)
    keep_quarantined(shop)
    fleet.instances["instance-3"] = Instance(id="instance-3", state=InstanceState.RUNNING, machine_id="machine-3")
    nameless = node(3).model_copy(update={"instance_id": None})
    for _ in range(2):
        shop.add_job()
        lease = shop.lease(nameless)
        fail(shop.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DISK, message="full"))
    reap(shop.ctx)
    assert fleet.reallocated == ["instance-3"]


def test_who_cannot_be_replaced_gets_another_chance_after_a_time_that_doubles(shop: Workshop) -> None:
    fleet = with_fleet(shop, 10)
    fleet.says = FleetRefused("a static fleet has no other machines")
    shop.clock.advance_s(1)
    for _ in range(2):
        shop.add_job()
        lease = shop.lease(node(3))
        fail(shop.ctx, lease.attempt_id, FailAttempt(reason=Reason.NODE_DRIVER, message="it broke"))
    reap(shop.ctx)
    assert states(shop) == {"machine-3": "quarantined"}
    shop.clock.advance_s(899)
    assert not reap(shop.ctx)
    shop.clock.advance_s(1)
    assert reap(shop.ctx).given_another_chance == 1
    assert states(shop) == {"machine-3": "probation"}


def test_what_an_operator_quarantined_is_neither_replaced_nor_let_go(shop: Workshop) -> None:
    fleet = with_fleet(shop, 10)
    shop.add_job()
    complete(shop.ctx, shop.lease(node(3)).attempt_id, CompleteAttempt(step=1))
    quarantine_machine(shop.ctx, ADMIN, "machine-3", reason="smells of smoke")
    shop.clock.advance_s(1_000_000)
    shop.claim(node(3))
    assert not reap(shop.ctx)
    assert fleet.reallocated == []
    assert states(shop) == {"machine-3": "quarantined"}
