"""Checkpoints on S3 are those of a folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.pretrain.test_storage import on_s3
from tests.fixtures.pretrain_feeds import run_of, tiny_config
from tests.fixtures.seaweed import Seaweed

from giornata.pretrain.run_state.committed import FOLDER, CheckpointDamaged, committed, newest
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.training.loop import train


def test_a_run_goes_on_from_s3_and_passes_over_what_is_damaged(seaweed: Seaweed, tmp_path: Path) -> None:
    config, storage, asked = tiny_config(tmp_path), on_s3(seaweed), iter(range(100))

    def go_on(**given: Any) -> TrainingOutcome:
        run = run_of(config, tmp_path, start=newest(storage), **given)
        return train(replace(run, storage=storage))

    assert go_on(preempted=lambda: next(asked) == 3) is TrainingOutcome.PREEMPTED
    last, before = list(committed(storage))[:2]
    assert (last.step, last.phase, before.step) == (3, 1, 2)
    shard = next(name for name in last.files if name.endswith(".safetensors"))
    content = bytearray(storage.read(f"{FOLDER}/{last.name}/{shard}"))
    content[-1] ^= 1
    storage.write(f"{FOLDER}/{last.name}/{shard}", bytes(content))
    with pytest.raises(CheckpointDamaged):
        go_on()
    assert newest(storage) == before
    assert go_on() is TrainingOutcome.FINISHED
    assert [row["step"] for row in metrics_of(storage)] == [1, 2, 3, 4, 5, 6]
    assert len(list(committed(storage))) == config.train.checkpoints_total_limit
