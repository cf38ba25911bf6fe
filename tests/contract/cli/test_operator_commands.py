"""`giornata fleets pause|resume|scale` and `giornata nodes drain|undrain`, against a real server."""

import pytest
from tests.fixtures.fleets import ToyFleet, governed, with_fleets

from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.loops import LoopStatus
from giornata.control.ports.fleet import Limits
from giornata.domain.errors import Forbidden, NotFound
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.node.fleets import ScaleFleet
from giornata.protocol.node.work import Claim, NodeInfo

NODE = NodeInfo(node_id="node_12345678", machine_id="m-1", name="shed")


@pytest.fixture
def provider(served):
    """A fleet gpu of a provider in memory, that the served app knows, with a job that waits."""
    provider = ToyFleet()
    fleet = governed(provider, kinds=("x-count",), scaling=ScalingPolicy(max_nodes=4))
    served.app.state.context = with_fleets(served.ctx, {"gpu": fleet})
    served.client().submit({}, kind="x-count")
    return provider


def turn(served):
    for work in (reconcile_fleet, scale_fleet, reconcile_fleet):
        work(served.app.state.context, "gpu")


def claim(served, node=NODE, request_id="request-1"):
    body = Claim(request_id=request_id, node=node, kinds=("x-count",)).model_dump(mode="json")
    return served.call("POST", "/v1/node/claim", served.keys.node, json=body).json()


def test_a_fleet_is_paused_shown_and_resumed(run, served, provider):
    assert "gpu is paused: its nodes leave, and no new ones start" in run("fleets", "pause", "gpu").output
    assert run("fleets", "pause", "gpu", "--json").json["paused_since"], "asking twice is no fault"
    turn(served)
    assert provider.instances == {}
    shown = run("fleets").output
    assert "gpu: an operator paused it" in shown
    assert " fleets resume gpu" in shown
    assert "0 of 0" in shown
    assert "gpu scales with the queue again: min_nodes = 0, max_nodes = 4" in run("fleets", "resume", "gpu").output
    turn(served)
    assert len(provider.instances) == 1
    assert "paused" not in run("fleets").output


def test_limits_are_set_shown_and_taken_back(run, served, provider):
    done = run("fleets", "scale", "gpu", "--max", "9", "--max-price", "0.35")
    assert (
        "gpu: min_nodes = 0, max_nodes = 9; an operator set max_nodes = 9, max_price_usd_per_hour = 0.35"
        in done.output
    )
    assert run("fleets", "scale", "gpu", "--min", "2", "--json").json["limits"] == {
        "min_nodes": 2,
        "max_nodes": 9,
        "max_price_micro_usd_per_hour": 350_000,
    }
    turn(served)
    assert len(provider.instances) == 2
    shown = run("fleets").output
    limits = "min_nodes = 2, max_nodes = 9, max_price_usd_per_hour = 0.35"
    assert f"an operator set {limits}, in place of the settings" in shown
    assert " fleets scale gpu --as-settings" in shown
    back = run("fleets", "scale", "gpu", "--as-settings").output
    assert "gpu: min_nodes = 0, max_nodes = 4, as the settings say" in back
    assert "an operator set" not in run("fleets").output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no limit is given"),
        (("--max", "3", "--as-settings"), "--as-settings, which removes all limits"),
        (("--min", "5"), "5 are the fewest nodes, and 4 the most"),
        (("--max-price", "cheap"), "--max-price"),
    ],
)
def test_limits_that_make_no_sense_are_refused(run, provider, words, says):
    done = run("fleets", "scale", "gpu", *words)
    assert done.status != 0
    assert says in done.errors


def test_the_body_of_scale_is_checked(served, provider):
    for body in ({"max_nodes": -1}, {"max_nodes": 10_001}, {"nodes": 3}, {"max_nodes": "3"}):
        refused = served.call("POST", "/v1/fleets/gpu/scale", served.keys.admin, json=body)
        assert refused.status_code == 400, body
    untouched = served.call("POST", "/v1/fleets/gpu/scale", served.keys.admin, json={})
    assert untouched.json()["limits"] == {
        "min_nodes": None,
        "max_nodes": None,
        "max_price_micro_usd_per_hour": None,
    }


