"""Counts as count_engine.py does, and stops at gates, where a test kills somebody or has the engine misbehave.

Its spec: {"steps", "every", "salt": a word that makes its files unlike those of other jobs, "gates": a folder,
"trace": a file that gets a line for each step, "checkpoint_bytes", "result_bytes", "cache_bytes": at least so large,
"step_s"}. With "cache_bytes" it offers the platform something for later jobs, before its first step.

On its way the engine comes to the gates started, caching, cached, step-N, writing-N, written-N, exporting and
exported. When the folder has a file GATE.stop, it writes GATE.here and does what the file says: `wait` until the file
is gone, or, once only, `obey` (wait for an order; at steps), `hang` (say nothing more), `spin`, `grow` (until there
is no memory) or `quit`.
"""

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path

POLL_S = 0.01
ALIVE_S = 0.2
GROWTH_BYTES = 2**24
silent = threading.Event()


def say(kind, **fields):
    sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
    sys.stdout.flush()


def gate(spec, name, orders=None):
    stop = Path(spec["gates"]) / f"{name}.stop"
    try:
        act = stop.read_text()
    except FileNotFoundError:  # not one look and then another: the test may take it away in between
        return
    stop.with_suffix(".here").touch()
    while act == "wait" and stop.exists():
        time.sleep(POLL_S)
    while act == "obey" and orders.empty():
        time.sleep(POLL_S)
    stop.unlink(missing_ok=True)
    if act == "quit":
        os._exit(3)
    if act == "hang":
        silent.set()
        threading.Event().wait()
    hoard = []
    while act in {"spin", "grow"}:
        if act == "grow":
            hoard.append(b"~" * GROWTH_BYTES)  # written to, so that it is memory and no promise


def save(spec, path, text, gate_name):  # whole or not at all: aside, synced, renamed
    aside = path.with_suffix(".part")
    with aside.open("w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        gate(spec, gate_name)
        file.write(text[len(text) // 2 :])
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    return str(path)


def count(start, orders):
    attempt, spec, directory = start["attempt"], start["spec"], Path(start["directory"])
    for each in start["inputs"]:
        assert Path(each["path"]).stat().st_size > 0
    say("cache_get", attempt=attempt, key="nothing")
    while (order := orders.get())["type"] != "cache":
        if order["type"] == "stop":
            return say("stopped", attempt=attempt)
    gate(spec, "started")
    resume = start["resume"]
    step, total = map(int, Path(resume["path"]).read_text().split()[:2]) if resume else (0, 0)
    if "cache_bytes" in spec:
        made = save(spec, directory / "cached", spec["salt"].ljust(spec["cache_bytes"], "~"), "caching")
        say("cache_put", attempt=attempt, key=spec["salt"], path=made)
        gate(spec, "cached")
    while step < spec["steps"]:
        time.sleep(spec.get("step_s", 0))
        step += 1
        total = (total * 31 + step) % 2**61
        with Path(spec["trace"]).open("a") as trace:
            trace.write(f"{attempt} {step}\n")
        say("progress", attempt=attempt, step=step, total=spec["steps"], metrics={"total": total})
        gate(spec, f"step-{step}", orders)
        order = None if orders.empty() else orders.get()
        stop = order is not None and order["type"] == "stop"
        if stop and not order["checkpoint"]:
            return say("stopped", attempt=attempt)
        if order or step % spec["every"] == 0:
            text = f"{step} {total} {spec['salt']}\n".ljust(spec.get("checkpoint_bytes", 0), "~")
            path = save(spec, directory / f"checkpoint-{step}", text, f"writing-{step}")
            say("checkpoint", attempt=attempt, step=step, path=path)
            gate(spec, f"written-{step}")
        if stop:
            return say("stopped", attempt=attempt, step=step)
    text = f"{step} {total} {spec['salt']}\n".ljust(spec.get("result_bytes", 0), "~")
    path = save(spec, directory / "count", text, "exporting")
    say("artifact", attempt=attempt, name="count.txt", path=path, media_type="text/plain")
    gate(spec, "exported")
    return say("done", attempt=attempt, step=step, summary={"total": total})


def listen(starts, orders):
    for line in sys.stdin:
        message = json.loads(line)
        (starts if message["type"] in {"start", "shutdown"} else orders).put(message)
    os._exit(0)  # the agent is gone


def be_alive():
    while not silent.is_set():
        say("alive")
        time.sleep(ALIVE_S)


def main():
    starts, orders = queue.Queue(), queue.Queue()
    say("hello", protocol=1, pid=os.getpid(), kinds=["x-gate"])
    threading.Thread(target=listen, args=(starts, orders), daemon=True).start()
    threading.Thread(target=be_alive, daemon=True).start()
    while (start := starts.get())["type"] == "start":
        while not orders.empty():
            orders.get()  # about the job before this one
        count(start, orders)


main()
