"""On a real Ray: trainers that wait for encoders get more at a checkpoint, those that do not are left alone, and
every row is trained once."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

from tests.fixtures.pretrain_shards import write_shards
from tests.system.pretrain.runs import fitted

from giornata.pretrain.proof import proof_of
from giornata.pretrain.recipes import sdxl_tiny
from giornata.pretrain.run_storage import progress_of, run_storage
from giornata.pretrain.training.committed import committed
from giornata.pretrain.training.metrics_log import metrics_of
from giornata.protocol.pretraining import Data, Mode, PretrainConfig, Tracking, Workers

STARVED, FED = 1280, 288
"""Rows of a phase whose pictures cost more to encode than to train, and of one where it is the other way round."""


def config_of(folder: Path) -> PretrainConfig:
    recipe = sdxl_tiny(str(folder))
    first, second = recipe.phases
    return replace(
        recipe,
        data=Data(shards=str(folder / "shards")),
        encode=replace(recipe.encode, mode=Mode.ONLINE, max_encoders=2, correct_after_s=0.0, restart_s=0.0),
        train=replace(recipe.train, global_batch_size=32, checkpoint_steps=12),
        phases=(
            replace(first, resolution=32, samples=STARVED, train_batch_size=32),
            replace(second, resolution=256, samples=FED, train_batch_size=4),
        ),
        workers=Workers(use_gpu=False, trainer_usd_per_h=30.0, encoder_usd_per_h=1.0),
        tracking=Tracking(trace_rows=True),
    )


def test_waiting_trainers_get_an_encoder_and_fed_ones_are_left_alone(ray: ModuleType, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", shards=4, rows=80)
    config = config_of(tmp_path)
    fitted(config)
    proof = proof_of(config)
    assert proof.finished
    assert (proof.trained_once, proof.repeated, proof.missed) == (STARVED + FED, 0, 0)
    changes = progress_of(run_storage(config)).encoder_changes
    rows = list(metrics_of(run_storage(config)))
    seen = [(row["step"], row["encoders"], row["data_wait_share"], row["encoder_utilisation"]) for row in rows]
    assert changes, f"nothing was corrected: {seen}"
    first = changes[0]
    assert (first["phase"], first["before"], first["encoders"]) == (0, 1, 2)
    assert first["data_wait"] > 0.02
    assert "trainers wait" in first["reason"]
    by_step = {int(row["step"]): row["encoders"] for row in rows}
    assert (by_step[first["step"]], by_step[first["step"] + 1]) == (1.0, 2.0)
    assert proof.attempts == 1 + len(changes), "a correction is a start of its own, and nothing else is"
    assert {each["phase"] for each in changes} == {0}, f"trainers that were fed were not left alone: {changes}"
    watched = [each.progress(run_storage(config)).encoders_seen for each in committed(run_storage(config))]
    assert any(len(seen) == 1 and seen[0]["encoders"] == 1 for seen in watched), "the second phase was looked at"