def test_a_fleet_whose_machines_join_by_themselves_is_not_paused(run, served):
    desk = governed(ToyFleet(limits=Limits(most_nodes=0, gives_nodes=False)), "desk")
    served.app.state.context = with_fleets(served.ctx, {"desk": desk})
    done = run("fleets", "pause", "desk")
    assert done.status == 1
    assert "machines join by themselves; drain a node with giornata nodes drain" in done.errors


def test_a_node_is_drained_by_its_name_and_taken_back(run, served):
    served.client().submit({}, kind="x-count")
    lease = claim(served)["lease"]
    done = run("nodes", "drain", "shed")
    assert f"shed gets no more jobs and leaves; it gives back {lease['job_id']}" in done.output.replace("\n", " ")
    assert " nodes undrain node_12345678" in done.output
    assert run("nodes", "--json").json["items"][0]["state"] == "draining"
    beat = f"/v1/node/attempts/{lease['attempt_id']}/heartbeat"
    assert served.call("POST", beat, lease["token"], json={}).json()["order"] == "drain"
    assert "shed gets jobs again" in run("nodes", "undrain", "node_12345678").output
    assert run("nodes", "--json").json["items"][0]["state"] == "busy"
    assert served.call("POST", beat, lease["token"], json={}).json()["order"] == "continue"


def test_a_drained_node_that_waits_for_work_is_told_to_leave(run, served):
    assert claim(served)["drain"] is False
    run("nodes", "drain", "shed")
    reply = claim(served, request_id="request-2")
    assert (reply["lease"], reply["drain"], reply["reason"]) == (None, True, "draining")


def test_a_name_that_two_nodes_have_is_not_enough(run, served):
    for number in (1, 2):
        other = NODE.model_copy(update={"node_id": f"node_1234567{number}", "machine_id": f"m-{number}"})
        claim(served, other, f"request-{number}")
    done = run("nodes", "drain", "shed")
    assert done.status != 0
    assert "shed matches 2 nodes" in done.errors
    assert "node_12345671" in done.errors
    assert run("nodes", "drain", "node_12345671", "--json").json["state"] == "draining"


def test_a_node_that_nobody_knows(run):
    done = run("nodes", "drain", "attic")
    assert done.status == 1
    assert "there is no node attic" in done.errors


def test_fleet_and_node_operations_are_forbidden_for_member_key(served, provider):
    member = served.client(served.keys.member)
    claim(served)
    for call in (
        lambda client: client.pause_fleet("gpu"),
        lambda client: client.resume_fleet("gpu"),
        lambda client: client.scale_fleet("gpu", ScaleFleet(max_nodes=1)),
        lambda client: client.drain_node(NODE.node_id),
        lambda client: client.undrain_node(NODE.node_id),
    ):
        with pytest.raises(Forbidden):
            call(member)
        assert call(served.client(served.keys.admin)) is not None
    with pytest.raises(NotFound):
        served.client(served.keys.admin).pause_fleet("other")


def test_loops_say_what_each_did_last_and_what_is_wrong(run, served):
    ill = LoopStatus(name="reap", every_s=10.0, runs=3, errors=3, errors_in_a_row=3, last_error="Unavailable: away")
    well = LoopStatus(name="lapse", every_s=1.0, runs=9, last_done="2 leases", last_done_age_s=90.0)
    served.app.state.loops_status = lambda: [well, ill]
    shown = run("loops")
    header, *lines = [line.split("\t") for line in shown.output.splitlines()]
    assert header == ["loop", "state", "every", "succeeded", "runs", "errors", "did last", "when"]
    assert lines == [
        ["reap", "failing", "10 s", "–", "3", "3", "–", "–"],
        ["lapse", "ok", "1.0 s", "0.0 s ago", "9", "0", "2 leases", "1:30 min ago"],
        ["reap: Unavailable: away"],
    ]
    assert [each["name"] for each in run("loops", "--json").json["items"]] == ["reap", "lapse"]
    assert run("loops", key=served.keys.member).status == 1
