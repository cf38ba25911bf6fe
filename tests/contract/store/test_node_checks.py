"""What a fleet asks of its nodes, and what they say of themselves."""

import hashlib
from dataclasses import replace

import pytest
from tests.fixtures.store_rig import NODE_CALLER, StoreRig

from giornata.control.attempts.claiming.known_node import node_policy, note_checks
from giornata.control.caller import Caller
from giornata.control.context import Context, GovernedFleet
from giornata.control.fleets.nodes import list_nodes
from giornata.control.storage.collect import collect
from giornata.domain.errors import Conflict, Forbidden
from giornata.domain.files.transfers import probe_sha256, probe_size
from giornata.domain.machines.node_checks import MIB, NodeThresholds
from giornata.protocol.node.node_checks import NodeChecks, NodeFigures
from giornata.protocol.project.admin import ROOT_PROJECT, Node, Scope
from giornata.store import schema

ADMIN = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_admin")
ASKED = NodeThresholds(min_driver="550", min_download_bytes_per_s=1.0 * MIB, min_upload_bytes_per_s=2.0 * MIB)


def with_fleet(ctx: Context, thresholds: NodeThresholds) -> Context:
    fleet = GovernedFleet(name="far", driver="static", fleet=None, thresholds=thresholds)  # type: ignore[arg-type]
    return replace(ctx, fleets={"far": fleet})


def listed(rig: StoreRig) -> Node:
    (node,) = list_nodes(rig.ctx, ADMIN, gone=True, cursor=None, limit=10).items
    return node


def test_a_fleet_that_nobody_knows_asks_for_nothing(rig: StoreRig) -> None:
    policy = node_policy(rig.ctx, NODE_CALLER, "elsewhere")
    assert policy.model_dump(exclude_none=True).keys() == {"at"}
    assert policy.at is not None
    assert round(policy.at.timestamp() * 1000) == rig.clock.now_ms()
    assert list(rig.ctx.blobs.list("probes")) == []


def test_a_fleet_asks_and_gives_the_means_to_measure_a_link(rig: StoreRig) -> None:
    ctx = with_fleet(rig.ctx, ASKED)
    policy = node_policy(ctx, NODE_CALLER, "far")
    assert (policy.min_driver, policy.min_vram_bytes) == ("550", None)
    assert policy.download is not None
    assert policy.upload is not None
    size = probe_size(1.0 * MIB)
    assert (policy.download.size_bytes, policy.download.sha256) == (size, probe_sha256(size))
    assert (policy.upload.request.method, policy.upload.size_bytes) == ("PUT", probe_size(2.0 * MIB))
    # What lies there is what the node is told.
    (found,) = ctx.blobs.list("probes")
    assert hashlib.sha256(b"".join(ctx.blobs.read(found.key))).hexdigest() == policy.download.sha256


def test_the_probe_is_made_once_and_again_when_it_was_collected(rig: StoreRig) -> None:
    ctx = with_fleet(rig.ctx, ASKED)
    node_policy(ctx, NODE_CALLER, "far")
    (first,) = ctx.blobs.list("probes")
    node_policy(ctx, NODE_CALLER, "far")
    (again,) = ctx.blobs.list("probes")
    assert again.modified_at == first.modified_at
    eager = replace(ctx, policy=replace(ctx.policy, garbage_after_s=-3600.0 * 24 * 3650))
    assert collect(eager).stray_objects == 1
    node_policy(ctx, NODE_CALLER, "far")
    assert len(list(ctx.blobs.list("probes"))) == 1


def checks(rig: StoreRig, *lacking: str, number: int = 1) -> NodeChecks:
    node = rig.node(number).model_copy(update={"instance_id": "i-1", "places": 4})
    figures = NodeFigures(driver="550.54", free_disk_bytes=5)
    return NodeChecks(node=node, kinds=("train",), figures=figures, shortcomings=lacking, leaving=bool(lacking))


def test_a_node_that_never_claimed_is_known_by_its_checks(rig: StoreRig) -> None:
    assert note_checks(rig.ctx, NODE_CALLER, checks(rig, "the disk is small")).drain is False
    node = listed(rig)
    assert (node.instance_id, node.places) == ("i-1", 4)
    assert node.checks is not None
    assert node.checks.shortcomings == ("the disk is small",)
    assert node.checks.leaving
    assert node.checks.figures.driver == "550.54"
    assert round(node.checks.at.timestamp() * 1000) == rig.clock.now_ms()


def test_the_latest_stands_and_a_claim_does_not_wipe_it(rig: StoreRig) -> None:
    note_checks(rig.ctx, NODE_CALLER, checks(rig, "the disk is small"))
    note_checks(rig.ctx, NODE_CALLER, checks(rig))
    rig.claim(1)
    node = listed(rig)
    assert node.checks is not None
    assert node.checks.shortcomings == ()


def test_a_node_that_says_nothing_has_no_checks(rig: StoreRig) -> None:
    rig.claim(1)
    assert listed(rig).checks is None


def test_a_claim_says_which_instance_and_how_many_places(rig: StoreRig) -> None:
    rig.claim(rig.node(1).model_copy(update={"instance_id": "i-7", "places": 3}))
    (row,) = rig.rows(schema.nodes)
    assert (row["instance_id"], row["places"]) == ("i-7", 3)


def test_a_draining_node_is_told_so(rig: StoreRig) -> None:
    rig.claim(1)
    with rig.store.begin() as tx:
        tx.connection.execute(schema.nodes.update().values(draining=True))
    assert note_checks(rig.ctx, NODE_CALLER, checks(rig)).drain is True


def test_node_policy_and_checks_without_node_key_are_forbidden(rig: StoreRig) -> None:
    with pytest.raises(Forbidden):
        node_policy(rig.ctx, ADMIN, "far")
    with pytest.raises(Forbidden):
        note_checks(rig.ctx, ADMIN, checks(rig))
    assert rig.rows(schema.nodes) == []


def test_no_node_speaks_for_another_projects(rig: StoreRig) -> None:
    rig.add_project("other")
    note_checks(rig.ctx, NODE_CALLER, checks(rig))
    stranger = Caller(project_id="other", scopes=Scope.NODE.reach, key_id="key_other")
    before = rig.rows(schema.nodes)
    with pytest.raises(Conflict):
        note_checks(rig.ctx, stranger, checks(rig, "liar"))
    assert rig.rows(schema.nodes) == before
