"""What a checkpoint's history lists: what steps were made under, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.train_rig import RecordingReporter, spec_for

from giornata.diffusion.families import SDXL
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.results.checkpoint_writer import CheckpointWriter

ONE, TWO = {"torch": "1"}, {"torch": "2"}


def entry(step: int, fingerprint: dict[str, Any]) -> dict[str, Any]:
    return {"from_step": step, "fingerprint": fingerprint}


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    return CheckpointWriter(
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


def test_checkpoint_history_grows_only_when_fingerprint_changes(writer: CheckpointWriter) -> None:
    assert writer.fingerprint == {}
    for step, fingerprint in ((0, ONE), (1, ONE), (3, TWO), (3, ONE), (5, TWO)):
        writer.changed(step, fingerprint)
        assert writer.fingerprint == fingerprint
    assert writer.history == (entry(0, ONE), entry(3, TWO), entry(3, ONE), entry(5, TWO))


def test_checkpoint_history_drops_fingerprint_of_discarded_step(writer: CheckpointWriter) -> None:
    writer.changed(0, ONE)
    writer.changed(2, TWO)
    writer.changed(2, ONE, last_counts=True)
    assert writer.history == (entry(0, ONE),)
    writer.changed(2, TWO, last_counts=True)
    assert writer.history == (entry(0, ONE), entry(2, TWO))
