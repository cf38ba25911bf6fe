"""What an operator wants of fleets and nodes while the server runs: kept in the store, and done by the loops."""

from dataclasses import replace

import pytest
from tests.fixtures.fleet_rig import POLICY, FleetRig
from tests.fixtures.fleets import TalkativeFleet, ToyFleet, ask_for_work, governed, node_of, with_fleets
from tests.fixtures.store_rig import NODE_CALLER

from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.fleets.nodes import drain_node, list_nodes, undrain_node
from giornata.control.fleets.operator_actions import pause_fleet, resume_fleet, scale_by_hand
from giornata.control.fleets.read_fleets import list_fleets, read_fleet
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.roll import ask_to_roll
from giornata.control.ports.fleet import Instance, InstanceState, Limits
from giornata.domain.errors import Conflict, Forbidden, InvalidInput, NotFound
from giornata.domain.fleets.scaling_windows import parse_window
from giornata.protocol.node.fleets import ScaleFleet
from giornata.protocol.node.work import Heartbeat, Order, ReleaseAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, NodeState, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
MEMBER = Caller(project_id=ROOT_PROJECT, scopes=Scope.MEMBER.reach, key_id="key_member")


@pytest.fixture
def fleet_rig(rig) -> FleetRig:
    return FleetRig(rig)


def busy(fleet_rig: FleetRig, rig, count: int = 1):
    """So many nodes at work: their instances and leases."""
    for _ in range(count):
        rig.add_job()
    fleet_rig.turn()
    return [(each, fleet_rig.claim(each).lease) for each in fleet_rig.present()]


def limits_of(fleet_rig: FleetRig) -> tuple[int | None, int | None]:
    fleet = read_fleet(fleet_rig.ctx, ADMIN, "gpu")
    return fleet.min_nodes, fleet.most_nodes


def test_a_paused_fleet_gives_its_jobs_back_and_has_no_nodes_until_it_is_resumed(fleet_rig, rig):
    ((instance, lease),) = busy(fleet_rig, rig)
    rig.add_job()
    assert pause_fleet(fleet_rig.ctx, ADMIN, "gpu").paused_since is not None
    fleet_rig.turn()
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    fleet_rig.turns(20)
    assert instance in fleet_rig.present(), "who works is waited for"
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    fleet_rig.turns(30)
    assert fleet_rig.present() == []
    shown = read_fleet(fleet_rig.ctx, ADMIN, "gpu")
    assert (shown.min_nodes, shown.most_nodes) == (0, 0)
    assert "an operator paused the fleet" in " ".join(shown.plan.reasons)
    assert resume_fleet(fleet_rig.ctx, ADMIN, "gpu").paused_since is None
    fleet_rig.turns(3)
    assert len(fleet_rig.present()) == 2, "both jobs wait"


def test_a_pause_wins_over_the_fewest_nodes_and_the_windows(fleet_rig, rig):
    window = parse_window("daily 00:00-24:00 UTC min=2")
    fleet_rig.govern(replace(POLICY, min_nodes=1, windows=(window,)))
    fleet_rig.turns(2)
    assert len(fleet_rig.present()) == 2
    pause_fleet(fleet_rig.ctx, ADMIN, "gpu")
    fleet_rig.turns(4)
    assert fleet_rig.present() == []


def test_limits_that_an_operator_sets_win_over_the_settings_until_they_are_taken_back(fleet_rig, rig):
    fleet_rig.govern(replace(POLICY, min_nodes=1, windows=(parse_window("daily 00:00-24:00 UTC min=2 max=3"),)))
    assert limits_of_unlisted(fleet_rig) == (2, 3)
    for _ in range(9):
        rig.add_job()
    fleet_rig.turns(3)
    assert len(fleet_rig.present()) == 3
    assert scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=4)).limits.max_nodes == 4
    assert limits_of(fleet_rig) == (2, 4), "the fewest are those of the window still"
    fleet_rig.turns(3)
    assert len(fleet_rig.present()) == 4
    assert scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=1)).most_nodes == 4, "what is absent stays"
    assert limits_of(fleet_rig) == (1, 4)
    assert scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=None)).limits.max_nodes is None
    assert limits_of(fleet_rig) == (1, 3)
    scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=None))
    assert limits_of(fleet_rig) == (2, 3)


def limits_of_unlisted(fleet_rig: FleetRig) -> tuple[int | None, int | None]:
    reconcile_fleet(fleet_rig.ctx, "gpu")
    return limits_of(fleet_rig)


def test_fewer_nodes_than_work_take_working_ones_with_a_checkpoint(fleet_rig, rig):
    held = busy(fleet_rig, rig, 2)
    scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=1))
    fleet_rig.turn()
    orders = [heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)).order for _, lease in held]
    assert sorted(orders) == sorted([Order.CONTINUE, Order.DRAIN])


