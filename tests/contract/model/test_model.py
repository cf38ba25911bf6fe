"""Random schedules of everything that can happen, against the real store and use cases: nothing breaks the house."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.model.house import House
from tests.contract.model.play import NUMBERS, STEPS_PER_EPISODE, draw, play
from tests.contract.model.town_deeds import DEEDS, Step

NUMBER = st.integers(0, NUMBERS - 1)
# SQLite is the quicker one; both have their share.
LONG = [("sqlite", seed) for seed in range(24)] + [("postgresql", seed) for seed in range(24, 32)]


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(st.sampled_from(DEEDS), NUMBER, NUMBER), min_size=20, max_size=60))
def test_no_schedule_breaks_the_house(house: House, steps: list[Step]) -> None:
    play(house, steps)


@pytest.mark.parametrize(("house", "seed"), LONG, indirect=["house"])
def test_no_long_schedule_breaks_the_house(house: House, seed: int) -> None:
    play(house, draw(random.Random(seed), STEPS_PER_EPISODE + seed % 28))
