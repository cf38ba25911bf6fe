"""The same deeds from several threads: whatever comes before what, nothing breaks the house."""

import random

import pytest
from tests.contract.model.house import House
from tests.contract.model.play import play_at_once


@pytest.mark.parametrize("seed", range(8))
def test_nothing_that_happens_at_once_breaks_the_house(house: House, seed: int) -> None:
    play_at_once(house, random.Random(seed), rounds=10)
