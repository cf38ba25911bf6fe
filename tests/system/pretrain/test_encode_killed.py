"""The offline job as it is run: killed in its middle, begun again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fixtures.pretrain_shards import write_shards

from giornata.pretrain.data.fence import OWNER


def contents(folder: Path) -> dict[str, bytes]:
    """What was left half-way by somebody who was killed is not there for anybody."""
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".writing-" not in path.name and path.name != OWNER
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.timeout(240)
def test_killed_in_the_middle_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """The job as it is run, with kill -9 as soon as some shards are there."""
    write_shards(tmp_path / "shards", shards=24, rows=12)
    files = {}
    for name in ("whole", "killed"):
        text = (
            f'recipe = "sdxl_tiny"\nstorage = "{tmp_path / name}"\n[data]\nshards = "{tmp_path / "shards"}"\n'
            "[encode]\nencode_batch_size = 4\n"
        )
        files[name] = tmp_path / f"{name}.toml"
        files[name].write_text(text)
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "giornata.pretrain.encode"]
    job = subprocess.Popen([*command, str(files["killed"])])
    done = tmp_path / "killed" / "latents" / "text"  # the last part of a shard
    deadline_s = time.monotonic() + 120
    while len(list(done.glob("shard-*.json"))) < 3:
        assert job.poll() is None, "the job ended before it could be killed"
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    assert not (tmp_path / "killed" / "latents" / "64" / "manifest.json").exists()
    subprocess.run([*command, str(files["killed"]), "--report", str(report)], check=True)
    told = json.loads(report.read_text())
    assert told["kept"] >= 3
    assert told["encoded"] + told["kept"] == 24
    subprocess.run([*command, str(files["whole"])], check=True)
    assert contents(tmp_path / "killed" / "latents") == contents(tmp_path / "whole" / "latents")
