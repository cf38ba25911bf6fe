"""What Ray says of a worker that was killed does not get among the lines of a run; without our setting it would."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.system.pretrain.runs import PATIENCE_S

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


def test_lost_worker_is_not_told_by_ray_and_would_be_without_our_setting(tmp_path: Path) -> None:
    with started(RAY_LEAVES_OUT, tmp_path) as ours, started({}, tmp_path) as plain:
        said, said_without = (each.communicate(timeout=PATIENCE_S)[0] for each in (ours, plain))
    assert (ours.returncode, plain.returncode) == (0, 0)
    assert said.startswith("it is known here")
    assert said.rstrip().endswith("the end")
    assert SAID not in said
    assert said_without.rstrip().endswith("the end")
    assert SAID in said_without


def started(settings: Mapping[str, str], folder: Path) -> "subprocess.Popen[str]":
    """The program with these settings of Ray, which are not in its environment from the start."""
    environment = {name: value for name, value in os.environ.items() if name not in RAY_LEAVES_OUT}
    words = [sys.executable, "-c", PROGRAM, repr(dict(settings))]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=folder)
