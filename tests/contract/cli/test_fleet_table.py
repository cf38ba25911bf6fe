"""Fleets by HTTP, on the command line and in the gauges."""

from dataclasses import replace

import pytest
from tests.fixtures.fleets import TalkativeFleet, ToyFleet, governed, with_fleets

from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import Instance, InstanceState
from giornata.domain.errors import Forbidden
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.node.fleets import InstanceStanding


@pytest.fixture
def provider(served):
    """A fleet gpu of a provider in memory, that the served app knows, with a job that waits."""
    provider = ToyFleet()
    served.app.state.context = with_fleets(
        served.ctx, {"gpu": governed(provider, kinds=("x-count",), scaling=ScalingPolicy(max_nodes=4))}
    )
    served.client().submit({}, kind="x-count")
    return provider


def turn(served):
    for work in (reconcile_fleet, scale_fleet, reconcile_fleet):
        work(served.app.state.context, "gpu")


def test_a_fleet_says_what_it_wants_and_has_and_why(served, provider):
    turn(served)
    fleet = served.client(served.keys.admin).fleet("gpu")
    assert (fleet.driver, fleet.desired, fleet.most_nodes, fleet.trouble) == ("toy", 1, 4, "")
    assert (fleet.plan.jobs, fleet.plan.desired) == (1, 1)
    assert "1 more" in fleet.plan.reasons
    assert fleet.price_micro_usd_per_hour == 300_000
    (instance,) = fleet.instances
    assert (instance.state, instance.machine_id, instance.jobs) == (InstanceStanding.RUNNING, f"m-{instance.id}", 0)
    assert instance.running_at is not None
    assert [each.micro_usd_per_hour for each in fleet.price_changes] == [300_000]
    assert list(served.client(served.keys.admin).fleets()) == [fleet.model_copy(update={"price_changes": ()})]


def test_the_table_shows_it(run, served, provider):
    assert run("fleets", "--json").json == {"items": []}
    turn(served)
    shown = run("fleets").output
    for word in ("gpu", "toy", "1 of 4", "1 running", "$0.300/h", "1 more"):
        assert word in shown, word
    (instance,) = provider.instances
    assert instance not in shown
    assert instance in run("fleets", "gpu").output
    assert run("fleets", "gpu", "--json").json["items"][0]["name"] == "gpu"


def test_a_fleet_whose_nodes_never_come_says_so_in_a_line_of_its_own(run, served, provider):
    for _ in range(2):
        served.client().submit({}, kind="x-count")
    turn(served)
    assert "ever came" not in run("fleets").output
    for name, instance in provider.instances.items():
        provider.instances[name] = replace(instance, cannot_start=True)
    turn(served)
    shown = run("fleets").output
    assert "gpu: none of 3 nodes ever came: one more is tried each hour, and no others" in shown
    assert run("fleets", "--json").json["items"][0]["plan"]["stopped"] == "none of 3 nodes ever came"


def test_fleets_command_with_unknown_fleet_exits_1_with_message(run):
    done = run("fleets", "gpu")
    assert done.status == 1
    assert "there is no fleet gpu" in done.errors


def test_a_fleet_that_nobody_looks_after_is_named(run, served, provider):
    turn(served)
    served.app.state.context = served.ctx
    assert "not configured any more" in run("fleets").output
    provider.instances.clear()
    provider.wanted = 0
    reconcile_fleet(with_fleets(served.ctx, {"gpu": governed(provider)}), "gpu")
    assert run("fleets", "--json").json == {"items": []}, "nothing is left of it"


@pytest.fixture
def talkative(served):
    """As `provider`, of a provider that says more and keeps settings."""
    provider = TalkativeFleet()
    fleet = governed(provider, kinds=("x-count",), scaling=ScalingPolicy(max_nodes=4))
    served.app.state.context = with_fleets(served.ctx, {"gpu": fleet})
    served.client().submit({}, kind="x-count")
    return provider


def test_why_nodes_do_not_come_is_said_in_a_line_of_its_own(run, served, talkative):
    talkative.instances["i-9"] = Instance(id="i-9", state=InstanceState.STARTING, trouble="ImagePullBackOff: no tag")
    turn(served)
    assert "gpu: nodes do not come up: ImagePullBackOff: no tag" in run("fleets").output
    assert run("fleets", "gpu").output.count("ImagePullBackOff") == 2, "of the fleet, and beside the instance"
    talkative.instances["i-9"] = Instance(id="i-9", state=InstanceState.RUNNING)
    turn(served)
    assert "do not come up" not in run("fleets", "show", "gpu").output


