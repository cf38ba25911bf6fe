"""What a run cost so far is the sum of accounts that no crash takes back."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from giornata.pretrain.data.storage import Storage
from giornata.pretrain.encode import counted
from giornata.pretrain.recipes import sdxl_tiny
from giornata.pretrain.run_state.committed import run_storage
from giornata.pretrain.run_state.costs import FOLDER, TELL_EVERY_S, CostRecord, TrainerStart, spent_usd
from giornata.pretrain.run_state.progress import TrainingProgress

COMMAND_MS = 1_700_000_000_000


def account_of(run: Storage, name: str, **given: float) -> CostRecord:
    return CostRecord.of(TrainerStart(name=name, began_s=0.0, began_ms=COMMAND_MS), run, TrainingProgress(**given))


def begun(run: Storage, *, process_s: int, now_s: int, command_ms: int = COMMAND_MS) -> float:
    """Since how many seconds the attempt costs money. Seconds are of the command."""
    clock_s = 5000.0
    attempt = TrainerStart.begun(
        run,
        command_ms=command_ms,
        process_ms=COMMAND_MS + process_s * 1000,
        now_ms=COMMAND_MS + now_s * 1000,
        now_s=lambda: clock_s,
    )
    assert attempt.name.startswith(f"{command_ms}-")
    return clock_s - attempt.began_s


def test_the_first_attempt_costs_since_the_command_and_later_ones_since_their_process(tmp_path: Path) -> None:
    run = Storage.at(tmp_path)
    assert begun(run, process_s=60, now_s=100) == 100.0
    run.write(
        f"{FOLDER}/{COMMAND_MS}-first.json", json.dumps({"usd": 1.0, "until_ms": COMMAND_MS + 200_000}).encode()
    )
    assert begun(run, process_s=300, now_s=340) == 40.0
    assert begun(run, process_s=150, now_s=340) == 140.0, "a process that Ray kept ready: no second counts twice"
    assert begun(run, process_s=300, now_s=340, command_ms=COMMAND_MS + 290_000) == 50.0, "another command's first"
    assert begun(run, process_s=300, now_s=250) == 0.0, "clocks of two machines"


def test_cost_record_of_lost_attempt_stays_in_total(tmp_path: Path) -> None:
    run = Storage.at(tmp_path)
    lost = account_of(run, "lost")
    lost.add(1000.0, 1.0)
    lost.add(TELL_EVERY_S - 1, 1.0)  # not told: the next account is due a second later
    lost._thread.shutdown()
    next_ = account_of(run, "next", spent_usd=400.0)
    assert next_.total_usd == 1000.0
    next_.add(10.0, 1.0)
    next_.close()
    assert spent_usd(run, TrainingProgress()) == 1010.0
    assert json.loads(run.read(f"{FOLDER}/next.json")) == {"usd": 10.0, "until_ms": COMMAND_MS + 10_000}


def test_a_long_step_is_told_at_once_and_short_ones_every_half_minute(tmp_path: Path) -> None:
    run = Storage.at(tmp_path)
    account = account_of(run, "only")
    told = []
    for lap_s in (1.0, 1.0, TELL_EVERY_S, 1.0):
        account.add(lap_s, 2.0)
        if account._under_way is not None:
            account._under_way.result()
        told.append(json.loads(run.read(f"{FOLDER}/only.json"))["usd"])
    assert told == [2.0, 2.0, 64.0, 64.0]


def test_cost_without_records_is_taken_from_checkpoint(tmp_path: Path) -> None:
    assert account_of(Storage.at(tmp_path), "first", spent_usd=7.0).total_usd == 7.0


def test_an_account_that_cannot_be_read_is_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Storage.at(tmp_path)
    run.write(f"{FOLDER}/a.json", b'{"usd": 3.0, "until_ms": 1}')
    run.write(f"{FOLDER}/b.json", b"{")
    with caplog.at_level(logging.WARNING):
        assert spent_usd(run, TrainingProgress()) == 3.0
    assert "b.json" in caplog.text


def test_a_storage_that_fails_is_told_and_no_step_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    account = account_of(Storage.at(tmp_path), "only")
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        account.add(1.0, 1.0)
        account.close()
    assert "was not written" in caplog.text


def test_encoding_before_the_run_is_paid_by_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = sdxl_tiny(str(tmp_path))
    priced = replace(
        config,
        encode=replace(config.encode, encoders=2),
        workers=replace(config.workers, trainer_usd_per_h=99.0, encoder_usd_per_h=3600.0),
    )
    seconds = iter([0.0, 4.0, 10.0])
    with pytest.raises(KeyboardInterrupt), counted(priced, lambda: next(seconds)) as tell:
        tell({"done": 1, "of": 2})
        raise KeyboardInterrupt
    assert spent_usd(run_storage(priced), TrainingProgress()) == 2 * 10.0
    assert json.loads(capsys.readouterr().out) == {"done": 1, "of": 2, "spent_usd": 2 * 4.0}


def test_cost_records_are_not_written_by_other_trainers_or_without_prices(tmp_path: Path) -> None:
    run = Storage.at(tmp_path)
    second = CostRecord.of(
        TrainerStart(name="second", began_s=0.0), run, TrainingProgress(spent_usd=2.0), written=False
    )
    free = account_of(run, "free")
    for account, per_s in ((second, 1.0), (free, 0.0)):
        account.add(100.0, per_s)
        account.close()
    assert second.total_usd == 102.0
    assert run.names(FOLDER) == []
