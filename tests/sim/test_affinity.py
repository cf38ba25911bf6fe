"""Routing by models on a small fleet: what the full size of `giornata simulate affinity` shows, in seconds."""

import math
from dataclasses import replace

import pytest

from giornata.domain.generation.model_routing import RoutingPolicy
from giornata.simulate.affinity.bounds import fewest_loads, random_loads, shortest_drain_s
from giornata.simulate.affinity.cases import (
    AffinityCase,
    CaseResult,
    around_outage,
    loads_per_request,
    outage_marks,
    play_case,
)
from giornata.simulate.affinity.routed_fleet import RoutedFleet, ServedRequest
from giornata.simulate.affinity.setting import AffinitySetting

POLICY = RoutingPolicy()
OUTAGE = CaseResult(
    seed=0,
    requests=1000,
    loads_per_request=0.3,
    fetches_per_request=0.0,
    mean_wait_s=100.0,
    p95_wait_s=500.0,
    drawing_share=0.8,
    overrun=1.0,
    loads_before_outage=0.4,
    loads_within_ten_minutes=0.2,
    loads_in_next_ten_minutes=0.42,
    loads_after_outage=0.3,
    drained_after_s=800.0,
    shortest_drain_s=600.0,
    waits_back_after_s=780.0,
)
SMALL = AffinitySetting(nodes=30, bases=300, warm_up_s=600.0, measured_s=1200.0)


def played(setting: AffinitySetting, *, random_routing: bool = False, seed: int = 0) -> CaseResult:
    case = AffinityCase(name="test", about="", setting=setting, random_routing=random_routing)
    return play_case(case, POLICY, seed=seed)


def test_affinity_loads_less_than_half_of_random_and_no_less_than_the_bound() -> None:
    loads = played(SMALL).loads_per_request
    assert loads < 0.5 * random_loads(SMALL)
    assert loads > fewest_loads(SMALL, wait_s=POLICY.delay_s)


def test_random_routing_loads_as_often_as_che_s_approximation_says() -> None:
    assert played(SMALL, random_routing=True).loads_per_request == pytest.approx(random_loads(SMALL), rel=0.03)


def test_each_request_is_drawn_once_though_nodes_end() -> None:
    setting = AffinitySetting(nodes=20, bases=100, warm_up_s=0.0, measured_s=900.0, node_life_s=120.0, disk_bases=5)
    fleet = RoutedFleet(setting, POLICY, seed=3)
    fleet.play()
    assert fleet.queue.waiting == 0
    assert len(fleet.served) == pytest.approx(setting.requests_per_s * setting.measured_s, rel=0.2)
    assert all(each.began_ms >= each.arrived_ms for each in fleet.served)


def test_counts_of_holders_equal_what_nodes_hold_after_nodes_ended() -> None:
    setting = AffinitySetting(nodes=10, bases=50, warm_up_s=0.0, measured_s=600.0, node_life_s=100.0, disk_bases=4)
    fleet = RoutedFleet(setting, POLICY, seed=1)
    fleet.play()
    on_gpus = sum(fleet.queue.gpu_holders.values())
    on_disks = sum(fleet.queue.disk_holders.values())
    assert on_gpus == sum(len(node.gpu) for node in fleet.nodes)
    assert on_disks == sum(len(node.disk) for node in fleet.nodes)


def test_fleet_drains_the_requests_of_an_outage() -> None:
    setting = AffinitySetting(
        nodes=30, bases=300, warm_up_s=300.0, measured_s=1800.0, outage_from_s=600.0, outage_s=300.0
    )
    result = played(setting)
    assert result.drained_after_s is not None
    assert result.shortest_drain_s is not None
    assert result.shortest_drain_s < result.drained_after_s < 600
    assert result.waits_back_after_s == pytest.approx(result.drained_after_s, abs=90)
    assert result.overrun < 1.05


def test_fleet_that_never_loads_drains_an_outage_in_the_shortest_time() -> None:
    setting = AffinitySetting(
        nodes=30, bases=1, warm_up_s=300.0, measured_s=1800.0, outage_from_s=600.0, outage_s=300.0
    )
    result = played(setting)
    assert result.drained_after_s == pytest.approx(shortest_drain_s(setting, waiting=0), rel=0.1)


def test_outage_of_ten_minutes_at_half_load_outlasts_ten_minutes_with_any_routing() -> None:
    whole = AffinitySetting(outage_from_s=2400.0, outage_s=600.0)
    assert shortest_drain_s(whole, waiting=40) > 600
    assert shortest_drain_s(replace(whole, load=1.0), waiting=0) == math.inf


def test_equal_seeds_give_equal_runs() -> None:
    assert played(SMALL, seed=5) == played(SMALL, seed=5)
    assert played(SMALL, seed=5) != played(SMALL, seed=6)


def test_bound_falls_as_requests_may_wait_longer() -> None:
    bounds = [fewest_loads(SMALL, wait_s=wait_s) for wait_s in (0.0, 20.0, 200.0)]
    assert bounds == sorted(bounds, reverse=True)
    assert loads_per_request([]) == 0.0


def test_loads_after_an_outage_are_told_in_two_halves_of_twenty_minutes() -> None:
    setting = AffinitySetting(warm_up_s=0.0, measured_s=3600.0, outage_from_s=600.0, outage_s=600.0)
    spans = ((0, 600, 0.5), (1200, 1800, 0.1), (1800, 2400, 0.6))
    served = [
        ServedRequest(arrived_ms=1000 * at_s, began_ms=1000 * at_s, loaded=number % 10 < 10 * share)
        for from_s, to_s, share in spans
        for number, at_s in enumerate(range(from_s, to_s))
    ]
    found = around_outage(served, setting)
    assert found.loads_before_outage == pytest.approx(0.5)
    assert found.loads_within_ten_minutes == pytest.approx(0.1)
    assert found.loads_in_next_ten_minutes == pytest.approx(0.6)
    assert found.loads_after_outage == pytest.approx(0.35)


def test_marks_of_an_outage_hold_loads_to_ten_minutes_and_waits_to_the_shortest_drain() -> None:
    def marks(**changed: float) -> dict[str, bool]:
        result = replace(OUTAGE, **changed)
        return {mark.mark: mark.holds for mark in outage_marks([OUTAGE, result])}

    ten, twenty, drain = marks()
    assert all(marks().values())
    assert [name for name, holds in marks(loads_within_ten_minutes=0.41).items() if not holds] == [ten]
    assert [name for name, holds in marks(loads_after_outage=0.45).items() if not holds] == [twenty]
    assert [name for name, holds in marks(drained_after_s=900.0).items() if not holds] == [drain]
    assert all(marks(waits_back_after_s=5000.0).values())
