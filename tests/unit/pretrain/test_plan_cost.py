"""Golden tests of the arithmetic: published tables, computed again from their rates and prices."""

import pytest

from giornata.pretrain.planning.cost import Phase, Precompute, Storage, Trainers, break_even, encoders_for, plan

AT_256, AT_512 = 1_126_400_000, 1_740_800_000


def four_p4de(usd_per_hour=40.96):
    return Trainers(instances=4, gpus_each=8, usd_per_hour=usd_per_hour)


def final():
    return [Phase(samples=AT_256, images_per_s=5908), Phase(samples=AT_512, images_per_s=1349)]


def test_table_4_to_the_dollar():
    bill = plan(final(), four_p4de())
    assert round(bill.gpu_hours) == 13_165
    assert round(bill.total_usd) in (67_405, 67_406)
    assert bill.hours == pytest.approx(411.4, abs=0.05)
    assert round(plan(final(), four_p4de(24.009)).total_usd) == 39_511


def test_table_2_within_three_in_a_thousand():
    loader = plan([Phase(samples=AT_256, images_per_s=2811)], four_p4de())
    assert loader.hours == pytest.approx(111.3, rel=0.003)
    assert loader.total_usd == pytest.approx(18_190, rel=0.003)
    offline = plan([Phase(samples=AT_256, images_per_s=4068)], four_p4de(), precompute=Precompute(usd=2183))
    assert offline.hours == pytest.approx(76.9, rel=0.003)
    assert offline.total_usd == pytest.approx(14_753, rel=0.003)
    online = plan([Phase(samples=AT_256, images_per_s=4075, encoders=40)], four_p4de(), encoder_usd_per_hour=1.212)
    assert online.hours == pytest.approx(76.8, rel=0.003)
    assert online.total_usd == pytest.approx(16_275, rel=0.003)
    assert online.encoder_usd == pytest.approx(3723, rel=0.003)


@pytest.mark.parametrize(
    ("gpus", "at_256", "at_512", "days", "usd"),
    [
        (8, 1100, 290, 81.33, 31_230),
        (16, 2180, 585, 40.42, 31_043),
        (32, 4080, 1195, 20.06, 30_805),
        (64, 8530, 2340, 10.14, 31_146),
        (128, 11_600, 4590, 5.51, 33_874),
    ],
)
def test_the_rows_of_mosaicml(gpus, at_256, at_512, days, usd):
    phases = [Phase(samples=AT_256, images_per_s=at_256), Phase(samples=AT_512, images_per_s=at_512)]
    bill = plan(phases, Trainers(instances=gpus, gpus_each=1, usd_per_hour=2.0))
    assert bill.hours / 24 == pytest.approx(days, abs=0.006)
    assert abs(bill.total_usd - usd) < 1.5


def test_a_bill_is_the_sum_of_its_parts():
    bill = plan(
        [Phase(samples=3600, images_per_s=1, encoders=3), Phase(samples=7200, images_per_s=1, encoders=1)],
        Trainers(instances=2, gpus_each=8, usd_per_hour=10),
        encoder_usd_per_hour=2,
        precompute=Precompute(hours=5, usd=7),
        storage=Storage(stored_bytes=2e12, months=3, usd_per_gb_month=0.02, traffic_usd=1),
    )
    assert (bill.training_hours, bill.encoding_hours, bill.hours, bill.gpu_hours) == (3, 5, 8, 48)
    assert (bill.trainer_usd, bill.encoder_usd, bill.precompute_usd, bill.storage_usd) == (60, 10, 7, 121)
    assert bill.total_usd == 198


def test_break_even_of_the_seeds_phase_1():
    """Offline pays at once for compute, and as long as 187 TB lie in the bucket for less than two weeks."""
    figures = {"online_usd_per_pass": 3723, "precompute_usd": 2183, "storage_usd_per_month": 4298}
    assert break_even(**figures, months=0).passes == pytest.approx(0.59, abs=0.01)
    assert break_even(**figures, months=1).passes == pytest.approx(1.74, abs=0.01)
    assert break_even(**figures, months=0).months * 730 / 168 == pytest.approx(1.56, abs=0.01)


def test_break_even_at_its_ends():
    dearer = break_even(online_usd_per_pass=100, precompute_usd=150, storage_usd_per_month=10, months=1)
    assert (dearer.passes, dearer.months) == (1.6, 0)
    free = break_even(online_usd_per_pass=100, precompute_usd=50, storage_usd_per_month=0, months=1)
    assert (free.passes, free.months) == (0.5, None)
    with pytest.raises(ValueError, match="costs something"):
        break_even(online_usd_per_pass=0, precompute_usd=1, storage_usd_per_month=1, months=1)


@pytest.mark.parametrize(
    ("demand", "rate", "more", "encoders"),
    [
        (1000, 100, {}, 10),
        (1000, 100, {"headroom": 1.1}, 11),
        (1000, 100, {"availability": 0.8}, 13),
        (1000, 100, {"headroom": 1.1, "availability": 0.8}, 14),
        (3, 3.3, {"headroom": 1.1}, 1),  # 1.1 x 3 / 3.3 is 1.0000000000000002
        (3.0001, 3.3, {"headroom": 1.1}, 2),
        (1, 1000, {}, 1),
    ],
)
def test_encoders_that_feed_a_demand(demand, rate, more, encoders):
    assert encoders_for(demand, rate, **{"headroom": 1.0, **more}) == encoders


@pytest.mark.parametrize(
    "wrong", [{"demand_per_s": 0}, {"encoder_per_s": -1}, {"availability": 0}, {"availability": 1.1}]
)
def test_rates_of_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="positive"):
        encoders_for(**{"demand_per_s": 1.0, "encoder_per_s": 1.0, **wrong})
