"""The arithmetic of a bill, and of the encoders that a demand takes."""

import pytest

from giornata.pretrain.planning.pricing import PricedPhase, bill_of, encoders_for


def test_a_bill_is_the_sum_of_its_parts():
    phases = [
        PricedPhase(samples=3600, images_per_s=1, encoders=3),
        PricedPhase(samples=7200, images_per_s=1, encoders=1),
    ]
    bill = bill_of(
        phases,
        instances=2,
        gpus_each=8,
        usd_per_hour=10,
        encoder_usd_per_hour=2,
        encoding_hours=5,
        precompute_usd=7,
        storage_usd=121,
    )
    assert (bill.training_hours, bill.encoding_hours, bill.hours, bill.gpu_hours) == (3, 5, 8, 48)
    assert (bill.trainer_usd, bill.encoder_usd, bill.precompute_usd, bill.storage_usd) == (60, 10, 7, 121)
    assert bill.total_usd == 198


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
