"""Instances are billed by intervals at one price: what was paid does not change when the price does."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from tests.contract.store.test_budgets import statements
from tests.fixtures.fleets import ToyFleet, governed, with_fleets
from tests.fixtures.work import Workshop
from tests.fixtures.yard import Yard

from giornata.control.caller import Caller
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import InstanceState
from giornata.control.projects.read_costs import read_costs
from giornata.control.timestamps import instant
from giornata.domain.errors import FleetUnavailable
from giornata.domain.fleet_plan import ScalingPolicy
from giornata.protocol.admin import ROOT_PROJECT, FleetCosts, Scope
from giornata.store import schema
from giornata.store.dialects import parse_url, postgres, sqlite_writer
from giornata.store.migrate import _config, migrate

ROOT = Caller(project_id=ROOT_PROJECT, scope=Scope.ADMIN, key_id="key_root")
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
def yard(shop: Workshop) -> Yard:
    return Yard(shop, price=PRICE)


def rows(shop: Workshop, instance_id: str = "one") -> list[tuple[int, int | None, int]]:
    """Seconds since the first began, and the price, of each interval."""
    found = sorted(shop.rows(schema.billed_intervals, instance_id=instance_id), key=lambda row: row["seq"])
    begin_ms = found[0]["from_ms"] if found else 0
    return [
        (
            (row["from_ms"] - begin_ms) // 1000,
            None if row["to_ms"] is None else (row["to_ms"] - begin_ms) // 1000,
            row["price_micro_usd_per_hour"],
        )
        for row in found
    ]


def bill(shop: Workshop) -> FleetCosts:
    (fleet,) = read_costs(shop.ctx, ROOT, instant(shop.clock.now_ms()) - timedelta(days=1), None).fleets
    return fleet


def listings(yard: Yard, seconds: int, *, every_s: int = 10) -> None:
    """The provider is listed every ten seconds, at last after so many seconds."""
    for _ in range(seconds // every_s):
        yard.shop.clock.advance_s(every_s)
        reconcile_fleet(yard.ctx, "gpu")


def start(yard: Yard) -> None:
    yard.provider.add("one")
    reconcile_fleet(yard.ctx, "gpu")


def test_a_price_that_moves_does_not_change_what_was_paid_before(yard: Yard, shop: Workshop) -> None:
    start(yard)
    listings(yard, 100)
    yard.provider.price_now = 4 * PRICE
    listings(yard, 100)
    yard.provider.price_now = PRICE
    listings(yard, 100)
    assert rows(shop) == [(0, 110, PRICE), (110, 210, 4 * PRICE), (210, None, PRICE)]
    assert bill(shop).billed_s == 300
    assert bill(shop).billed_micro_usd == (110 + 4 * 100 + 90) * PER_S
    assert yard.instance("one")["price_micro_usd_per_hour"] == PRICE, "the next attempt's price"


def test_a_time_that_is_asked_about_has_the_prices_of_that_time(yard: Yard, shop: Workshop) -> None:
    begin = instant(shop.clock.now_ms())
    start(yard)
    listings(yard, 100)
    yard.provider.price_now = 4 * PRICE
    listings(yard, 100)
    parts = [
        read_costs(shop.ctx, ROOT, begin + timedelta(seconds=since), begin + timedelta(seconds=until)).fleets
        for since, until in ((0, 60), (60, 150), (150, 300))
    ]
    assert [fleet.billed_micro_usd for (fleet,) in parts] == [60 * PER_S, (50 + 4 * 40) * PER_S, 4 * 50 * PER_S]


def test_a_row_is_written_when_the_price_changes_and_not_at_each_listing(yard: Yard, shop: Workshop) -> None:
    start(yard)
    with statements(shop) as seen:
        listings(yard, 600)
    assert len(seen) > 60, "the fleet was listed"
    assert not [text for text in seen if "billed_intervals" in text], "neither read nor written"
    assert rows(shop) == [(0, None, PRICE)]
    yard.provider.price_now = 2 * PRICE
    with statements(shop) as seen:
        listings(yard, 600)
    assert len([text for text in seen if "billed_intervals" in text]) == 2, "read once and written once"
    assert len(rows(shop)) == 2


def test_a_price_that_was_not_known_is_taken_to_have_been_the_same(yard: Yard, shop: Workshop) -> None:
    yard.provider.price_now = 0
    start(yard)
    listings(yard, 50)
    yard.provider.price_now = PRICE
    listings(yard, 50)
    assert rows(shop) == [(0, None, PRICE)]


def test_while_the_provider_says_no_price_the_one_heard_last_stands(yard: Yard, shop: Workshop) -> None:
    class Silent(ToyFleet):
        silent = False

        def price(self):
            if self.silent:
                raise FleetUnavailable("no price today")
            return super().price()

    provider = Silent(price=PRICE)
    yard.ctx = shop.ctx = with_fleets(shop.ctx, {"gpu": governed(provider)})
    yard.provider = provider
    start(yard)
    provider.silent = True
    listings(yard, 50)
    provider.add("two")
    listings(yard, 50)
    assert rows(shop) == [(0, None, PRICE)]
    assert rows(shop, "two") == [(0, None, PRICE)]


def test_only_the_time_in_which_it_runs_is_billed(yard: Yard, shop: Workshop) -> None:
    yard.provider.add("one", InstanceState.STARTING)
    listings(yard, 50)
    assert rows(shop) == []
    yard.provider.add("one")
    listings(yard, 50)
    yard.provider.add("one", InstanceState.STARTING)
    listings(yard, 50)
    yard.provider.add("one")
    listings(yard, 50)
    # It ended between two listings: the middle is as often too early as too late.
    assert rows(shop) == [(0, 45, PRICE), (100, None, PRICE)]
    assert bill(shop).billed_s == 45 + 40
    yard.provider.add("one", InstanceState.STOPPING)
    listings(yard, 50)
    assert bill(shop).billed_s == 45 + 45


def test_it_is_billed_since_when_the_provider_says_that_it_runs(yard: Yard, shop: Workshop) -> None:
    begun_ms = shop.clock.now_ms() - 7_000
    yard.provider.add("one")
    yard.provider.instances["one"] = replace(yard.provider.instances["one"], running_since_ms=begun_ms)
    listings(yard, 10)
    (row,) = shop.rows(schema.billed_intervals)
    assert row["from_ms"] == begun_ms


def test_it_is_billed_since_its_node_was_first_heard_if_that_is_earlier(yard: Yard, shop: Workshop) -> None:
    yard.provider.add("one", InstanceState.STARTING)
    reconcile_fleet(yard.ctx, "gpu")
    shop.clock.advance_s(4)
    heard_ms = shop.clock.now_ms()
    yard.claim(yard.provider.instances["one"])
    shop.clock.advance_s(6)
    yard.provider.add("one")
    reconcile_fleet(yard.ctx, "gpu")
    (row,) = shop.rows(schema.billed_intervals)
    assert row["from_ms"] == heard_ms


def test_what_vanishes_is_billed_to_the_middle_of_what_is_not_known(yard: Yard, shop: Workshop) -> None:
    start(yard)
    listings(yard, 100)
    del yard.provider.instances["one"]
    shop.clock.advance_s(10)
    reconcile_fleet(yard.ctx, "gpu")
    assert rows(shop) == [(0, 105, PRICE)]
    assert bill(shop).billed_s == 105


def test_who_was_heard_was_there_and_a_missed_heartbeat_says_who_was_not(yard: Yard, shop: Workshop) -> None:
    start(yard)
    yard.provider.add("other")
    listings(yard, 100)
    shop.clock.advance_s(20)
    yard.claim(yard.provider.instances["one"])
    del yard.provider.instances["one"], yard.provider.instances["other"]
    # The provider cannot be listed for two minutes. A heartbeat of `one` was due thirty seconds after 120 s.
    shop.clock.advance_s(120)
    reconcile_fleet(yard.ctx, "gpu")
    assert rows(shop) == [(0, (120 + 150) // 2, PRICE)]
    assert rows(shop, "other") == [(0, (100 + 240) // 2 - 10, PRICE)], "it was first listed after ten seconds"


def test_whom_nobody_could_hear_has_missed_no_heartbeat(yard: Yard, shop: Workshop) -> None:
    """The server was away for an hour, and with it everybody who listens."""
    start(yard)
    listings(yard, 100)
    yard.claim(yard.provider.instances["one"])
    del yard.provider.instances["one"]
    shop.clock.advance_s(3600)
    reconcile_fleet(yard.ctx, "gpu")
    assert rows(shop) == [(0, 100 + 1800, PRICE)]


def test_what_was_asked_to_end_ended_when_the_provider_heard_it(yard: Yard, shop: Workshop) -> None:
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    with shop.store.begin() as tx:
        tx.connection.execute(sa.update(schema.jobs).values(state="canceled"))
    yard.govern(ScalingPolicy(max_nodes=0))
    yard.turns(30)
    assert yard.present() == []
    assert rows(shop, instance.id)[0][1] is not None
    assert shop.rows(schema.fleets)[0]["told_at_ms"] == shop.rows(schema.billed_intervals)[0]["to_ms"]


def test_an_intention_that_the_provider_has_not_heard_ends_no_bill(yard: Yard, shop: Workshop) -> None:
    """The provider does not answer for an hour: what was to end is billed until it hears of it."""
    shop.add_job()
    yard.turn()
    (instance,) = yard.present()
    began_ms = shop.rows(schema.billed_intervals)[0]["from_ms"]
    with shop.store.begin() as tx:
        tx.connection.execute(sa.update(schema.jobs).values(state="canceled"))
    yard.govern(ScalingPolicy(max_nodes=0))
    yard.provider.trouble = FleetUnavailable("it rains")
    for _ in range(60):
        for loop in (reconcile_fleet, scale_fleet):
            with pytest.raises(FleetUnavailable):
                loop(yard.ctx, "gpu")
            shop.clock.advance_s(60)
    assert yard.instance(instance.id)["ended_at_ms"] is not None
    yard.provider.trouble = None
    heard_ms = shop.clock.now_ms()
    scale_fleet(yard.ctx, "gpu")
    assert bill(shop).billed_s * 1000 == heard_ms - began_ms, "also before the next listing"
    shop.clock.advance_s(10)
    reconcile_fleet(yard.ctx, "gpu")
    assert bill(shop).billed_s * 1000 == heard_ms - began_ms


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


def test_each_instance_costs_what_its_offer_costs_and_the_offer_is_remembered(shop: Workshop) -> None:
    provider = OffersFleet()
    shop.ctx = with_fleets(shop.ctx, {"gpu": governed(provider)})
    for name in ("a", "b", "c"):
        provider.add(name)
    provider.offers = {"a": "small", "b": "large"}
    reconcile_fleet(shop.ctx, "gpu")
    provider.offers = {}
    shop.clock.advance_s(100)
    reconcile_fleet(shop.ctx, "gpu")
    prices = {row["id"]: row["price_micro_usd_per_hour"] for row in shop.rows(schema.instances)}
    assert prices == {"a": PRICE, "b": 4 * PRICE, "c": 4 * PRICE}, "the dearest, where the provider says nothing"
    assert shop.rows(schema.fleets)[0]["price_micro_usd_per_hour"] == 4 * PRICE
    assert bill(shop).billed_micro_usd == (100 + 400 + 400) * PER_S
    provider.asked_by_offer["small"] = 2 * PRICE
    reconcile_fleet(shop.ctx, "gpu")
    assert rows(shop, "a") == [(0, 100, PRICE), (100, None, 2 * PRICE)]
    assert len(rows(shop, "b")) == len(rows(shop, "c")) == 1


def test_the_class_of_an_instance_that_becomes_known_is_its_price_from_then_on(shop: Workshop) -> None:
    provider = OffersFleet()
    shop.ctx = with_fleets(shop.ctx, {"gpu": governed(provider)})
    provider.add("a")
    reconcile_fleet(shop.ctx, "gpu")
    shop.clock.advance_s(100)
    provider.offers = {"a": "small"}
    reconcile_fleet(shop.ctx, "gpu")
    assert rows(shop, "a") == [(0, 100, 4 * PRICE), (100, None, PRICE)]
