"""How many nodes fetch a large file for their leases at once: ControlNets here, through the real store."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from tests.contract.store.test_picture_routing import ReportingNode, stored_model
from tests.fixtures.picture_rig import PictureRig, generate_spec
from tests.fixtures.store_rig import StoreRig

from giornata.domain.generation.model_routing import RoutingPolicy, is_relief
from giornata.protocol.generation.expand import plain_base_key
from giornata.protocol.node.work import ClaimReply

POLICY = RoutingPolicy(large_bytes=5)
WAITS = "models-elsewhere"
REQUESTS = itertools.count(step=1000)


@pytest.fixture
def picture_rig(rig: StoreRig) -> PictureRig:
    made = PictureRig(rig)
    made.ctx = replace(rig.ctx, policy=replace(rig.ctx.policy, routing=POLICY))
    return made


class ModelsOfPictures:
    """A base in the GPU memory of all nodes, a large ControlNet, and a small LoRA."""

    def __init__(self, picture_rig: PictureRig) -> None:
        self.picture_rig = picture_rig
        self.base, self.net, self.image = (stored_model(picture_rig, each) for each in (b"bases", b"large net", b"i"))
        self.lora = stored_model(picture_rig, b"lora")

    def node(self, number: int, *more: str) -> ReportingNode:
        made = ReportingNode(self.picture_rig, number, self.base, *more)
        made.gpu = (plain_base_key("base", self.base),)
        return made

    def order(self, number: int = 1, **more: Any) -> str:
        spec = generate_spec(number, side_px=1024, steps=30) | {"model": {"name": "base", "sha256": self.base}}
        return self.picture_rig.order(spec=spec | more)

    def order_of_net(self, number: int = 1) -> str:
        return self.order(number, controlnets=[{"name": "net", "sha256": self.net, "image": self.image}])


@pytest.fixture
def models(picture_rig: PictureRig) -> ModelsOfPictures:
    return ModelsOfPictures(picture_rig)


def drawn_order(reply: ClaimReply) -> str | None:
    return None if reply.picture_lease is None else reply.picture_lease.pictures[0].order_id


def claims(node: ReportingNode, *, relief: bool = False, **more: Any) -> ClaimReply:
    """Ask for pictures, as one of the share of relief or not."""
    names = (f"claim-{node.node.node_id}-{number:06d}" for number in itertools.count(next(REQUESTS)))
    return node.claim(request_id=next(name for name in names if is_relief(name, POLICY) is relief), **more)


def test_large_file_is_fetched_by_one_node_and_the_pictures_wait_for_it(models: ModelsOfPictures) -> None:
    first, second = models.node(1), models.node(2)
    order_id = models.order_of_net()
    assert drawn_order(claims(first)) == order_id
    waiting = models.order_of_net()
    assert (claims(second).picture_lease, claims(second).reason) == (None, WAITS)
    first.has(models.base, models.net)
    assert drawn_order(claims(first)) == waiting


def test_node_that_fetches_the_file_gets_the_next_pictures_that_need_it(models: ModelsOfPictures) -> None:
    node = models.node(1)
    orders = [models.order_of_net(), models.order_of_net()]
    assert [drawn_order(claims(node, most=1)), drawn_order(claims(node, most=1))] == orders


def test_pictures_behind_those_that_wait_are_drawn_meanwhile(models: ModelsOfPictures) -> None:
    claims_before = models.order_of_net()
    assert drawn_order(claims(models.node(1))) == claims_before
    models.order_of_net()
    behind = models.order()
    assert drawn_order(claims(models.node(2))) == behind


def test_only_those_pictures_of_a_lease_are_given_back_that_need_the_file(models: ModelsOfPictures) -> None:
    models.order_of_net()
    claims(models.node(1))
    net = {"name": "net", "sha256": models.net, "image": models.image}
    mixed = models.order(prompts=[], pictures=[{"prompt": "a cat"}, {"prompt": "a dog", "controlnets": [net]}])
    lease = claims(models.node(2)).picture_lease
    assert lease is not None
    assert [(each.order_id, each.params["controlnets"]) for each in lease.pictures] == [(mixed, [])]
    assert models.picture_rig.states(mixed) == ["leased", "queued"]


def test_small_file_is_fetched_by_every_node_that_gets_a_lease(models: ModelsOfPictures) -> None:
    for number in (1, 2, 3):
        order_id = models.order(loras=[{"name": "l", "sha256": models.lora}])
        assert drawn_order(claims(models.node(number))) == order_id


def test_work_for_more_nodes_has_the_file_fetched_by_more_nodes(models: ModelsOfPictures) -> None:
    order_id = models.order_of_net(300)
    assert [drawn_order(claims(models.node(number))) for number in (1, 2, 3)] == [order_id] * 3


def test_one_lease_in_sixteen_fetches_the_file_whoever_has_it(models: ModelsOfPictures) -> None:
    models.order_of_net()
    claims(models.node(1))
    waiting = models.order_of_net()
    second = models.node(2)
    assert claims(second).picture_lease is None
    assert drawn_order(claims(second, relief=True)) == waiting


def test_pictures_that_have_waited_for_the_delay_are_fetched_for_by_another_node(models: ModelsOfPictures) -> None:
    models.order_of_net()
    busy, second = models.node(1), models.node(2)
    claims(busy)
    waiting = models.order_of_net()
    assert claims(second).picture_lease is None
    models.picture_rig.rig.clock.advance_s(POLICY.delay_s)
    claims(busy, most=0)
    assert drawn_order(claims(second)) == waiting


def test_node_that_does_not_report_its_files_waits_for_no_other(models: ModelsOfPictures) -> None:
    models.order_of_net()
    claims(models.node(1))
    order_id = models.order_of_net()
    assert drawn_order(models.picture_rig.claim(2)) == order_id


def test_node_that_has_gone_silent_while_it_fetches_delays_nobody(models: ModelsOfPictures) -> None:
    models.order_of_net()
    claims(models.node(1))
    models.picture_rig.rig.clock.advance_s(models.picture_rig.ctx.policy.node_gone_after_s + 1)
    order_id = models.order_of_net()
    assert drawn_order(claims(models.node(2))) == order_id
