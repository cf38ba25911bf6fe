"""The organization's quota, which all of its container groups share."""

from typing import Any

import pytest
from tests.fixtures.salad_cloud import SaladCloud
from tests.fixtures.salad_rented import Rented

from giornata.domain.errors import FleetRefused
from giornata.fleets.salad.shortage import Quota, quota_of


@pytest.fixture
def rented() -> Rented:
    """Of 10 replicas others use 6."""
    rented = Rented(SaladCloud())
    rented.cloud.quotas |= {"container_replicas_quota": 10, "container_replicas_used": 6}
    return rented


def later(rented: Any) -> None:
    """Until the quota is heard again."""
    rented.cloud.advance(61)


def test_the_most_nodes_are_what_others_leave(rented):
    fleet = rented.fleet()
    fleet.list()
    assert fleet.limits.most_nodes == 4
    fleet.desired(3)
    later(rented)
    fleet.list()
    assert fleet.limits.most_nodes == 4, "its own nodes are not those of others"
    rented.cloud.quotas["container_replicas_used"] = 2
    later(rented)
    fleet.list()
    assert fleet.limits.most_nodes == 8


def test_desired_count_above_quota_asks_for_what_the_quota_leaves(rented):
    fleet = rented.fleet()
    fleet.desired(7)
    assert rented.group.replicas == 4
    rented.cloud.quotas["container_replicas_used"] = 5
    fleet.desired(7)
    assert rented.group.replicas == 5, "the quota is read anew whenever more are wanted"


def test_exhausted_quota_creates_no_group_and_is_named_in_shortage(rented):
    rented.cloud.quotas["container_replicas_used"] = 10
    fleet = rented.fleet()
    fleet.desired(3)
    assert rented.cloud.groups == {}
    assert "quota is 10 replicas, and others use 10 of them: at most 0 are for this fleet" in fleet.shortage()


def test_the_shortage_says_nothing_of_a_quota_that_leaves_enough(rented):
    fleet = rented.fleet()
    fleet.desired(2)
    assert "quota" not in fleet.shortage()
    fleet.desired(9)
    assert "others use 6 of them: at most 4 are for this fleet" in fleet.shortage()


def test_a_quota_below_what_the_fleet_has_ends_nobody(rented):
    fleet = rented.fleet()
    fleet.desired(4)
    rented.cloud.quotas |= {"container_replicas_quota": 5, "container_replicas_used": 5}
    later(rented)
    fleet.list()
    assert fleet.limits.most_nodes == 4
    fleet.desired(6)
    assert rented.group.replicas == 4


def test_a_group_at_rest_has_no_replicas_that_could_count(rented):
    fleet = rented.fleet()
    fleet.desired(4)
    fleet.desired(0)
    assert rented.group.replicas == 0
    later(rented)
    fleet.desired(4)
    assert (rented.group.replicas, rented.group.status) == (4, "deploying")


def test_two_fleets_count_each_other(rented):
    first, second = rented.fleet(), rented.fleet("night")
    first.desired(3)
    second.desired(3)
    assert {name: group.replicas for name, group in rented.cloud.groups.items()} == {"loras": 3, "night": 1}


def test_quota_that_cannot_be_read_holds_no_request_for_nodes_back(rented):
    rented.cloud.befalls(403, times=9, only="/quotas")
    rented.fleet().desired(2)
    assert rented.group.replicas == 2
    with pytest.raises(FleetRefused, match="used up"):
        rented.fleet().desired(9)


def test_several_groups_share_what_is_left(rented):
    rented.most_each = 3
    fleet = rented.fleet()
    fleet.desired(9)
    assert {name: group.replicas for name, group in rented.cloud.groups.items()} == {"loras": 3, "loras-group-2": 1}


@pytest.mark.parametrize(
    ("replicas", "used", "own", "most"),
    [(100, 0, 0, 100), (100, 30, 10, 80), (100, 100, 10, 10), (100, 5, 10, 100), (5, 20, 10, 10), (None, 5, 1, None)],
)
def test_quota_most_is_replicas_minus_use_by_others(replicas, used, own, most):
    assert Quota(replicas=replicas, used=used, own=own).most == most


def test_a_document_that_does_not_say_is_no_limit():
    assert quota_of({}, own=3).most is None
    assert quota_of({"container_replicas_quota": 9}, own=3).most == 9
