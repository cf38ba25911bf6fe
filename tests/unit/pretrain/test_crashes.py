"""Crashes of trainers: told once a start, and the same one is not tried for ever."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ray.exceptions import ActorDiedError, RayTaskError

from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.pretrain.ray_train.crashes import (
    LONGEST_WORDS,
    MOST_EQUAL,
    Crashes,
    is_final,
    lost_others,
    words_of,
)
from giornata.pretrain.ray_train.fit import GIVEN_UP, fit
from giornata.pretrain.recipes import sdxl_tiny
from giornata.pretrain.reporting.progress_lines import crash_words


def starts(crashes: Crashes, *of: tuple[int, str]) -> list[bool]:
    """Whether each of these starts, which crash after a step with these words, leaves no hope."""
    found = []
    for step, words in of:
        crashes.begun()
        crashes.step = step
        crashes.add(words, final=False)
        found.append(bool(crashes.hopeless))
    return found


def test_equal_crashes_after_the_same_step_end_the_run() -> None:
    crashes = Crashes()
    assert starts(crashes, *[(6, "ValueError: x")] * MOST_EQUAL) == [False] * (MOST_EQUAL - 1) + [True]
    assert crashes.hopeless == f"{MOST_EQUAL} starts in a row crashed after step 6: ValueError: x"


def test_crashes_at_other_steps_or_with_other_messages_are_distinct() -> None:
    assert not any(starts(Crashes(), (6, "x"), (6, "x"), (7, "x"), (7, "x"), (7, "y"), (7, "x")))


def test_numbers_of_processes_make_no_other_crash() -> None:
    words = [f"RuntimeError: worker {pid} of node 7f{pid}ab" for pid in (101, 2020, 33)]
    crashes = Crashes()
    assert starts(crashes, *((6, each) for each in words)) == [False, False, True]
    assert crashes.hopeless.endswith(words[-1])


def test_ray_task_error_is_reported_by_last_line_of_its_traceback() -> None:
    traceback = "ray::read() (pid=12, ip=10.0.0.1)\n  File x\nFileNotFoundError: shard-00002.parquet"
    error = RayTaskError("read", traceback, FileNotFoundError("shard-00002.parquet"))
    assert words_of(error) == "FileNotFoundError: shard-00002.parquet"
    assert not lost_others(error)


def test_several_trainers_of_one_start_count_once() -> None:
    crashes = Crashes()
    crashes.begun()
    told = [crashes.add("x", final=False) for _ in range(5)]
    assert told == [{"event": "crash", "step": 0, "words": "x", "final": False}, None, None, None, None]
    assert not crashes.hopeless


def test_an_error_of_the_input_is_not_tried_again() -> None:
    crashes = Crashes()
    crashes.begun()
    told = crashes.add("InvalidInput: adam_beta1", final=True)
    assert told is not None
    assert told["final"]
    assert crash_words(told) == "the trainers crashed after step 0: InvalidInput: adam_beta1 (the run ends)"
    assert crashes.hopeless == "InvalidInput: adam_beta1"
    assert is_final(InvalidInput([Fault(where="x", message="y")]))
    assert not is_final(ValueError())


@pytest.mark.parametrize(
    ("error", "others"),
    [
        (torch.distributed.DistBackendError("NCCL error"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2"), True),
        (ActorDiedError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (FileNotFoundError("shard-00001.parquet"), False),
    ],
)
def test_errors_from_lost_peers_are_told_apart_from_causes(error: Exception, others: bool) -> None:
    assert lost_others(error) is others


def test_words_are_one_line_of_a_bounded_length() -> None:
    assert words_of(ValueError("a\n  b")) == "ValueError: a b"
    assert len(words_of(ValueError("x" * 10_000))) == LONGEST_WORDS


def test_trainers_that_give_up_end_the_run_with_the_reason(tmp_path: Path) -> None:
    calls: list[int] = []

    def once(*_: Any) -> str:
        calls.append(1)
        return f"{GIVEN_UP}3 starts in a row crashed"

    with pytest.raises(GiornataError, match="the run is given up: 3 starts in a row crashed"):
        fit(sdxl_tiny(str(tmp_path)), actor=None, owner="", once=once)
    assert len(calls) == 1
