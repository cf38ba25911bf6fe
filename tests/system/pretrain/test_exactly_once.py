"""On a real Ray: whatever is killed, every row is trained exactly once in each epoch, and nothing else is.

What counts is what the trainers wrote down while they trained (giornata.pretrain.trace), and not the ledger that they
go by.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import psutil
from tests.system.pretrain.runs import SAMPLES, Command, fitted, killing, losses, small_run, traced

from giornata.pretrain.proof import Proof, proof_of
from giornata.protocol.pretraining import Mode, PretrainConfig

EXIT_STOPPED = 3


def check(config: PretrainConfig) -> Proof:
    """Everything that was to be trained was, once."""
    proof = proof_of(config)
    assert proof.finished
    assert proof.planned == sum(SAMPLES)
    assert (proof.repeated, proof.missed, proof.left_out) == (0, 0, 0)
    assert proof.unreadable > 0
    assert proof.trained_once + proof.unreadable == proof.planned
    return proof


def test_pinned_order_gives_the_same_losses_after_a_kill_in_each_phase(ray: ModuleType, tmp_path: Path) -> None:
    whole = small_run(tmp_path / "whole", pinned_order=True)
    fitted(whole)
    broken = small_run(tmp_path / "broken", pinned_order=True)
    steps_of_first = -(-SAMPLES[0] // 16)
    with killing(broken, at_steps=[5, steps_of_first + 2]) as killed:
        fitted(broken)
    assert len(killed) == 2
    assert check(whole).attempts == 1
    assert check(broken).attempts == 3
    assert losses(broken) == losses(whole)
    assert len(losses(whole)) == check(whole).steps


def test_the_command_is_killed_and_stopped_and_resized(tmp_path: Path) -> None:
    """2 trainers, SIGKILL; 1 trainer, SIGTERM in the second phase; 2 trainers, to the end."""
    two = small_run(tmp_path)
    one = replace(two, workers=replace(two.workers, trainers=1))
    command = Command(two)
    command.until_safe(3)
    assert command.send(signal.SIGKILL) == -signal.SIGKILL
    command = Command(one)
    command.until_safe(-(-SAMPLES[0] // 16))
    assert command.send(signal.SIGTERM) == EXIT_STOPPED
    stopped = proof_of(one)
    assert not stopped.finished
    assert stopped.repeated == 0
    assert 0 < stopped.missed < SAMPLES[1] + 1
    assert Command(two).wait() == 0
    check(two)


def test_an_encoder_is_killed_while_it_streams(ray: ModuleType, tmp_path: Path) -> None:
    config = small_run(tmp_path, mode=Mode.ONLINE, trainers=1)
    config = replace(config, encode=replace(config.encode, encode_batch_size=8))
    with each_encoder_killed_once(config) as killed:
        fitted(config)
    assert killed
    check(config)


@contextmanager
def each_encoder_killed_once(config: PretrainConfig) -> Iterator[list[int]]:
    """SIGKILL to the encoder of this test's own Ray when the second step is done; the pids."""
    killed: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05) and not killed:
            if any(step >= 2 for _, _, step in traced(config)):
                killed.extend(_kill_encoders())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def _kill_encoders() -> list[int]:
    found = [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if "EncodePictures" in " ".join(process.cmdline())
    ]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found
