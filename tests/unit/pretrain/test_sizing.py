"""How many encoders keep trainers busy."""

import pytest

from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.planning.paper import encoders_needed
from giornata.pretrain.planning.sizing import Demand, Supply, fed_share, size

A10G_AT_256 = 1_126_400_000 / 76.8 / 3600 / 40  # what the seed's 40 encoders fed
A10G_AT_512 = A10G_AT_256 * 317.8 / 1161.8


def encoders(demand, rate, **more):
    headroom = more.pop("headroom", 1.0)
    return size(Demand(images_per_s=demand), Supply(encoder_images_per_s=rate, **more), headroom=headroom).encoders


@pytest.mark.parametrize(
    ("demand", "rate", "expected"),
    [(4068, A10G_AT_256, 40), (5908, A10G_AT_256, 59), (1029, A10G_AT_512, 37), (1349, A10G_AT_512, 49)],
)
def test_the_seeds_recipes_need_so_many_encoders(demand, rate, expected):
    assert encoders(demand, rate) == expected


def test_the_facts_tell_that_40_encoders_hold_the_final_recipe_back():
    assert [encoders_needed(load_facts(), px) for px in (256, 512)] == [59, 49]


@pytest.mark.parametrize(
    ("demand", "rate", "share"), [(5908, A10G_AT_256, 0.69), (1349, A10G_AT_512, 0.83), (4068, A10G_AT_256, 1.0)]
)
def test_what_40_encoders_feed(demand, rate, share):
    fed = fed_share(encoders=40, demand=Demand(images_per_s=demand), supply=Supply(encoder_images_per_s=rate))
    assert fed == pytest.approx(share, abs=0.005)


def test_headroom_and_availability_add_encoders():
    assert encoders(1000, 100) == 10
    assert encoders(1000, 100, headroom=1.1) == 11
    assert encoders(1000, 100, availability=0.8) == 13
    assert encoders(1000, 100, headroom=1.1, availability=0.8) == 14


def test_a_whole_quotient_is_not_rounded_up():
    assert encoders(3, 3.3, headroom=1.1) == 1  # 1.1 x 3 / 3.3 is 1.0000000000000002
    assert encoders(3.0001, 3.3, headroom=1.1) == 2


def test_one_encoder_is_the_fewest():
    assert encoders(1, 1000) == 1


def test_cpus_network_and_what_bridges_an_encoders_absence_follow_from_the_demand():
    demand = Demand(images_per_s=1000, row_bytes=174_080)
    pool = size(demand, Supply(encoder_images_per_s=100, cpu_images_per_s=60, encoder_start_s=30))
    assert pool.cpus == 19
    assert pool.bytes_per_s == 174_080_000
    assert pool.bridging_bytes == 30 * 100 * 174_080
    alone = size(demand, Supply(encoder_images_per_s=4000, encoder_start_s=30))
    assert alone.bridging_bytes == 30 * 1000 * 174_080  # one that could do more is missed for what is asked of it
    assert pool.encoders == 11
    assert size(demand, Supply(encoder_images_per_s=100)).cpus is None


@pytest.mark.parametrize(
    ("demand", "supply", "headroom"),
    [
        (Demand(images_per_s=0), Supply(encoder_images_per_s=1), 1.1),
        (Demand(images_per_s=1), Supply(encoder_images_per_s=-1), 1.1),
        (Demand(images_per_s=1), Supply(encoder_images_per_s=1, availability=0), 1.1),
        (Demand(images_per_s=1), Supply(encoder_images_per_s=1, availability=1.1), 1.1),
        (Demand(images_per_s=1), Supply(encoder_images_per_s=1), 0),
    ],
)
def test_what_cannot_be_sized_is_refused(demand, supply, headroom):
    with pytest.raises(ValueError, match="positive"):
        size(demand, supply, headroom=headroom)
