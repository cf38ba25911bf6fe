"""The same actions from several threads: whatever comes before what, no invariant breaks."""

import random

import pytest
from tests.contract.model.model_rig import ModelRig
from tests.contract.model.schedules import play_at_once

# Writes take turns on SQLite: there is less to come across.
SEEDS = [("sqlite", 0), ("sqlite", 1)] + [("postgresql", seed) for seed in range(2, 7)]


@pytest.mark.parametrize(("rig", "seed"), SEEDS, indirect=["rig"])
def test_concurrent_schedule_breaks_no_invariant(rig: ModelRig, seed: int) -> None:
    play_at_once(rig, random.Random(seed), rounds=10)
