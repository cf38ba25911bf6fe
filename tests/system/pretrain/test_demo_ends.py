"""The demo of pre-training ends with all that it has begun, whenever and however it is told to."""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.system.conftest import MARK, marked, until
from tests.system.pretrain.runs import PATIENCE_S

EXIT_INTERRUPTED = 130


def begun(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """By it, and by what it began."""
    return psutil.Process(process.pid).children(recursive=True)


def named(processes: list[psutil.Process], word: str) -> bool:
    """Whether one of them has the word in its command line."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            if any(word in part for part in each.cmdline()):
                return True
    return False


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """What has ended and was not waited for is not."""
    found = list[psutil.Process]()
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            if each.is_running() and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


@pytest.mark.parametrize(
    ("word", "signals"),
    [("gcs_server", [signal.SIGTERM]), ("ray::", [signal.SIGINT, signal.SIGINT])],
    ids=["SIGTERM while Ray starts", "Ctrl-C twice while Ray works"],
)
def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path, word: str, signals: list[signal.Signals]) -> None:
    mark = uuid.uuid4().hex
    # Tests may run in the background of a script, where SIGINT is ignored; the demo would inherit that.
    words = ["-m", "examples.pretrain_demo", "--out", str(tmp_path / "demo")]
    command = ["env", "--default-signal=INT", sys.executable, *words]
    with (tmp_path / "said").open("wb") as said:
        demo = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | {MARK: mark})
    until(lambda: demo.poll() is not None or named(begun(demo), word), f"{word} to be begun", PATIENCE_S)
    known = begun(demo)
    for number in signals:
        demo.send_signal(number)
    assert demo.wait(PATIENCE_S) == EXIT_INTERRUPTED, (tmp_path / "said").read_text()
    assert "stopped, with all that it had begun" in (tmp_path / "said").read_text()
    until(
        lambda: not alive(known) and not marked(mark), lambda: f"the end of {alive(known)} {marked(mark)}", PATIENCE_S
    )
