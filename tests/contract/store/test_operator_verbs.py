"""What an operator wants of fleets and nodes while the server runs: kept in the store, and done by the loops."""

from dataclasses import replace

import pytest
from tests.fixtures.fleets import TalkativeFleet, ToyFleet, ask_for_work, governed, node_of, with_fleets
from tests.fixtures.work import NODE_CALLER
from tests.fixtures.yard import POLICY, Yard

from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.attempts.reported_ends import release
from giornata.control.caller import Caller
from giornata.control.fleets.nodes import drain_node, list_nodes, undrain_node
from giornata.control.fleets.operator_actions import pause_fleet, resume_fleet, scale_by_hand
from giornata.control.fleets.read_fleets import read_fleet
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.roll import ask_to_roll
from giornata.control.ports.fleet import Instance, InstanceState, Limits
from giornata.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from giornata.domain.scaling_windows import parse_window
from giornata.protocol.admin import ROOT_PROJECT, NodeState, Scope
from giornata.protocol.fleets import ScaleFleet
from giornata.protocol.work import Heartbeat, Order, ReleaseAttempt
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_admin")
MEMBER = Caller(project_id=ROOT_PROJECT, scope=Scope.MEMBER, key_id="key_member")


@pytest.fixture
def yard(shop) -> Yard:
    return Yard(shop)


def busy(yard: Yard, shop, count: int = 1):
    """So many nodes at work: their instances and leases."""
    for _ in range(count):
        shop.add_job()
    yard.turn()
    return [(each, yard.claim(each).lease) for each in yard.present()]


def limits_of(yard: Yard) -> tuple[int | None, int | None]:
    fleet = read_fleet(yard.ctx, ADMIN, "gpu")
    return fleet.min_nodes, fleet.most_nodes


def test_a_paused_fleet_gives_its_jobs_back_and_has_no_nodes_until_it_is_resumed(yard, shop):
    ((instance, lease),) = busy(yard, shop)
    shop.add_job()
    assert pause_fleet(yard.ctx, ADMIN, "gpu").paused_since is not None
    yard.turn()
    assert heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    yard.turns(20)
    assert instance in yard.present(), "who works is waited for"
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    yard.turns(30)
    assert yard.present() == []
    shown = read_fleet(yard.ctx, ADMIN, "gpu")
    assert (shown.min_nodes, shown.most_nodes) == (0, 0)
    assert "an operator paused the fleet" in " ".join(shown.plan.reasons)
    assert resume_fleet(yard.ctx, ADMIN, "gpu").paused_since is None
    yard.turns(3)
    assert len(yard.present()) == 2, "both jobs wait"


def test_a_pause_wins_over_the_fewest_nodes_and_the_windows(yard, shop):
    window = parse_window("daily 00:00-24:00 UTC min=2")
    yard.govern(replace(POLICY, min_nodes=1, windows=(window,)))
    yard.turns(2)
    assert len(yard.present()) == 2
    pause_fleet(yard.ctx, ADMIN, "gpu")
    yard.turns(4)
    assert yard.present() == []


def test_limits_that_an_operator_sets_win_over_the_settings_until_they_are_taken_back(yard, shop):
    yard.govern(replace(POLICY, min_nodes=1, windows=(parse_window("daily 00:00-24:00 UTC min=2 max=3"),)))
    assert limits_of_unlisted(yard) == (2, 3)
    for _ in range(9):
        shop.add_job()
    yard.turns(3)
    assert len(yard.present()) == 3
    assert scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=4)).limits.max_nodes == 4
    assert limits_of(yard) == (2, 4), "the fewest are those of the window still"
    yard.turns(3)
    assert len(yard.present()) == 4
    assert scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=1)).most_nodes == 4, "what is absent stays"
    assert limits_of(yard) == (1, 4)
    assert scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=None)).limits.max_nodes is None
    assert limits_of(yard) == (1, 3)
    scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=None))
    assert limits_of(yard) == (2, 3)


