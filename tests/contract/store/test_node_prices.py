"""What a node is billed at: its own word counts only where nobody here knows better, and only up to a limit."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.contract.store.test_machine_owners import ANNS_NODE, govern, in_fleet
from tests.contract.store.test_reap import ListedFleet
from tests.fixtures.store_rig import NODE_CALLER, PRICE, StoreRig
from tests.fixtures.users import ANN_ADMIN, ROOT

from giornata.control.access.authenticate import authenticate
from giornata.control.access.keys import create_key, list_keys, revoke_key
from giornata.control.attempts.claiming.known_node import note_checks
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.caller import Caller
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.policy import Policy
from giornata.control.ports.fleet import Instance, InstanceState, Limits, Price
from giornata.domain.errors import Forbidden, InvalidInput
from giornata.protocol.node.node_checks import NodeChecks
from giornata.protocol.node.work import Heartbeat, NodeInfo, Order, ReleaseAttempt
from giornata.protocol.project.admin import CreateKey, Scope
from giornata.store import schema

LIE = 100_000_000_000  # the most that the protocol lets a node say: 55 dollars in two seconds
LISTED = 360_000


class PricedFleet(ListedFleet):
    """Its provider lists this price."""

    def price(self) -> Price:
        return Price(micro_usd_per_hour=LISTED, source="provider")


def lying(node: NodeInfo, price: int = LIE) -> NodeInfo:
    return node.model_copy(update={"price_micro_usd_per_hour": price})


def listed(rig: StoreRig, **limits: bool) -> PricedFleet:
    """The fleet gpu with the instance i-1, which was listed."""
    fleet = PricedFleet(instances={"i-1": Instance(id="i-1", state=InstanceState.RUNNING)}, limits=Limits(**limits))
    govern(rig, fleet)
    reconcile_fleet(rig.ctx, "gpu")
    return fleet


@pytest.mark.parametrize("instance_id", ["i-1", "i-unknown", None])
def test_a_lie_about_the_price_changes_neither_ledger_nor_budget(rig: StoreRig, instance_id: str | None) -> None:
    listed(rig)
    job_id = rig.add_job(budget_micro_usd=1_000_000)
    for start, price in ((1, LIE), (2, 0)):
        lease = rig.lease(lying(in_fleet(rig.node(start), "gpu", instance_id), price))
        rig.clock.advance_s(10)
        assert heartbeat(rig.ctx, lease.attempt_id, Heartbeat(step=start)).order is Order.CONTINUE
        release(rig.ctx, lease.attempt_id, ReleaseAttempt(step=start))
    prices = [row["price_micro_usd_per_hour"] for row in rig.rows(schema.ledger)]
    assert prices == [LISTED, LISTED]
    assert sum(row["amount_micro_usd"] for row in rig.rows(schema.ledger)) == 2 * 10 * LISTED // 3600
    assert get_job(rig.ctx, ROOT, job_id).cost_micro_usd == 2 * 10 * LISTED // 3600
    assert rig.job(job_id)["state"] == "queued"


def test_an_instance_is_billed_as_it_was_listed_itself(rig: StoreRig) -> None:
    listed(rig)
    with rig.store.begin() as tx:
        tx.connection.execute(sa.update(schema.instances).values(price_micro_usd_per_hour=720_000))
    rig.add_job()
    lease = rig.lease(lying(in_fleet(rig.node(1), "gpu", "i-1")))
    assert rig.attempt(lease.attempt_id)["price_micro_usd_per_hour"] == 720_000


def test_a_price_that_the_provider_did_not_say_is_not_taken_for_nothing(rig: StoreRig) -> None:
    listed(rig)
    with rig.store.begin() as tx:
        tx.connection.execute(sa.update(schema.instances).values(price_micro_usd_per_hour=0))
        tx.connection.execute(sa.update(schema.fleets).values(price_micro_usd_per_hour=None))
    rig.add_job()
    lease = rig.lease(in_fleet(rig.node(1), "gpu", "i-1"))
    assert rig.attempt(lease.attempt_id)["price_micro_usd_per_hour"] == PRICE


def test_node_reported_price_counts_where_no_other_price_is_known(rig: StoreRig) -> None:
    listed(rig, nodes_say_their_price=True)
    rig.add_job()
    assert rig.attempt(rig.lease(in_fleet(rig.node(1))).attempt_id)["price_micro_usd_per_hour"] == PRICE
    rig.add_job()
    assert rig.attempt(rig.lease(2).attempt_id)["price_micro_usd_per_hour"] == PRICE


@pytest.mark.parametrize("caller", [NODE_CALLER, ANNS_NODE])
def test_a_node_that_names_more_than_its_key_allows_gets_no_work(rig: StoreRig, caller: Caller) -> None:
    rig.add_project("ann")
    limited = replace(caller, max_price_micro_usd_per_hour=1_000_000)
    rig.add_job(project_id=caller.project_id)
    dear = lying(rig.node(7), 1_000_001)
    for _ in range(2):
        with pytest.raises(Forbidden, match=r"\$1.00 an hour, and this key allows \$1.00.*--max-price"):
            rig.claim(dear, caller=limited)
        with pytest.raises(Forbidden, match="this key allows"):
            note_checks(rig.ctx, limited, NodeChecks(node=dear))
        rig.clock.advance_s(1)
    assert rig.rows(schema.nodes) == []
    assert rig.rows(schema.ledger) == []
    lease = rig.lease(lying(rig.node(7), 1_000_000), caller=limited)
    assert rig.attempt(lease.attempt_id)["price_micro_usd_per_hour"] == 1_000_000


def test_the_limit_of_a_key_says_nothing_about_a_price_of_the_servers(rig: StoreRig) -> None:
    listed(rig)
    rig.add_job()
    limited = replace(NODE_CALLER, max_price_micro_usd_per_hour=1)
    lease = rig.lease(lying(in_fleet(rig.node(1), "gpu", "i-1")), caller=limited)
    assert rig.attempt(lease.attempt_id)["price_micro_usd_per_hour"] == LISTED


def test_keys_carry_their_limit_and_their_fleet(rig: StoreRig) -> None:
    rig.add_project("ann")
    ctx = rig.ctx
    usual = authenticate(ctx, create_key(ctx, ANN_ADMIN, CreateKey(scope=Scope.NODE)).secret)
    assert usual.max_price_micro_usd_per_hour == Policy().max_node_price_micro_usd_per_hour == 100_000_000
    request = CreateKey(scope=Scope.NODE, project_id="ann", fleet="gpu", max_price_micro_usd_per_hour=200_000_000)
    made = create_key(ctx, ROOT, request)
    caller = authenticate(ctx, made.secret)
    assert (caller.fleet, caller.max_price_micro_usd_per_hour) == ("gpu", 200_000_000)
    assert caller.owns_machines is None
    assert usual.owns_machines == "ann"
    shown = {
        each.id: (each.fleet, each.max_price_micro_usd_per_hour) for each in list_keys(ctx, ROOT, None, 10).items
    }
    assert shown[made.id] == ("gpu", 200_000_000)
    assert revoke_key(ctx, ROOT, made.id).fleet == "gpu"


@pytest.mark.parametrize(
    ("caller", "request_", "where"),
    [
        (ANN_ADMIN, CreateKey(scope=Scope.NODE, fleet="gpu"), "fleet"),
        (ANN_ADMIN, CreateKey(scope=Scope.NODE, max_price_micro_usd_per_hour=LIE), "max_price_micro_usd_per_hour"),
        (ROOT, CreateKey(scope=Scope.MEMBER, fleet="gpu"), "fleet"),
        (ROOT, CreateKey(scope=Scope.ADMIN, max_price_micro_usd_per_hour=1), "max_price_micro_usd_per_hour"),
    ],
)
def test_create_key_with_price_or_fleet_limit_by_project_admin_or_for_users_is_refused(
    rig: StoreRig, caller: Caller, request_: CreateKey, where: str
) -> None:
    rig.add_project("ann")
    with pytest.raises(InvalidInput) as refusal:
        create_key(rig.ctx, caller, request_)
    assert [fault.where for fault in refusal.value.faults] == [where]
