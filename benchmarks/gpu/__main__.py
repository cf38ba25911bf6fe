"""What a GPU shows, in parts, each of which is carried out once: `make gpu`.

Parts that are done are in the JSON file, and are passed over by the next call; --again has them anew. A part that
fails or takes too long is told, and the others go on. The exit status is 0 when all parts are done, 1 when one failed
and 3 when some are left because --minutes did not suffice for the next.

After a run on a GPU the tables of docs/benchmarks.md are those of the JSON file. `make gpu DEVICE=cpu` rehearses
everything with the tiny model; its figures mean nothing, and stay out of the docs. --render writes the tables of
another JSON file, and carries out nothing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import tables
from benchmarks.gpu.parts import PARTS, limit_s
from benchmarks.gpu.record import DONE, FAILED, ROOT, DeviceRecord, about
from benchmarks.gpu.settings import GpuSettings, settings_for

PAGE = ROOT / "docs" / "benchmarks.md"
MINUTES_ON_A_GPU = 25
LEFT = 3
"""The exit status when parts are left."""
WORDS = 4000
"""Characters of what a part said that are kept where it failed."""


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="default: build/gpu-DEVICE.json")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS), help="only these")
    parser.add_argument("--again", nargs="+", choices=tuple(PARTS), default=[], help="these though they are done")
    parser.add_argument(
        "--minutes", type=float, help="begin no part whose time limit ends later than this (25 on a GPU)"
    )
    parser.add_argument("--script", default="fetch", help="the example script: a path, fetch, or none")
    parser.add_argument("--render", action="store_true", help="only write the tables into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if options.minutes is None and options.device == "cuda":
        options.minutes = MINUTES_ON_A_GPU
    options.json = options.json or ROOT / "build" / f"gpu-{options.device}.json"
    return options


def carried_out(part: str, settings: GpuSettings, limit_s: float) -> dict[str, Any]:
    """What the record says of a part: its state, seconds, and what it found or why it failed. The part and all that
    it started are ended when it takes too long; what it wrote goes in any case."""
    began_s, late = time.monotonic(), False
    with (
        tempfile.TemporaryDirectory(prefix="giornata-gpu-", ignore_cleanup_errors=True) as home,
        tempfile.TemporaryFile("w+") as said,
        tempfile.TemporaryFile("w+") as warned,
    ):
        command = [sys.executable, "-m", "benchmarks.gpu.child", part, json.dumps(settings.told()), home]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=said, stderr=warned, env=_environment(home), start_new_session=True
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end(process)
        for file in (said, warned):
            file.seek(0)
        told, words = said.read(), warned.read()
    took = {"seconds": round(time.monotonic() - began_s, 1), "settings": settings.told()}
    found, failure = _found(told), {"state": FAILED, **took, "said": (told + words)[-WORDS:]}
    if late or process.returncode:
        why = f"it took more than {limit_s:g} s" if late else f"it ended with {process.returncode}"
        return {**failure, "why": why, **found}
    if failed := found["found"].get("failed"):
        return {**failure, "why": f"these failed: {', '.join(failed)}", **found}
    return {"state": DONE, **took, **found}


def _found(told: str) -> dict[str, Any]:
    """The last whole line of JSON; a part that was ended may have told of what it had so far."""
    for line in reversed(told.splitlines()):
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(found, dict):
            return {"found": found}
    return {}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part that still runs, and all that it started; a part that has ended has none left."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(home: str) -> dict[str, str]:
    """Temporary files of a part lie in `home`."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": home}


CarryOut = Callable[[str, GpuSettings, float], dict[str, Any]]


def run(
    options: argparse.Namespace,
    record: DeviceRecord,
    carry_out: CarryOut = carried_out,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Carry out what is left. Returns the exit status."""
    settings, began_s = settings_for(options.device, options.script), clock()
    left = [part for part in options.parts if part in options.again or not record.is_done(part)]
    if done := [part for part in options.parts if part not in left]:
        print(f"done before: {', '.join(done)}", flush=True)
    while left:
        part, limit = left[0], limit_s(left[0], options.device)
        if options.minutes is not None and clock() - began_s + limit > 60 * options.minutes:
            print(f"left for the next call: {', '.join(left)}", flush=True)
            return LEFT
        print(f"{part}: {PARTS[part].title}, at most {limit} s ...", flush=True)
        found = carry_out(part, settings, limit)
        record.note(part, **found)
        print(f"{part}: {found['state']} after {found['seconds']} s", flush=True)
        if found["state"] == FAILED:
            print(f"{found['why']}\n{found['said']}", flush=True)
        left.pop(0)
    return 0 if all(record.is_done(part) for part in options.parts) else 1


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    if options.render:
        tables.write(json.loads(options.json.read_text(encoding="utf-8")), PAGE)
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the part that runs ends with this
    record = DeviceRecord(options.json, about(options.device))
    code = run(options, record)
    print("\n".join(told_after(options, record.content, PAGE)))
    return code


def told_after(options: argparse.Namespace, content: Mapping[str, Any], page: Path) -> list[str]:
    """Put the tables of a run on a GPU into `page`. Returns the lines that tell what was found, and where it lies."""
    told = [tables.rendered(content), str(options.json)]
    if options.device == "cuda":
        tables.write(content, page)
        told.append(f"{page} has these tables now")
    return told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
