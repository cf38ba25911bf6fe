"""The canary in a real engine, as a node gets it."""

import json
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 120


def test_an_engine_does_a_canary_between_its_jobs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "giornata.engine", "--kinds", "train,canary", "--device", "cpu"]
    start = {
        "type": "start",
        "attempt": "att_1",
        "job": "job_1",
        "kind": "canary",
        "spec": {"steps": 6},
        "directory": str(tmp_path),
    }
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        engine.stdin.write(json.dumps(start) + "\n")
        engine.stdin.flush()
        said = []
        for line in engine.stdout:
            said.append(json.loads(line))
            if said[-1]["type"] in {"done", "failed"}:
                break
        engine.stdin.write(json.dumps({"type": "shutdown"}) + "\n")
        engine.stdin.close()
        assert engine.wait(PATIENCE_S) == 0
    assert said[0]["kinds"] == ["train", "canary"]
    assert said[-1]["type"] == "done", said[-1]
    assert said[-1]["summary"]["bit_equal"] is True
    assert [each["step"] for each in said if each["type"] == "progress"] == list(range(1, 7))
    assert list(tmp_path.iterdir()) == []
