"""Each way of the soak in a process of its own, and one account of them all."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

SUMMED = ("operations", "episodes", "repeats", "deaths", "violations")
COUNTED = ("actions", "refusals", "by_way")


def soak_beside(names: Sequence[str], *, ops: int, seed: int, as_is: bool) -> int:
    """0 when nothing broke in any of them."""
    began_s = time.monotonic()
    flags = ["--ops", str(ops // len(names)), "--seed", str(seed), *(["--as-is"] if as_is else [])]
    command = [sys.executable, "-m", "tests.contract.model.soak", *flags]
    running = {name: subprocess.Popen([*command, "--on", name], stdout=subprocess.PIPE, text=True) for name in names}
    lasts: dict[str, str] = {}
    readers = [threading.Thread(target=_follow, args=(name, it, lasts)) for name, it in running.items()]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        for it in running.values():
            it.terminate()
        codes = [it.wait() for it in running.values()]
    parts = {name: _account(last) for name, last in lasts.items()}
    wall_s = time.monotonic() - began_s
    whole = {"soak": "model", "seed": seed, "processes": len(names), "wall_s": round(wall_s, 1)}
    whole |= {key: sum(part.get(key, 0) for part in parts.values()) for key in SUMMED}
    whole["per_s"] = round(whole["operations"] / wall_s, 1)
    for key in COUNTED:
        whole[key] = sum((Counter(part.get(key, {})) for part in parts.values()), Counter())
    sys.stdout.write(json.dumps({**whole, "wall_s_by_way": {name: it.get("wall_s") for name, it in parts.items()}}))
    sys.stdout.write("\n")
    return 0 if all(code == 0 for code in codes) else 1


def _follow(name: str, process: "subprocess.Popen[str]", lasts: dict[str, str]) -> None:
    """Pass on what it says, but for its last line, which is its account."""
    assert process.stdout is not None
    lasts[name] = ""
    for line in process.stdout:
        if lasts[name]:
            sys.stdout.write(f"{name}: {lasts[name]}")
            sys.stdout.flush()
        lasts[name] = line


def _account(last: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        account: dict[str, Any] = json.loads(last)
        return account
    sys.stdout.write(last)
    return {}
