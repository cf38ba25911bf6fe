"""What a Ray task does that evaluates a checkpoint of a run: without Ray, without a GPU, nothing downloaded."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from tests.contract.pretrain.test_storage import on_s3
from tests.fixtures.pretrain_feeds import run_of, tiny_config
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encoder import open_encoder
from giornata.pretrain.evaluation.beside import evaluated
from giornata.pretrain.evaluation.kept import FOLDER
from giornata.pretrain.run_state.committed import newest, run_storage
from giornata.pretrain.run_state.progress import TrainingOutcome
from giornata.pretrain.training.loop import train
from giornata.protocol.pretraining import Evaluate, PretrainConfig


@pytest.fixture(params=["folder", "s3"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> PretrainConfig:
    """A run that is trained, with two rows held back. Everything but the shards is in its storage."""
    config = tiny_config(tmp_path, samples=(8,), validation_prompts=("a square",), validation_rows=2)
    config = replace(config, evaluate=Evaluate(checkpoints=1))
    if request.param == "s3":
        config = replace(config, storage=on_s3(request.getfixturevalue("seaweed")).address)
    write_shards(tmp_path / "shards", shards=2, rows=8, sizes=((16, 16),))
    encode(config, open_encoder(config.model, seed=config.seed, device="cpu"))
    run = replace(run_of(config, tmp_path), storage=run_storage(config))
    assert train(run) is TrainingOutcome.FINISHED
    return config


def test_report_and_samples_are_kept_with_the_run(config: PretrainConfig) -> None:
    run = run_storage(config)
    made = newest(run)
    assert made is not None
    numbers = evaluated(config, made.name, gpu=False)
    told = json.loads(run.read(f"{FOLDER}/{made.name}.json"))
    assert (told["checkpoint"], told["step"], told["validation_rows"]) == (made.name, made.step, 2)
    assert numbers == {"evaluation/validation_loss": told["validation_loss"]}
    assert told["validation_loss"] > 0
    with Image.open(io.BytesIO(run.read(f"{FOLDER}/{made.name}.png"))) as sheet:
        assert sheet.width > 4 * config.phases[0].resolution
