"""An engine of one's own: counts, and folds each number into a total, so that no number can be missed or repeated.

Its spec: {"steps": how far to count, "every": steps between checkpoints, "step_s": seconds for a step}.
"""

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path


def say(kind, **fields):
    sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
    sys.stdout.flush()


def save(path, text):  # whole or not at all: aside, synced, renamed
    with path.with_suffix(".part").open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".part").rename(path)
    return str(path)


def count(attempt, spec, directory, resume, orders):
    step, total = map(int, Path(resume["path"]).read_text().split()) if resume else (0, 0)
    while step < spec["steps"]:
        time.sleep(spec.get("step_s", 0))
        step += 1
        total = (total * 31 + step) % 2**61
        say("progress", attempt=attempt, step=step, total=spec["steps"], metrics={"total": total})
        order = None if orders.empty() else orders.get()
        stop = order is not None and order["type"] == "stop"
        if stop and not order["checkpoint"]:
            return say("stopped", attempt=attempt)
        if order or step % spec.get("every", 10) == 0:
            path = save(directory / f"checkpoint-{step}", f"{step} {total}\n")
            say("checkpoint", attempt=attempt, step=step, path=path)
        if stop:
            return say("stopped", attempt=attempt, step=step)
    path = save(directory / "count", f"{step} {total}\n")
    say("artifact", attempt=attempt, name="count.txt", path=path, media_type="text/plain")
    return say("done", attempt=attempt, step=step, summary={"total": total})


def listen(starts, orders):
    for line in sys.stdin:
        message = json.loads(line)
        (starts if message["type"] in {"start", "shutdown"} else orders).put(message)
    os._exit(0)  # the agent is gone


def main():
    starts, orders = queue.Queue(), queue.Queue()
    threading.Thread(target=listen, args=(starts, orders), daemon=True).start()
    say("hello", protocol=1, pid=os.getpid(), kinds=["x-count"])
    while (start := starts.get())["type"] == "start":
        while not orders.empty():
            orders.get()  # about the job before this one
        count(start["attempt"], start["spec"], Path(start["directory"]), start["resume"], orders)


main()