def test_a_price_that_an_operator_sets_holds_back_further_nodes(fleet_rig, rig):
    rig.add_job()
    scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(max_price_micro_usd_per_hour=299_999))
    fleet_rig.turns(3)
    assert fleet_rig.present() == []
    scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(max_price_micro_usd_per_hour=300_000))
    fleet_rig.turns(3)
    assert len(fleet_rig.present()) == 1


def test_more_nodes_at_least_than_at_most_are_refused(fleet_rig):
    with pytest.raises(InvalidInput) as refused:
        scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=6))
    assert [fault.where for fault in refused.value.faults] == ["min_nodes"]
    with pytest.raises(InvalidInput) as refused:
        scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=3, max_nodes=2))
    assert [fault.where for fault in refused.value.faults] == ["max_nodes"]
    assert scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(min_nodes=6, max_nodes=8)).limits.min_nodes == 6


def test_paused_fleet_and_limits_set_by_operator_survive_a_restart(fleet_rig, rig):
    """Another process reads the settings anew and has the same database."""
    pause_fleet(fleet_rig.ctx, ADMIN, "gpu")
    scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=7))
    again = FleetRig(rig)
    again.turns(2)
    shown = read_fleet(again.ctx, ADMIN, "gpu")
    assert (shown.paused_since is not None, shown.limits.max_nodes) == (True, 7)
    resume_fleet(again.ctx, ADMIN, "gpu")
    assert limits_of(again) == (0, 7)


def test_a_fleet_that_was_never_listed_can_be_paused(fleet_rig, rig):
    pause_fleet(fleet_rig.ctx, ADMIN, "gpu")
    assert read_fleet(fleet_rig.ctx, ADMIN, "gpu").listed_at is None
    rig.add_job()
    fleet_rig.turns(3)
    assert fleet_rig.present() == []


