"""What a checkpoint's history lists: what steps were made under, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.train_studio import RecordingReporter, spec_for

from giornata.diffusion.families import SDXL
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.keeping import Keeper

ONE, TWO = {"torch": "1"}, {"torch": "2"}


def entry(step: int, fingerprint: dict[str, Any]) -> dict[str, Any]:
    return {"from_step": step, "fingerprint": fingerprint}


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(
        spec=TrainSpec.model_validate(spec_for(tmp_path)),
        data_hash="",
        base_sha256="",
        history=(),
        directory=tmp_path,
        reporter=RecordingReporter(),
        clock=lambda: 0.0,
        announced=None,
        family=SDXL,
    )


def test_it_begins_empty_and_grows_by_what_is_another(keeper: Keeper) -> None:
    assert keeper.fingerprint == {}
    for step, fingerprint in ((0, ONE), (1, ONE), (3, TWO), (3, ONE), (5, TWO)):
        keeper.changed(step, fingerprint)
        assert keeper.fingerprint == fingerprint
    assert keeper.history == (entry(0, ONE), entry(3, TWO), entry(3, ONE), entry(5, TWO))


def test_what_was_thrown_away_leaves_no_trace(keeper: Keeper) -> None:
    keeper.changed(0, ONE)
    keeper.changed(2, TWO)
    keeper.changed(2, ONE, last_counts=True)
    assert keeper.history == (entry(0, ONE),)
    keeper.changed(2, TWO, last_counts=True)
    assert keeper.history == (entry(0, ONE), entry(2, TWO))