def limits_of_unlisted(yard: Yard) -> tuple[int | None, int | None]:
    reconcile_fleet(yard.ctx, "gpu")
    return limits_of(yard)


def test_fewer_nodes_than_work_take_working_ones_with_a_checkpoint(yard, shop):
    held = busy(yard, shop, 2)
    scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=1))
    yard.turn()
    orders = [heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1)).order for _, lease in held]
    assert sorted(orders) == sorted([Order.CONTINUE, Order.DRAIN])


def test_a_price_that_an_operator_sets_holds_back_further_nodes(yard, shop):
    shop.add_job()
    scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(max_price_micro_usd_per_hour=299_999))
    yard.turns(3)
    assert yard.present() == []
    scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(max_price_micro_usd_per_hour=300_000))
    yard.turns(3)
    assert len(yard.present()) == 1


def test_more_nodes_at_least_than_at_most_are_refused(yard):
    with pytest.raises(InvalidInput) as refused:
        scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=6))
    assert [fault.where for fault in refused.value.faults] == ["min_nodes"]
    with pytest.raises(InvalidInput) as refused:
        scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=3, max_nodes=2))
    assert [fault.where for fault in refused.value.faults] == ["max_nodes"]
    assert scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=6, max_nodes=8)).limits.min_nodes == 6


def test_what_an_operator_set_survives_a_restart(yard, shop):
    """Another process reads the settings anew and has the same database."""
    pause_fleet(yard.ctx, ADMIN, "gpu")
    scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=7))
    again = Yard(shop)
    again.turns(2)
    shown = read_fleet(again.ctx, ADMIN, "gpu")
    assert (shown.paused_since is not None, shown.limits.max_nodes) == (True, 7)
    resume_fleet(again.ctx, ADMIN, "gpu")
    assert limits_of(again) == (0, 7)


def test_a_fleet_that_was_never_listed_can_be_paused(yard, shop):
    pause_fleet(yard.ctx, ADMIN, "gpu")
    assert read_fleet(yard.ctx, ADMIN, "gpu").listed_at is None
    shop.add_job()
    yard.turns(3)
    assert yard.present() == []


