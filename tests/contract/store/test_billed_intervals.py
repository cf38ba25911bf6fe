"""Instances are billed by intervals at one price: what was paid does not change when the price does."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from tests.contract.store.test_budgets import statements
from tests.fixtures.fleet_rig import FleetRig
from tests.fixtures.fleets import ToyFleet, governed, with_fleets
from tests.fixtures.store_rig import StoreRig

from giornata.control.caller import Caller
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import InstanceState
from giornata.control.projects.read_costs import read_costs
from giornata.control.timestamps import instant
from giornata.domain.errors import FleetUnavailable
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.protocol.project.admin import ROOT_PROJECT, FleetCosts, Scope
from giornata.store import schema
from giornata.store.database.dialects import parse_url, postgres, sqlite_writer
from giornata.store.database.migrate import _config, migrate

ROOT = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="key_root")
PRICE = 360_000  # 100 micro-dollars a second
PER_S = 100


class OffersFleet(ToyFleet):
    """Its provider rents machines at several prices. `offers` says on which one each instance is."""

    def __init__(self) -> None:
        super().__init__(price=4 * PRICE)
        self.offers: dict[str, str] = {}
        self.asked_by_offer = {"small": PRICE, "large": 4 * PRICE}

    def prices(self) -> dict[str, int]:
        return self.asked_by_offer

    def list(self) -> Sequence:
        return [replace(each, offer=self.offers.get(each.id, "")) for each in super().list()]


@pytest.fixture
def fleet_rig(rig: StoreRig) -> FleetRig:
    return FleetRig(rig, price=PRICE)


def rows(rig: StoreRig, instance_id: str = "one") -> list[tuple[int, int | None, int]]:
    """Seconds since the first began, and the price, of each interval."""
    found = sorted(rig.rows(schema.billed_intervals, instance_id=instance_id), key=lambda row: row["seq"])
    begin_ms = found[0]["from_ms"] if found else 0
    return [
        (
            (row["from_ms"] - begin_ms) // 1000,
            None if row["to_ms"] is None else (row["to_ms"] - begin_ms) // 1000,
            row["price_micro_usd_per_hour"],
        )
        for row in found
    ]


def bill(rig: StoreRig) -> FleetCosts:
    (fleet,) = read_costs(rig.ctx, ROOT, instant(rig.clock.now_ms()) - timedelta(days=1), None).fleets
    return fleet


def listings(fleet_rig: FleetRig, seconds: int, *, every_s: int = 10) -> None:
    """The provider is listed every ten seconds, at last after so many seconds."""
    for _ in range(seconds // every_s):
        fleet_rig.rig.clock.advance_s(every_s)
        reconcile_fleet(fleet_rig.ctx, "gpu")


def start(fleet_rig: FleetRig) -> None:
    fleet_rig.provider.add("one")
    reconcile_fleet(fleet_rig.ctx, "gpu")


def test_a_price_that_moves_does_not_change_what_was_paid_before(fleet_rig: FleetRig, rig: StoreRig) -> None:
    start(fleet_rig)
    listings(fleet_rig, 100)
    fleet_rig.provider.price_now = 4 * PRICE
    listings(fleet_rig, 100)
    fleet_rig.provider.price_now = PRICE
    listings(fleet_rig, 100)
    assert rows(rig) == [(0, 110, PRICE), (110, 210, 4 * PRICE), (210, None, PRICE)]
    assert bill(rig).billed_s == 300
    assert bill(rig).billed_micro_usd == (110 + 4 * 100 + 90) * PER_S
    assert fleet_rig.instance("one")["price_micro_usd_per_hour"] == PRICE, "the next attempt's price"


def test_a_time_that_is_asked_about_has_the_prices_of_that_time(fleet_rig: FleetRig, rig: StoreRig) -> None:
    begin = instant(rig.clock.now_ms())
    start(fleet_rig)
    listings(fleet_rig, 100)
    fleet_rig.provider.price_now = 4 * PRICE
    listings(fleet_rig, 100)
    parts = [
        read_costs(rig.ctx, ROOT, begin + timedelta(seconds=since), begin + timedelta(seconds=until)).fleets
        for since, until in ((0, 60), (60, 150), (150, 300))
    ]
    assert [fleet.billed_micro_usd for (fleet,) in parts] == [60 * PER_S, (50 + 4 * 40) * PER_S, 4 * 50 * PER_S]


def test_a_row_is_written_when_the_price_changes_and_not_at_each_listing(fleet_rig: FleetRig, rig: StoreRig) -> None:
    start(fleet_rig)
    with statements(rig) as seen:
        listings(fleet_rig, 600)
    assert len(seen) > 60, "the fleet was listed"
    assert not [text for text in seen if "billed_intervals" in text], "neither read nor written"
    assert rows(rig) == [(0, None, PRICE)]
    fleet_rig.provider.price_now = 2 * PRICE
    with statements(rig) as seen:
        listings(fleet_rig, 600)
    assert len([text for text in seen if "billed_intervals" in text]) == 2, "read once and written once"
    assert len(rows(rig)) == 2


def test_a_price_that_was_not_known_is_taken_to_have_been_the_same(fleet_rig: FleetRig, rig: StoreRig) -> None:
    fleet_rig.provider.price_now = 0
    start(fleet_rig)
    listings(fleet_rig, 50)
    fleet_rig.provider.price_now = PRICE
    listings(fleet_rig, 50)
    assert rows(rig) == [(0, None, PRICE)]


def test_while_the_provider_says_no_price_the_one_heard_last_stands(fleet_rig: FleetRig, rig: StoreRig) -> None:
    class Silent(ToyFleet):
        silent = False

        def price(self):
            if self.silent:
                raise FleetUnavailable("no price today")
            return super().price()

    provider = Silent(price=PRICE)
    fleet_rig.ctx = rig.ctx = with_fleets(rig.ctx, {"gpu": governed(provider)})
    fleet_rig.provider = provider
    start(fleet_rig)
    provider.silent = True
    listings(fleet_rig, 50)
    provider.add("two")
    listings(fleet_rig, 50)
    assert rows(rig) == [(0, None, PRICE)]
    assert rows(rig, "two") == [(0, None, PRICE)]


def test_instance_is_billed_only_while_it_runs(fleet_rig: FleetRig, rig: StoreRig) -> None:
    fleet_rig.provider.add("one", InstanceState.STARTING)
    listings(fleet_rig, 50)
    assert rows(rig) == []
    fleet_rig.provider.add("one")
    listings(fleet_rig, 50)
    fleet_rig.provider.add("one", InstanceState.STARTING)
    listings(fleet_rig, 50)
    fleet_rig.provider.add("one")
    listings(fleet_rig, 50)
    # It ended between two listings: the middle is as often too early as too late.
    assert rows(rig) == [(0, 45, PRICE), (100, None, PRICE)]
    assert bill(rig).billed_s == 45 + 40
    fleet_rig.provider.add("one", InstanceState.STOPPING)
    listings(fleet_rig, 50)
    assert bill(rig).billed_s == 45 + 45


def test_instance_is_billed_from_running_since_of_the_provider(fleet_rig: FleetRig, rig: StoreRig) -> None:
    begun_ms = rig.clock.now_ms() - 7_000
    fleet_rig.provider.add("one")
    fleet_rig.provider.instances["one"] = replace(fleet_rig.provider.instances["one"], running_since_ms=begun_ms)
    listings(fleet_rig, 10)
    (row,) = rig.rows(schema.billed_intervals)
    assert row["from_ms"] == begun_ms


def test_instance_is_billed_from_first_claim_of_its_node_if_that_is_earlier(
    fleet_rig: FleetRig, rig: StoreRig
) -> None:
    fleet_rig.provider.add("one", InstanceState.STARTING)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    rig.clock.advance_s(4)
    heard_ms = rig.clock.now_ms()
    fleet_rig.claim(fleet_rig.provider.instances["one"])
    rig.clock.advance_s(6)
    fleet_rig.provider.add("one")
    reconcile_fleet(fleet_rig.ctx, "gpu")
    (row,) = rig.rows(schema.billed_intervals)
    assert row["from_ms"] == heard_ms


def test_vanished_instance_is_billed_to_the_middle_between_listings(fleet_rig: FleetRig, rig: StoreRig) -> None:
    start(fleet_rig)
    listings(fleet_rig, 100)
    del fleet_rig.provider.instances["one"]
    rig.clock.advance_s(10)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert rows(rig) == [(0, 105, PRICE)]
    assert bill(rig).billed_s == 105


def test_vanished_instance_is_billed_between_last_claim_and_missed_heartbeat(
    fleet_rig: FleetRig, rig: StoreRig
) -> None:
    start(fleet_rig)
    fleet_rig.provider.add("other")
    listings(fleet_rig, 100)
    rig.clock.advance_s(20)
    fleet_rig.claim(fleet_rig.provider.instances["one"])
    del fleet_rig.provider.instances["one"], fleet_rig.provider.instances["other"]
    # The provider cannot be listed for two minutes. A heartbeat of `one` was due thirty seconds after 120 s.
    rig.clock.advance_s(120)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert rows(rig) == [(0, (120 + 150) // 2, PRICE)]
    assert rows(rig, "other") == [(0, (100 + 240) // 2 - 10, PRICE)], "it was first listed after ten seconds"


def test_whom_nobody_could_hear_has_missed_no_heartbeat(fleet_rig: FleetRig, rig: StoreRig) -> None:
    """The server was away for an hour, and with it everybody who listens."""
    start(fleet_rig)
    listings(fleet_rig, 100)
    fleet_rig.claim(fleet_rig.provider.instances["one"])
    del fleet_rig.provider.instances["one"]
    rig.clock.advance_s(3600)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert rows(rig) == [(0, 100 + 1800, PRICE)]


def test_instance_asked_to_end_is_billed_until_the_provider_was_told(fleet_rig: FleetRig, rig: StoreRig) -> None:
    rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    with rig.store.begin() as tx:
        tx.connection.execute(sa.update(schema.jobs).values(state="canceled"))
    fleet_rig.govern(ScalingPolicy(max_nodes=0))
    fleet_rig.turns(30)
    assert fleet_rig.present() == []
    assert rows(rig, instance.id)[0][1] is not None
    assert rig.rows(schema.fleets)[0]["told_at_ms"] == rig.rows(schema.billed_intervals)[0]["to_ms"]


def test_an_intention_that_the_provider_has_not_heard_ends_no_bill(fleet_rig: FleetRig, rig: StoreRig) -> None:
    """The provider does not answer for an hour: what was to end is billed until it hears of it."""
    rig.add_job()
    fleet_rig.turn()
    (instance,) = fleet_rig.present()
    began_ms = rig.rows(schema.billed_intervals)[0]["from_ms"]
    with rig.store.begin() as tx:
        tx.connection.execute(sa.update(schema.jobs).values(state="canceled"))
    fleet_rig.govern(ScalingPolicy(max_nodes=0))
    fleet_rig.provider.trouble = FleetUnavailable("it rains")
    for _ in range(60):
        for loop in (reconcile_fleet, scale_fleet):
            with pytest.raises(FleetUnavailable):
                loop(fleet_rig.ctx, "gpu")
            rig.clock.advance_s(60)
    assert fleet_rig.instance(instance.id)["ended_at_ms"] is not None
    fleet_rig.provider.trouble = None
    heard_ms = rig.clock.now_ms()
    scale_fleet(fleet_rig.ctx, "gpu")
    assert bill(rig).billed_s * 1000 == heard_ms - began_ms, "also before the next listing"
    rig.clock.advance_s(10)
    reconcile_fleet(fleet_rig.ctx, "gpu")
    assert bill(rig).billed_s * 1000 == heard_ms - began_ms


def test_instances_from_before_are_billed_at_the_price_that_is_known(
    request: pytest.FixtureRequest, tmp_path: Path, database_url: str
) -> None:
    make = request.getfixturevalue("empty_postgres") if database_url.startswith("postgres") else None
    url = f"sqlite:///{tmp_path}/old.db" if make is None else make()
    engine_of = sqlite_writer if make is None else postgres
    engine = engine_of(parse_url(url))
    with engine.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0011")
        for values in OLD:
            connection.exec_driver_sql(f"{INTO} VALUES ({values})")
    engine.dispose()
    migrate(url)
    engine = engine_of(parse_url(url))
    columns = (schema.billed_intervals.c[name] for name in ("instance_id", "from_ms", "to_ms"))
    with engine.begin() as connection:
        assert [tuple(row) for row in connection.execute(sa.select(*columns).order_by("instance_id"))] == [
            ("ended", 10, 90),
            ("restarts", 10, 60),
            ("runs", 10, None),
        ]
        assert set(connection.scalars(sa.select(schema.billed_intervals.c.price_micro_usd_per_hour))) == {PRICE}
    engine.dispose()


INTO = (
    "INSERT INTO instances (fleet, id, name, state, price_micro_usd_per_hour, first_listed_at_ms, last_listed_at_ms,"
    " running_at_ms, gone_at_ms)"
)
OLD = (
    f"'gpu', 'ended', 'n', 'running', {PRICE}, 5, 60, 10, 90",
    f"'gpu', 'runs', 'n', 'running', {PRICE}, 5, 60, 10, NULL",
    f"'gpu', 'restarts', 'n', 'starting', {PRICE}, 5, 60, 10, NULL",
    f"'gpu', 'never-ran', 'n', 'starting', {PRICE}, 5, 60, NULL, NULL",
)


def test_each_instance_costs_what_its_offer_costs_and_the_offer_is_remembered(rig: StoreRig) -> None:
    provider = OffersFleet()
    rig.ctx = with_fleets(rig.ctx, {"gpu": governed(provider)})
    for name in ("a", "b", "c"):
        provider.add(name)
    provider.offers = {"a": "small", "b": "large"}
    reconcile_fleet(rig.ctx, "gpu")
    provider.offers = {}
    rig.clock.advance_s(100)
    reconcile_fleet(rig.ctx, "gpu")
    prices = {row["id"]: row["price_micro_usd_per_hour"] for row in rig.rows(schema.instances)}
    assert prices == {"a": PRICE, "b": 4 * PRICE, "c": 4 * PRICE}, "the dearest, where the provider says nothing"
    assert rig.rows(schema.fleets)[0]["price_micro_usd_per_hour"] == 4 * PRICE
    assert bill(rig).billed_micro_usd == (100 + 400 + 400) * PER_S
    provider.asked_by_offer["small"] = 2 * PRICE
    reconcile_fleet(rig.ctx, "gpu")
    assert rows(rig, "a") == [(0, 100, PRICE), (100, None, 2 * PRICE)]
    assert len(rows(rig, "b")) == len(rows(rig, "c")) == 1


def test_the_class_of_an_instance_that_becomes_known_is_its_price_from_then_on(rig: StoreRig) -> None:
    provider = OffersFleet()
    rig.ctx = with_fleets(rig.ctx, {"gpu": governed(provider)})
    provider.add("a")
    reconcile_fleet(rig.ctx, "gpu")
    rig.clock.advance_s(100)
    provider.offers = {"a": "small"}
    reconcile_fleet(rig.ctx, "gpu")
    assert rows(rig, "a") == [(0, 100, 4 * PRICE), (100, None, PRICE)]