def test_a_drained_node_gives_its_job_back_and_its_instance_ends(fleet_rig, rig):
    (instance, lease), (other, kept) = busy(fleet_rig, rig, 2)
    node = node_of(instance)
    shown = drain_node(fleet_rig.ctx, ADMIN, node.node_id)
    assert (shown.state, shown.job_ids) == (NodeState.DRAINING, (lease.job_id,))
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    assert heartbeat(rig.ctx, kept.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE
    fleet_rig.turns(3)
    assert instance in fleet_rig.present(), "while it works"
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    assert fleet_rig.claim(instance, start=5).drain, "a process that is started anew on the instance gets no work"
    fleet_rig.turns(4)
    assert instance not in fleet_rig.present()
    assert other in fleet_rig.present()
    assert len(fleet_rig.present()) == 2, "another comes for the job that waits"
    reason = fleet_rig.instance(instance.id)["leaving_reason"]
    assert reason == "an operator drained its node"


def test_a_drain_survives_a_restart(fleet_rig, rig):
    ((instance, lease),) = busy(fleet_rig, rig)
    drain_node(fleet_rig.ctx, ADMIN, node_of(instance).node_id)
    again = FleetRig(rig)
    again.provider = fleet_rig.provider
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    (shown,) = list_nodes(again.ctx, ADMIN, gone=False, cursor=None, limit=10).items
    assert shown.state is NodeState.DRAINING


def test_an_undrained_node_goes_on(fleet_rig, rig):
    ((instance, lease),) = busy(fleet_rig, rig)
    node_id = node_of(instance).node_id
    drain_node(fleet_rig.ctx, ADMIN, node_id)
    fleet_rig.turns(2)
    assert undrain_node(fleet_rig.ctx, ADMIN, node_id).state is NodeState.BUSY
    assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE
    fleet_rig.turns(3)
    assert fleet_rig.present() == [instance]
    assert fleet_rig.instance(instance.id)["drained_at_ms"] is None


def test_a_node_that_leaves_for_another_reason_cannot_be_taken_back(fleet_rig, rig):
    ((instance, lease),) = busy(fleet_rig, rig)
    node_id = node_of(instance).node_id
    scale_by_hand(fleet_rig.ctx, ADMIN, "gpu", ScaleFleet(max_nodes=0))
    fleet_rig.turn()
    with pytest.raises(Conflict, match="was not drained by an operator"):
        undrain_node(fleet_rig.ctx, ADMIN, node_id)
    drain_node(fleet_rig.ctx, ADMIN, node_id)
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    fleet_rig.provider.stubborn.add(instance.id)
    fleet_rig.turns(3)
    with pytest.raises(Conflict, match="was asked to end"):
        undrain_node(fleet_rig.ctx, ADMIN, node_id)


def test_a_node_of_somebodys_own_machine_is_drained_and_taken_back(rig):
    fleet = replace(governed(ToyFleet(limits=Limits(most_nodes=0, gives_nodes=False)), "desk"), driver="static")
    ctx = rig.ctx = with_fleets(rig.ctx, {"desk": fleet})
    job = rig.add_job()
    instance = Instance(id="own", state=InstanceState.RUNNING, machine_id="m-own")
    node = node_of(instance, fleet="desk").model_copy(update={"instance_id": None})
    lease = ask_for_work(rig, node, request="own").lease
    assert lease.job_id == job
    drain_node(ctx, ADMIN, node.node_id)
    assert heartbeat(ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.DRAIN
    undrain_node(ctx, ADMIN, node.node_id)
    assert heartbeat(ctx, lease.attempt_id, Heartbeat(step=1)).order is Order.CONTINUE
    rig.clock.advance_s(ctx.policy.node_gone_after_s + 1)
    with pytest.raises(Conflict, match="has left"):
        undrain_node(ctx, ADMIN, node.node_id)


def test_a_process_that_another_took_the_place_of_is_not_drained(fleet_rig, rig):
    ((instance, lease),) = busy(fleet_rig, rig)
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    rig.clock.advance_s(5)
    fleet_rig.claim(instance, start=3)
    with pytest.raises(Conflict, match="a newer one"):
        drain_node(fleet_rig.ctx, ADMIN, node_of(instance).node_id)


def test_a_node_that_is_to_be_renewed_leaves_when_it_is_drained(rig):
    provider = TalkativeFleet()
    fleet_rig = FleetRig(rig)
    fleet_rig.provider = provider
    fleet_rig.ctx = rig.ctx = with_fleets(rig.ctx, {"gpu": governed(provider, scaling=POLICY)})
    ((instance, lease),) = busy(fleet_rig, rig)
    provider.settings = "image:2"
    rig.clock.advance_s(61)
    fleet_rig.turn()
    ask_to_roll(fleet_rig.ctx, ADMIN, "gpu")
    fleet_rig.turns(2)
    assert fleet_rig.instance(instance.id)["renewing"]
    drain_node(fleet_rig.ctx, ADMIN, node_of(instance).node_id)
    assert not fleet_rig.instance(instance.id)["renewing"]
    release(rig.ctx, lease.attempt_id, ReleaseAttempt())
    with rig.store.begin() as tx:
        tx.connection.execute(schema.jobs.update().values(state="canceled"))
    fleet_rig.turns(3)
    assert fleet_rig.present() == [], "nobody comes in its place while nothing waits"


def test_members_and_nodes_cannot_pause_scale_or_drain_fleets(fleet_rig, rig):
    for caller in (MEMBER, NODE_CALLER):
        for verb in (pause_fleet, resume_fleet):
            with pytest.raises(Forbidden):
                verb(fleet_rig.ctx, caller, "gpu")
        with pytest.raises(Forbidden):
            scale_by_hand(fleet_rig.ctx, caller, "gpu", ScaleFleet(max_nodes=1))
        for verb in (drain_node, undrain_node):
            with pytest.raises(Forbidden):
                verb(fleet_rig.ctx, caller, "node_00000001")
    with pytest.raises(NotFound, match="there is no fleet other"):
        pause_fleet(fleet_rig.ctx, ADMIN, "other")
    with pytest.raises(NotFound, match="there is no node node_00000009"):
        drain_node(fleet_rig.ctx, ADMIN, "node_00000009")
    desk = with_fleets(rig.ctx, {"desk": governed(ToyFleet(limits=Limits(most_nodes=0, gives_nodes=False)), "desk")})
    with pytest.raises(Conflict, match="machines join by themselves"):
        pause_fleet(desk, ADMIN, "desk")
    assert rig.rows(schema.fleets) == []


def test_a_fleets_price_is_kept_once_for_each_change(fleet_rig, rig):
    began_ms = rig.clock.now_ms()
    for seconds, price in ((0, 300_000), (60, 300_000), (60, 410_000), (60, 410_000), (0, 260_000)):
        rig.clock.advance_s(seconds)
        fleet_rig.provider.price_now = price
        reconcile_fleet(fleet_rig.ctx, "gpu")
    changes = read_fleet(fleet_rig.ctx, ADMIN, "gpu").price_changes
    assert [(each.at.timestamp() - began_ms / 1000, each.micro_usd_per_hour) for each in changes] == [
        (180, 260_000),
        (120, 410_000),
        (0, 300_000),
    ]
    rig.clock.advance_s(90 * 86_400 - 30)
    fleet_rig.provider.price_now = 250_000
    reconcile_fleet(fleet_rig.ctx, "gpu")
    kept = read_fleet(fleet_rig.ctx, ADMIN, "gpu").price_changes
    assert [each.micro_usd_per_hour for each in kept] == [250_000, 260_000], "older ones than 90 days go"
    assert list_fleets(fleet_rig.ctx, ADMIN).items[0].price_changes == ()
