"""On a real Ray: whatever is killed, every row is trained exactly once in each epoch, and nothing else is.

What counts is what the trainers wrote down while they trained (giornata.pretrain.trace), and not the ledger that they
go by.
"""

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from giornata.pretrain.proof import Proof, proof_of
from giornata.protocol.pretraining import Mode, PretrainConfig

from tests.system.pretrain.runs import SAMPLES, Command, fitted, killing, losses, small_run

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
    fitted(whole, tmp_path / "notes")
    broken = small_run(tmp_path / "broken", pinned_order=True)
    steps_of_first = -(-SAMPLES[0] // 16)
    with killing(broken, when=lambda step: step in {5, steps_of_first + 2}, times=2) as killed:
        fitted(broken, tmp_path / "notes-2")
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
    config = small_run(tmp_path, mode=Mode.ONLINE)
    config = replace(
        config, workers=Workers(trainers=1, use_gpu=False), encode=replace(config.encode, encode_batch_size=8)
    )
    seen: list[int] = []

    def kill_an_encoder(step: int) -> bool:
        if step >= 2 and not seen:
            seen.append(_kill_encoder())
        return False

    with killing(config, when=kill_an_encoder):
        fitted(config, tmp_path / "notes")
    assert len(seen) == 1
    check(config)


def _kill_encoder() -> int:
    """Of this test's own Ray."""
    for process in psutil.Process().children(recursive=True):
        if process.name().startswith("ray::") and "EncodePictures" in " ".join(process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)
            return process.pid
    pytest.fail("no encoder is at work")
