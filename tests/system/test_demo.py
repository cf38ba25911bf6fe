"""How the demo ends when it cannot come to its own end: nothing stays behind. (`make demo` runs all of it.)"""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.system.conftest import MARK, PATIENCE_S, marked, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mark() -> Iterator[str]:
    drawn = uuid.uuid4().hex
    yield drawn
    for pid in marked(drawn):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def demo(tmp_path: Path, mark: str) -> Iterator[subprocess.Popen[str]]:
    """A demo whose installation is up."""
    command = [sys.executable, "-m", "examples.demo", "--json", "--out", str(tmp_path / "out")]
    environment = {**os.environ, MARK: mark}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        until((tmp_path / "out" / "data" / "server.json").exists, "the demo's server")
        yield process
        process.kill()


def test_sigterm_ends_everything_that_the_demo_started(demo, mark, tmp_path):
    until(lambda: len(marked(mark)) > 2, "the demo's nodes")
    demo.terminate()
    _, said = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, said
    assert "stopped, and everything that the demo had started" in said
    assert marked(mark) == {}
    assert not (tmp_path / "out" / "data" / "server.json").exists()


def test_demo_reports_death_of_installation_and_names_log_files(demo, mark, tmp_path):
    server = json.loads((tmp_path / "out" / "data" / "server.json").read_text())
    os.kill(server["pid"], signal.SIGKILL)
    printed, said = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 1
    assert "giornata up ended with status -9" in json.loads(printed.splitlines()[-1])["error"]["message"]
    assert str(tmp_path / "out" / "logs" / "up.log") in said
    until(lambda: marked(mark) == {}, "the nodes to end by themselves")