def test_a_drained_node_gives_its_job_back_and_its_instance_ends(yard, shop):
    (instance, lease), (other, kept) = busy(yard, shop, 2)
    node = node_of(instance)
    shown = drain_node(yard.ctx, ADMIN, node.node_id)
    assert (shown.state, shown.job_ids) == (NodeState.DRAINING, (lease.job_id,))
    assert heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    assert heartbeat(shop.ctx, kept.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE
    yard.turns(3)
    assert instance in yard.present(), "while it works"
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    assert yard.claim(instance, start=5).drain, "a process that is started anew on the instance gets no work"
    yard.turns(4)
    assert instance not in yard.present()
    assert other in yard.present()
    assert len(yard.present()) == 2, "another comes for the job that waits"
    reason = yard.instance(instance.id)["leaving_reason"]
    assert reason == "an operator drained its node"


def test_a_drain_survives_a_restart(yard, shop):
    ((instance, lease),) = busy(yard, shop)
    drain_node(yard.ctx, ADMIN, node_of(instance).node_id)
    again = Yard(shop)
    again.provider = yard.provider
    assert heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    (shown,) = list_nodes(again.ctx, ADMIN, gone=False, cursor=None, limit=10).items
    assert shown.state is NodeState.DRAINING


def test_an_undrained_node_goes_on(yard, shop):
    ((instance, lease),) = busy(yard, shop)
    node_id = node_of(instance).node_id
    drain_node(yard.ctx, ADMIN, node_id)
    yard.turns(2)
    assert undrain_node(yard.ctx, ADMIN, node_id).state is NodeState.BUSY
    assert heartbeat(shop.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE
    yard.turns(3)
    assert yard.present() == [instance]
    assert yard.instance(instance.id)["drained_at_ms"] is None


def test_a_node_that_leaves_for_another_reason_cannot_be_taken_back(yard, shop):
    ((instance, lease),) = busy(yard, shop)
    node_id = node_of(instance).node_id
    scale_by_hand(yard.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=0))
    yard.turn()
    with pytest.raises(Conflict, match="was not drained by an operator"):
        undrain_node(yard.ctx, ADMIN, node_id)
    drain_node(yard.ctx, ADMIN, node_id)
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    yard.provider.stubborn.add(instance.id)
    yard.turns(3)
    with pytest.raises(Conflict, match="was asked to end"):
        undrain_node(yard.ctx, ADMIN, node_id)


def test_a_node_of_somebodys_own_machine_is_drained_and_taken_back(shop):
    fleet = replace(governed(ToyFleet(limits=Limits(most_nodes=0, gives_nodes=False)), "desk"), driver="static")
    ctx = shop.ctx = with_fleets(shop.ctx, {"desk": fleet})
    job = shop.add_job()
    instance = Instance(id="own", state=InstanceState.RUNNING, machine_id="m-own")
    node = node_of(instance, fleet="desk").model_copy(update={"instance_id": None})
    lease = ask_for_work(shop, node, request="own").lease
    assert lease.job_id == job
    drain_node(ctx, ADMIN, node.node_id)
    assert heartbeat(ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    undrain_node(ctx, ADMIN, node.node_id)
    assert heartbeat(ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE
    shop.clock.advance_s(ctx.policy.node_gone_after_s + 1)
    with pytest.raises(Conflict, match="has left"):
        undrain_node(ctx, ADMIN, node.node_id)


def test_a_process_that_another_took_the_place_of_is_not_drained(yard, shop):
    ((instance, lease),) = busy(yard, shop)
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    shop.clock.advance_s(5)
    yard.claim(instance, start=3)
    with pytest.raises(Conflict, match="a newer one"):
        drain_node(yard.ctx, ADMIN, node_of(instance).node_id)


def test_a_node_that_is_to_be_renewed_leaves_when_it_is_drained(shop):
    provider = TalkativeFleet()
    yard = Yard(shop)
    yard.provider = provider
    yard.ctx = shop.ctx = with_fleets(shop.ctx, {"gpu": governed(provider, scaling=POLICY)})
    ((instance, lease),) = busy(yard, shop)
    provider.settings = "image:2"
    shop.clock.advance_s(61)
    yard.turn()
    ask_to_roll(yard.ctx, ADMIN, "gpu")
    yard.turns(2)
    assert yard.instance(instance.id)["renewing"]
    drain_node(yard.ctx, ADMIN, node_of(instance).node_id)
    assert not yard.instance(instance.id)["renewing"]
    release(shop.ctx, lease.attempt_id, ReleaseAttempt())
    with shop.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    yard.turns(3)
    assert yard.present() == [], "nobody comes in its place while nothing waits"


def test_who_may_do_what(yard, shop):
    for caller in (MEMBER, NODE_CALLER):
        for verb in (pause_fleet, resume_fleet):
            with pytest.raises(Forbidden):
                verb(yard.ctx, caller, "gpu")
        with pytest.raises(Forbidden):
            scale_by_hand(yard.ctx, caller, "gpu", ScaleFleet(max_nodes=1))
        for verb in (drain_node, undrain_node):
            with pytest.raises(Forbidden):
                verb(yard.ctx, caller, "node_00000001")
    with pytest.raises(NotFound, match="there is no fleet other"):
        pause_fleet(yard.ctx, ADMIN, "other")
    with pytest.raises(NotFound, match="there is no node node_00000009"):
        drain_node(yard.ctx, ADMIN, "node_00000009")
    desk = with_fleets(shop.ctx, {"desk": governed(ToyFleet(limits=Limits(most_nodes=0, gives_nodes=False)), "desk")})
    with pytest.raises(Conflict, match="machines join by themselves"):
        pause_fleet(desk, ADMIN, "desk")
    assert shop.rows(schema.fleets) == []
