"""Runs of pre-training for tests: a small data set, its latents, and kills from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.fixtures.files_below import files_below
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.encode import encode
from giornata.pretrain.encoding.encoder import open_encoder
from giornata.pretrain.ray_train.fit import fit
from giornata.pretrain.ray_train.progress_actor import progress_actor_here
from giornata.pretrain.recipes import sdxl_tiny
from giornata.pretrain.run_state.committed import FOLDER, progress_of, run_storage
from giornata.pretrain.run_state.metrics_log import metrics_of
from giornata.protocol.pretraining import Data, Mode, Phase, PretrainConfig, Tracking, Workers

SHARDS, ROWS, UNREADABLE = 5, 24, (7, 60)
SAMPLES = (150, 100)
"""Neither is a number of whole epochs, nor of whole steps of 16."""
EXIT_STOPPED = 3
PATIENCE_S = 600.0
"""Far more than anything takes where nothing else runs."""


def small_run(
    folder: Path, *, mode: Mode = Mode.OFFLINE, trainers: int = 2, storage: str | None = None, **train: Any
) -> PretrainConfig:
    """Two phases over 120 pictures, two of which cannot be read; encoded where the mode wants it. Shards lie in the
    folder, everything else too unless there is a `storage` for it: then there is no trace."""
    recipe = sdxl_tiny(storage or str(folder))
    first, second = recipe.phases
    settings = {"checkpoint_steps": 3, "validation_rows": 4, **train}
    config = replace(
        recipe,
        data=Data(shards=str(folder / "shards"), max_quarantined_share=0.1),
        encode=replace(recipe.encode, mode=mode),
        train=replace(recipe.train, **settings),
        phases=(_of(first, SAMPLES[0]), _of(second, SAMPLES[1])),
        workers=Workers(trainers=trainers, use_gpu=False),
        tracking=Tracking(trace_rows=storage is None),
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
    fit(config, actor=progress_actor_here(), owner="")


def losses(config: PretrainConfig) -> dict[int, float]:
    """Step to loss."""
    return {int(row["step"]): row["loss"] for row in metrics_of(run_storage(config)) if "loss" in row}


class Seen(NamedTuple):
    """Of a run from outside: the newest step that its trainers wrote down, and what is below `checkpoints`, also
    what is not whole yet."""

    step: int
    files: frozenset[str]


Moment = Callable[[Seen], bool]


def after(step: int) -> Moment:
    """The step was trained."""
    return lambda seen: seen.step >= step


@contextmanager
def killing(
    config: PretrainConfig, *, at: Sequence[Moment], rank: int = 0, slowed_from: int | None = None
) -> Iterator[list[int]]:
    """SIGKILL to the trainer of this rank at each of these moments, once an attempt; the pids so far. Trainers are
    halted while it is looked whether the moment is still there. From the step `slowed_from` on they run for two
    milliseconds between looks, so that no short moment is missed."""
    killed: list[int] = []
    done = threading.Event()

    def watch() -> None:
        attempts: set[int] = set()
        while not done.wait(0.002) and len(killed) < len(at):
            found, moment = traced(config), at[len(killed)]
            if not found or found[0][0] in attempts:
                continue
            seen = _seen(config, found)
            if not moment(seen) and (slowed_from is None or seen.step < slowed_from):
                continue
            pids = [pid for _, pid, _ in found]
            if rank >= len(pids):
                continue
            with halted(pids):
                if moment(_seen(config, traced(config))):
                    with suppress(ProcessLookupError):  # it may have ended by itself
                        os.kill(pids[rank], signal.SIGKILL)
                        attempts.add(found[0][0])
                        killed.append(pids[rank])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


@contextmanager
def halted(pids: Sequence[int]) -> Iterator[None]:
    """They stand still."""
    _send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _send(pids, signal.SIGCONT)


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _seen(config: PretrainConfig, found: Sequence[tuple[int, int, int]]) -> Seen:
    top = Path(config.storage) / config.name / FOLDER
    files = frozenset(str(path.relative_to(top)) for path in files_below(top))
    return Seen(step=max((step for _, _, step in found), default=0), files=files)


def traced(config: PretrainConfig) -> list[tuple[int, int, int]]:
    """(attempt, pid, newest step) of every trainer of the newest attempt, by rank."""
    found = []
    for path in sorted((Path(config.storage) / config.name / "trace").glob("*.jsonl")):
        lines = path.read_text().split("\n")[:-1]
        if len(lines) > 1:
            head, last = json.loads(lines[0]), json.loads(lines[-1])
            found.append((head["ms"], head["pid"], last["step"]))
    newest = max((attempt for attempt, _, _ in found), default=0)
    return [each for each in found if each[0] == newest]


class Command:
    """The run as a user starts it, in a process with a Ray of its own or on a cluster's."""

    def __init__(self, config: PretrainConfig, *, address: str | None = None, **environment: str) -> None:
        self.config = config
        words = ["--config-json", json.dumps(config.to_json()), "--lines"]
        words += [] if address is None else ["--address", address]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "giornata.pretrain.run", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | environment,
        )

    def until_safe(self, step: int) -> None:
        """Wait for a checkpoint of this step or a later one."""
        self.until(lambda: progress_of(run_storage(self.config)).step >= step, "a checkpoint")

    def until(self, there: Callable[[], bool], what: str) -> None:
        """Wait for something that comes while the run goes on."""
        by_s = time.monotonic() + PATIENCE_S
        while not there():
            assert self._process.poll() is None, f"the run has ended before {what}"
            assert time.monotonic() < by_s, f"waited in vain for {what}"
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> int:
        """A signal; the exit status."""
        self._process.send_signal(number)
        return self.wait()

    def kill(self) -> int:
        """SIGKILL to the run and its traced trainers, as when a machine goes; the exit status of the run.

        Trainers that outlive a run go on for a moment, and may commit checkpoints that the next run would be taken to
        have made.
        """
        pids = [pid for _, pid, _ in traced(self.config)]
        status = self.send(signal.SIGKILL)
        _send(pids, signal.SIGKILL)
        return status

    def wait(self) -> int:
        """The exit status."""
        return self._process.wait(PATIENCE_S)
