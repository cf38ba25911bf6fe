"""The program that evaluates a checkpoint beside a run, as the run starts it: no Ray, no GPU, nothing downloaded."""

import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from tests.contract.pretrain.test_storage import on_s3
from tests.fixtures.pretrain_feeds import run_of, tiny_config
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.beside import process_of
from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encoders import open_encoder
from giornata.pretrain.evaluations import FOLDER, keep
from giornata.pretrain.run_storage import run_storage
from giornata.pretrain.training.committed import newest
from giornata.pretrain.training.loop import train
from giornata.pretrain.training.outcome import Outcome
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
    assert train(run) is Outcome.FINISHED
    return config


@pytest.mark.timeout(600)  # it takes what processors nobody else wants
def test_the_programs_report(config: PretrainConfig, tmp_path: Path) -> None:
    run, judge = run_storage(config), process_of(config)
    made = newest(run)
    assert made is not None
    folder = tmp_path / "evaluation"
    folder.mkdir()
    report = judge(made, folder, threading.Event())
    keep(run, made, report)
    told = json.loads(run.read(f"{FOLDER}/{made.name}.json"))
    assert (told["checkpoint"], told["step"], told["validation_rows"]) == (made.name, made.step, 2)
    assert told["validation_loss"] > 0
    with Image.open(io.BytesIO(run.read(f"{FOLDER}/{made.name}.png"))) as sheet:
        assert sheet.width > 4 * config.phases[0].resolution