UID = "3b0dd4e2-0b0f-4e3e-9d6f-8f0d4e0e0e0e"


def test_the_name_of_an_instance_stands_beside_an_id_that_nobody_can_read(run, served, provider):
    turn(served)
    assert "name" not in run("fleets", "gpu").output, "these are called by their ids"
    provider.instances = {UID: Instance(id=UID, name="giornata-gpu-0", state=InstanceState.RUNNING)}
    turn(served)
    with served.ctx.store.begin() as tx:
        tx.fleets.update("gpu", plan={"reasons": [f"{UID} leaves: nothing to do for 60 s"]})
    fleet = served.client(served.keys.admin).fleet("gpu")
    assert [(each.id, each.name) for each in fleet.instances] == [(UID, "giornata-gpu-0")]
    assert fleet.plan.reasons == (f"giornata-gpu-0 ({UID}) leaves: nothing to do for 60 s",)
    shown = run("fleets", "gpu").output
    assert "giornata-gpu-0" in shown
    assert UID in shown


def test_why_there_are_more_nodes_than_are_wanted_is_said(run, served, talkative):
    turn(served)
    talkative.says = "kubectl set the number of pods to 2"
    talkative.add("i-by-hand")
    with served.ctx.store.begin() as tx:
        tx.fleets.update("gpu", changed_at_ms=1)  # as after a minute
    reconcile_fleet(served.app.state.context, "gpu")
    said = "gpu: more nodes than are wanted: 2 are there, 1 were asked for; kubectl set the number of pods to 2"
    assert said in " ".join(run("fleets").output.split())


def test_settings_of_nodes_that_are_still_to_come_are_shown_as_such(run, served, talkative):
    turn(served)
    with served.ctx.store.begin() as tx:
        tx.fleets.update("gpu", outdated=["image"])
    assert "gpu: nodes to come have other settings than are wanted now: image" in run("fleets").output


def test_fleet_with_outdated_settings_is_shown_with_roll_command_until_nodes_are_replaced(run, served, talkative):
    turn(served)
    assert "settings" not in run("fleets", "gpu").output
    talkative.settings = "image:2"
    with served.ctx.store.begin() as tx:
        tx.fleets.update("gpu", examined_at_ms=None)  # as after a minute
    turn(served)
    shown = run("fleets").output
    assert "gpu: 1 of 1 have other settings than are wanted now: image" in shown
    assert f"giornata --url {served.url}" in shown
    assert " fleets roll gpu" in shown
    assert "of other settings" in run("fleets", "gpu").output
    done = run("fleets", "roll", "gpu")
    assert "The nodes of gpu with other settings are replaced: image" in done.output
    assert run("fleets", "roll", "gpu", "--json").json["rolling_since"], "asking twice is no fault"
    assert "1 of 1 to go" in run("fleets").output
    for _ in range(3):
        turn(served)
    shown = run("fleets").output
    assert "to go" not in shown
    assert "settings" not in shown


def test_a_fleet_that_cannot_be_rolled_says_why(run, served, provider):
    turn(served)
    done = run("fleets", "roll", "gpu")
    assert done.status == 1
    assert "gpu cannot be rolled: with the driver toy" in done.errors
    assert "there is no fleet other" in run("fleets", "roll", "other").errors


def test_roll_of_fleet_is_forbidden_for_member_key(served, talkative):
    turn(served)
    with pytest.raises(Forbidden):
        served.client().roll_fleet("gpu")
    assert served.client(served.keys.admin).roll_fleet("gpu").rolling_since is not None


def test_metrics_page_has_gauges_of_fleet_and_queue_demand(served, provider):
    turn(served)
    lines = served.call("GET", "/metrics", None).text.splitlines()
    assert 'giornata_fleet_desired{fleet="gpu"} 1.0' in lines
    assert 'giornata_fleet_instances{fleet="gpu",state="running"} 1.0' in lines
    assert "giornata_queue_demand 1.0" in lines


def test_a_key_of_scope_node_comes_with_the_word_to_join_by(run, served):
    secret, *words = run("key", "create", "--scope", "node").output.splitlines()
    assert secret.startswith("gk_")
    assert f"giornata node --join '{served.url}#{secret}'" in "".join(words).replace("\n", "")
    assert "--join" not in run("key", "create", "--scope", "member").output
