"""The metrics of a run in its storage."""

import threading
from pathlib import Path

import pytest

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.metrics_log import METRICS, MetricsLog, drop_after, metrics_of

PATIENCE_S = 60.0


class WrittenStorage(Storage):
    """Tells when a file was written."""

    written = threading.Event()

    def write(self, name: str, content: bytes | memoryview) -> None:
        super().write(name, content)
        self.written.set()


def steps_in(run: Storage) -> list[int]:
    return [int(row["step"]) for row in metrics_of(run)]


def test_rows_are_written_before_any_checkpoint_is(tmp_path: Path) -> None:
    run = WrittenStorage(str(tmp_path))
    log = MetricsLog(run, every_s=0.01)
    log.add({"step": 1, "loss": 0.5})
    assert run.written.wait(PATIENCE_S)
    log.close()
    assert steps_in(run) == [1]


def test_steps_that_a_crashed_attempt_wrote_beyond_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    run = Storage.at(tmp_path)
    log = MetricsLog(run, every_s=PATIENCE_S)
    for step in (1, 2, 3, 4):
        log.add({"step": step, "loss": float("nan") if step == 2 else 1.0 / step})
        if step == 3:
            log.cut()()
    log.flush()
    log.close()
    assert steps_in(run) == [1, 2, 3, 4]
    drop_after(run, 3)
    assert [row["loss"] for row in metrics_of(run)] == [1.0, None, pytest.approx(1 / 3)]
    assert run.names() == [f"{METRICS}/steps-00000001.jsonl"]


def test_rows_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    run = Storage.at(tmp_path)
    run.write(METRICS, b"in the way")
    log = MetricsLog(run, every_s=PATIENCE_S)
    for step in (1, 2):
        log.add({"step": step})
        write = log.cut()
    with pytest.raises(OSError, match="metrics"):
        write()
    run.remove(METRICS)
    log.add({"step": 3})
    write()
    log.close()
    assert steps_in(run) == [1, 2, 3]
    assert len(run.names(METRICS)) == 3


def test_metrics_are_not_written_once_another_command_owns_the_storage(tmp_path: Path) -> None:
    run, asked = Storage.at(tmp_path), threading.Event()

    def lost() -> None:
        asked.set()
        raise InvalidInput([])

    log = MetricsLog(run, every_s=0.01, fence=lost)
    log.add({"step": 1, "loss": 0.5})
    assert asked.wait(PATIENCE_S)
    for thread in threading.enumerate():
        if thread.name == "pretrain-metrics":
            thread.join(PATIENCE_S)
    log.add({"step": 2, "loss": 0.4})
    log.close()
    assert run.names() == []
