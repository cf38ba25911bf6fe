"""What the platform costs while nobody wants anything of it: `python -m benchmarks.at_rest`.

Starts `giornata up` on an empty database, with a local fleet that may grow to four nodes and has none, and looks at
every process that there is: how many, their resident memory, and the CPU seconds that they use over `--seconds`.
Prints a table, then one JSON line. Marks: no node, under 150 MB, under 1 % of a core.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rig.figures import conclude, machine, spread, spread_words
from benchmarks.rig.processes import Usage, usage_of

MEMORY_MARK_BYTES = 150e6
CORE_MARK = 0.01


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settle", type=float, default=30.0, help="seconds after the start that do not count")
    parser.add_argument("--seconds", type=float, default=60.0, help="of one repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args(arguments)
    about: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        process = _started(Path(folder))
        try:
            time.sleep(options.settle)
            found = [_repetition(process.pid, options.seconds) for _ in range(options.repetitions)]
        finally:
            process.terminate()
            process.wait(60)
    cores = spread([cpu_s / options.seconds for cpu_s, _ in found], digits=5)
    resident = spread([usage.rss_bytes / 1e6 for _, usage in found], digits=1)
    print(f"resident memory, MB   {spread_words(resident)}")
    print(f"share of one core     {spread_words(cores)}")
    good = (
        resident["max"] * 1e6 < MEMORY_MARK_BYTES
        and statistics.median(c for c, _ in found) < options.seconds * CORE_MARK
    )
    print("marks: 150 MB and 1 % of a core: " + ("kept" if good else "missed"))
    conclude({**about, "seconds": options.seconds, "resident_mb": resident, "core_share": cores, "kept": good})


def _started(folder: Path) -> "subprocess.Popen[bytes]":
    log = folder / "log"
    command = [
        sys.executable,
        "-m",
        "giornata",
        "up",
        "--max-nodes",
        "4",
        "--port",
        "0",
        "--data",
        str(folder / "data"),
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    ends_s = time.monotonic() + 60
    while not (folder / "data" / "server.json").exists():
        if process.poll() is not None or time.monotonic() > ends_s:
            sys.exit(f"it did not start:\n{log.read_text()}")
        time.sleep(0.1)
    return process


def _repetition(pid: int, seconds: float) -> tuple[float, Usage]:
    """CPU seconds used meanwhile, and the usage at the end; children, which there should be none of, counted in."""
    before = usage_of(pid, with_children=True)
    time.sleep(seconds)
    after = usage_of(pid, with_children=True)
    return after.cpu_s - before.cpu_s, after


if __name__ == "__main__":
    main(sys.argv[1:])
