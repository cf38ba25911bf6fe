"""Kill one trainer in the middle of each phase with SIGKILL, as the loss of a machine does.

The trace tells which processes are trainers: each trainer writes its pid into its own file. A file that grew within
FRESH_S belongs to a living trainer.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from giornata.pretrain.run_state.committed import run_storage
from giornata.pretrain.run_state.proof import FOLDER
from giornata.protocol.pretraining import PretrainConfig

POLL_S = 0.05
FRESH_S = 2.0
BEHIND_CHECKPOINT = 5
"""Steps between a checkpoint and a kill, so that the kill undoes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingTrainer:
    """A living trainer with the last step in its trace."""

    pid: int
    phase: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill that happened. `step` is the last one in the trainer's trace."""

    phase: int
    step: int
    pid: int


def kill_steps(config: PretrainConfig) -> list[int]:
    """For each phase the step of its kill: in the middle, BEHIND_CHECKPOINT steps after a checkpoint."""
    found, before, every = [], 0, config.train.checkpoint_steps
    for phase in config.phases:
        steps = -(-phase.samples // config.train.global_batch_size)
        middle = before + steps // 2
        found.append(middle - middle % every + min(BEHIND_CHECKPOINT, every - 1))
        before += steps
    return found


def victim(alive: Sequence[LivingTrainer], steps: Sequence[int], killed: Sequence[Kill]) -> LivingTrainer | None:
    """The trainer to kill now: one in each phase. None when no kill is due."""
    done = {kill.phase for kill in killed}
    return next((each for each in alive if each.phase not in done and each.step >= steps[each.phase]), None)


def alive_trainers(folder: Path, *, now_s: float) -> list[LivingTrainer]:
    """The trainers whose files grew within FRESH_S, the highest rank first."""
    found = []
    for path in sorted(folder.glob("*.jsonl"), reverse=True):
        if now_s - path.stat().st_mtime > FRESH_S:
            continue
        head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        if lines:
            found.append(LivingTrainer(pid=head["pid"], phase=lines[-1]["phase"], step=lines[-1]["step"]))
    return found


@contextmanager
def killing(config: PretrainConfig, say: Callable[[str], None]) -> Iterator[list[Kill]]:
    """Kill one trainer in each phase while the block runs. The list gets every kill."""
    kills: list[Kill] = []
    folder, steps, done = Path(run_storage(config).path()) / FOLDER, kill_steps(config), threading.Event()

    def watch() -> None:
        while not done.wait(POLL_S) and len(kills) < len(steps):
            chosen = victim(alive_trainers(folder, now_s=time.time()), steps, kills)
            if chosen is not None and _killed(chosen.pid):
                kills.append(Kill(phase=chosen.phase, step=chosen.step, pid=chosen.pid))
                say(f"kill -9 of a trainer in phase {config.phases[chosen.phase].name}, after step {chosen.step}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        done.set()
        thread.join()


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it had just ended by itself
        return False
    return True
