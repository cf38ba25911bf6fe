"""Random schedules of everything that can happen, against the real store and use cases: no invariant breaks."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.model.actions import ACTIONS, Step
from tests.contract.model.model_rig import ModelRig
from tests.contract.model.schedules import NUMBERS, STEPS_PER_EPISODE, draw, play

NUMBER = st.integers(0, NUMBERS - 1)
# SQLite is the quicker one; both have their share. Four lengths one after the other have each end of a schedule.
LONG = [("sqlite", seed) for seed in range(12)] + [("postgresql", seed) for seed in range(12, 16)]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(st.sampled_from(ACTIONS), NUMBER, NUMBER), min_size=20, max_size=60))
def test_schedule_breaks_no_invariant(rig: ModelRig, steps: list[Step]) -> None:
    play(rig, steps)


@pytest.mark.parametrize(("rig", "seed"), LONG, indirect=["rig"])
def test_long_schedule_breaks_no_invariant(rig: ModelRig, seed: int) -> None:
    play(rig, draw(random.Random(seed), STEPS_PER_EPISODE + seed % 28))
