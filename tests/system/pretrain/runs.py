"""Runs of pre-training for tests: a small data set, its latents, and kills from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.board import Board
from giornata.pretrain.encode import encode
from giornata.pretrain.encoders import open_encoder
from giornata.pretrain.fit import fit
from giornata.pretrain.metrics_log import metrics_of
from giornata.pretrain.recipes import sdxl_tiny
from giornata.pretrain.run_storage import progress_of, run_storage
from giornata.protocol.pretraining import Data, Mode, Phase, PretrainConfig, Tracking, Workers

SHARDS, ROWS, UNREADABLE = 5, 24, (7, 60)
SAMPLES = (150, 100)
"""Neither is a number of whole epochs, nor of whole steps of 16."""
PATIENCE_S = 240.0


def small_run(folder: Path, *, mode: Mode = Mode.OFFLINE, trainers: int = 2, **train: Any) -> PretrainConfig:
    """Two phases over 120 pictures, two of which cannot be read; encoded where the mode wants it."""
    recipe = sdxl_tiny(str(folder))
    first, second = recipe.phases
    settings = {"checkpoint_steps": 3, "validation_rows": 4, **train}
    config = replace(
        recipe,
        data=Data(shards=str(folder / "shards"), max_quarantined_share=0.1),
        encode=replace(recipe.encode, mode=mode),
        train=replace(recipe.train, **settings),
        phases=(_of(first, SAMPLES[0]), _of(second, SAMPLES[1])),
        workers=Workers(trainers=trainers, use_gpu=False),
        tracking=Tracking(trace_rows=True),
    )
    if not (folder / "shards").exists():
        write_shards(folder / "shards", shards=SHARDS, rows=ROWS, broken=UNREADABLE)
    if mode in {Mode.OFFLINE, Mode.HYBRID}:
        encode(config, open_encoder(config.model, seed=config.seed, device="cpu"))
    return config


def _of(phase: Phase, samples: int) -> Phase:
    return replace(phase, samples=samples)


def fitted(config: PretrainConfig) -> None:
    """To the end, on the Ray that is there."""
    fit(config, board=Board.remote())  # type: ignore[attr-defined]


def losses(config: PretrainConfig) -> dict[int, float]:
    """Step to loss."""
    return {int(row["step"]): row["loss"] for row in metrics_of(run_storage(config)) if "loss" in row}


@contextmanager
def killing(config: PretrainConfig, *, at_steps: Sequence[int]) -> Iterator[list[int]]:
    """SIGKILL to a trainer when an attempt has come to each of these steps, once an attempt; the pids so far."""
    killed: list[int] = []
    done = threading.Event()

    def watch() -> None:
        attempts: set[int] = set()
        while not done.wait(0.02) and len(killed) < len(at_steps):
            for attempt, pid, step in traced(config):
                if attempt not in attempts and step >= at_steps[len(killed)]:
                    os.kill(pid, signal.SIGKILL)
                    attempts.add(attempt)
                    killed.append(pid)
                    break

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def traced(config: PretrainConfig) -> list[tuple[int, int, int]]:
    """(attempt, pid, newest step) of every trainer of the newest attempt."""
    found = []
    for path in (Path(config.storage) / config.name / "trace").glob("*.jsonl"):
        lines = path.read_text().split("\n")[:-1]
        if len(lines) > 1:
            head, last = json.loads(lines[0]), json.loads(lines[-1])
            found.append((head["ms"], head["pid"], last["step"]))
    newest = max((attempt for attempt, _, _ in found), default=0)
    return [each for each in found if each[0] == newest]


class Command:
    """The run as a user starts it, in a process with a Ray of its own."""

    def __init__(self, config: PretrainConfig) -> None:
        self.config = config
        values = json.dumps(config.to_json())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "giornata.pretrain.run", "--config-json", values, "--lines"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def until_safe(self, step: int) -> None:
        """Wait for a checkpoint of this step or a later one."""
        by_s = time.monotonic() + PATIENCE_S
        while progress_of(run_storage(self.config)).step < step:
            assert self._process.poll() is None, "the run has ended"
            assert time.monotonic() < by_s, "no checkpoint came"
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> int:
        """A signal; the exit status."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit status."""
        return self._process.wait(PATIENCE_S)
