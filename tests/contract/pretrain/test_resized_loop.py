"""The loop of one trainer when the number of encoders is to change: it ends with a checkpoint, and the next start
trains what is left, once."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.pretrain_feeds import pinned_feeds, rows_of, run_of, tiny_config
from torch import distributed, multiprocessing

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.feeding.batch import Feed
from giornata.pretrain.feeding.ledger import Ledger
from giornata.pretrain.run_storage import progress_of
from giornata.pretrain.training.committed import newest
from giornata.pretrain.training.encoder_pool import Change, encoders_now
from giornata.pretrain.training.loop import train
from giornata.pretrain.training.metrics_log import metrics_of
from giornata.pretrain.training.outcome import Outcome
from giornata.protocol.pretraining import Mode, PretrainConfig

STEPS = 20
WAITING_LAP_S = 3.0
"""Of a step by a clock that each look moves by a second: two looks around the waiting, one at the end."""


def waiting() -> Callable[[], float]:
    """A clock by which trainers wait a third of each step."""
    seconds = iter(range(10**9))
    return lambda: float(next(seconds))


class Still:
    """A clock by which steps take three seconds and nobody waits: it moves only when a step is done."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def config_of(folder: Path, *, most: int | None, encoder_usd: float = 1.0) -> PretrainConfig:
    """8 rows a step, a checkpoint every fourth."""
    config = tiny_config(folder, samples=(8 * STEPS,), checkpoint_steps=4)
    workers = replace(config.workers, trainer_usd_per_h=30.0, encoder_usd_per_h=encoder_usd)
    encode = replace(config.encode, mode=Mode.ONLINE, max_encoders=most, correct_after_s=1.0)
    return replace(config, encode=encode, workers=workers)


def begin(
    config: PretrainConfig,
    folder: Path,
    *,
    enough: int,
    busy: float,
    changes: list[Change],
    rank: int = 0,
    world: int = 1,
) -> Outcome:
    """One start of a trainer that does not wait from so many encoders on. The second of two never waits."""
    encoders = encoders_now(config, progress_of(Storage.at(folder)), 0)
    clock = Still() if rank or encoders >= enough else waiting()

    def feeds(phase: int, ledger: Ledger) -> Iterator[Feed]:
        for feed in pinned_feeds(config, rank=rank, world=world)(phase, ledger):
            yield replace(feed, encode_s=busy * WAITING_LAP_S * encoders / world)

    def traced(*_: Any) -> None:
        if isinstance(clock, Still):
            clock.now_s += WAITING_LAP_S

    given: dict[str, Any] = {"feeds": feeds, "traced": traced, "resized": changes.append, "clock_s": clock}
    return train(run_of(config, folder, start=newest(Storage.at(folder)), **given))


def to_the_end(config: PretrainConfig, folder: Path, *, enough: int, busy: float) -> tuple[int, list[Change]]:
    """How often trainers began, and what changed."""
    changes, starts = list[Change](), 1
    while begin(config, folder, enough=enough, busy=busy, changes=changes) is Outcome.RESIZED:
        starts += 1
    return starts, changes


def check_exactly_once(config: PretrainConfig, folder: Path) -> None:
    ledger = Ledger.from_json(progress_of(Storage.at(folder)).ledgers[0], rows_of(config)[0])
    uses = Counter(ledger.uses())
    assert uses.total() == config.phases[0].samples
    assert set(uses.values()) == {1}
    steps = [row["step"] for row in metrics_of(Storage.at(folder))]
    assert steps == list(range(1, STEPS + 1))


def check_dollars(rows: Sequence[dict[str, float]], *, encoders: int) -> None:
    """What the last step cost: a trainer and so many encoders for its time."""
    spent = rows[-1]["spent_usd"] - rows[-2]["spent_usd"]
    assert spent == pytest.approx(WAITING_LAP_S * (30.0 + encoders) / 3600)


def test_waiting_trainers_get_encoders_at_a_checkpoint(tmp_path: Path) -> None:
    config = config_of(tmp_path, most=4)
    starts, changes = to_the_end(config, tmp_path, enough=2, busy=0.97)
    assert (starts, [(each.step, each.before, each.encoders) for each in changes]) == (2, [(4, 1, 2)])
    check_exactly_once(config, tmp_path)
    progress = progress_of(Storage.at(tmp_path))
    assert [each["reason"] for each in progress.encoder_changes] == [changes[0].reason]
    rows = list(metrics_of(Storage.at(tmp_path)))
    assert [row["encoders"] for row in rows] == [1.0] * 4 + [2.0] * (STEPS - 4)
    assert rows[-1]["encoder_utilisation"] == pytest.approx(0.97)
    check_dollars(rows, encoders=2)


def test_an_encoder_that_did_not_help_is_given_back_and_not_asked_for_again(tmp_path: Path) -> None:
    config = config_of(tmp_path, most=4, encoder_usd=9.0)
    starts, changes = to_the_end(config, tmp_path, enough=99, busy=0.97)
    assert (starts, [(each.step, each.before, each.encoders) for each in changes]) == (3, [(4, 1, 2), (8, 2, 1)])
    check_exactly_once(config, tmp_path)


@pytest.mark.parametrize(("enough", "busy"), [(1, 0.97), (99, 0.5)])
def test_fed_trainers_and_idle_encoders_change_nothing(tmp_path: Path, enough: int, busy: float) -> None:
    config = config_of(tmp_path, most=4)
    assert to_the_end(config, tmp_path, enough=enough, busy=busy) == (1, [])
    check_exactly_once(config, tmp_path)


def test_nothing_changes_without_leave(tmp_path: Path) -> None:
    config = config_of(tmp_path, most=None)
    assert to_the_end(config, tmp_path, enough=99, busy=0.97) == (1, [])
    check_exactly_once(config, tmp_path)


def _one_of_two(rank: int, meeting: str, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    changes, config, outcomes = list[Change](), config_of(Path(folder), most=4), list[Outcome]()
    try:
        while not outcomes or outcomes[-1] is Outcome.RESIZED:
            given: dict[str, Any] = {"enough": 2, "busy": 0.97, "changes": changes, "rank": rank, "world": 2}
            outcomes.append(begin(config, Path(folder), **given))
    finally:
        distributed.destroy_process_group()
    assert outcomes == [Outcome.RESIZED, Outcome.FINISHED]
    assert [each.encoders for each in changes] == ([2] if rank == 0 else [])


def test_two_trainers_end_at_the_same_step_and_begin_again(tmp_path: Path) -> None:
    """Only the first one waits, and it decides."""
    folder = tmp_path / "run"
    multiprocessing.spawn(_one_of_two, args=(str(tmp_path / "meeting"), str(folder)), nprocs=2)
    check_exactly_once(config_of(folder, most=4), folder)
