"""The real engine, with torch, as a process."""

import json
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 120


def test_the_real_engine_says_hello_and_ends_with_its_agent(tmp_path: Path) -> None:
    start = {"type": "start", "attempt": "att_1", "job": "job_1", "kind": "x-none", "spec": {}}
    process = subprocess.Popen(
        [sys.executable, "-m", "giornata.engine", "--kinds", "train", "--device", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps({**start, "directory": str(tmp_path)}) + "\n")
    process.stdin.flush()
    lines = (json.loads(line) for line in process.stdout)
    hello = next(lines)
    assert (hello["type"], hello["protocol"], hello["kinds"]) == ("hello", 1, ["train"])
    assert hello["pid"] == process.pid
    assert "torch" in hello["versions"]
    failed = next(line for line in lines if line["type"] != "alive")
    assert (failed["type"], failed["attempt"], failed["reason"]) == ("failed", "att_1", "bad_spec")
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
