"""What Ray says of a worker that was killed does not get among the lines of a run; without our setting it would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from giornata.pretrain.run import RAY_LEAVES_OUT

SAID = "A worker died or was killed"
PROGRAM = """
import logging, os, sys, tempfile, time
import giornata.pretrain.run
assert "ray" not in sys.modules  # the setting would come too late
os.environ.update(eval(sys.argv[1]))
import ray

with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 << 20,
             logging_level=logging.ERROR, log_to_driver=False, _temp_dir=folder)

    @ray.remote(max_retries=0)
    def die():
        os.kill(os.getpid(), 9)

    try:
        ray.get(die.remote())
    except ray.exceptions.WorkerCrashedError:
        print("it is known here", flush=True)
    time.sleep(5)
    print("the end", flush=True)
    ray.shutdown()
"""


@pytest.mark.parametrize("left_out", [True, False])
def test_a_lost_worker_is_not_told_by_ray(tmp_path: Path, left_out: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in RAY_LEAVES_OUT}
    settings = repr(RAY_LEAVES_OUT if left_out else {})
    words = [sys.executable, "-c", PROGRAM, settings]
    said = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True).stdout
    assert said.startswith("it is known here") or not left_out
    assert said.rstrip().endswith("the end")
    assert (SAID in said) is not left_out
