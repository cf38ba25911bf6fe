"""The same actions from several threads: whatever comes before what, no invariant breaks."""

import random

import pytest
from tests.contract.model.model_rig import ModelRig
from tests.contract.model.schedules import play_at_once


@pytest.mark.parametrize("seed", range(8))
def test_concurrent_schedule_breaks_no_invariant(rig: ModelRig, seed: int) -> None:
    play_at_once(rig, random.Random(seed), rounds=10)
