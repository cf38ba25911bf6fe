"""An engine for kind `generate` that draws without a model: a picture is a square, and its seed gives the color.

The words of a prompt direct it: `sleep=S` takes S seconds, `gate=PATH` writes the process id into PATH.here and waits
until PATH is gone, `fail` or `fail=REASON` cannot draw, `block` finds the picture unsafe, `crash` kills the engine,
`forget` says nothing of the picture, `host` says that the lease's
files are in host memory, `annotation=KEY` offers the picture as an annotation, and `verify` cannot draw
with a file that is damaged.
"""

import hashlib
import json
import os
import queue
import struct
import sys
import threading
import time
import zlib
from pathlib import Path

SIDE_PX = 8


def png_of(seed):
    """A square whose color is a function of the seed."""
    row = b"\0" + struct.pack(">I", seed % 2**32)[1:] * SIDE_PX
    size = struct.pack(">IIBBBBB", SIDE_PX, SIDE_PX, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", size), (b"IDAT", zlib.compress(row * SIDE_PX)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks))


def _chunk(named):
    name, data = named
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def say(kind, **fields):
    sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
    sys.stdout.flush()


class AgentCommands:
    """What the agent wants of attempts that have begun, or stand in line."""

    def __init__(self):
        self.stopped, self.dropped = set(), set()

    def obey(self, message):
        if message["type"] == "stop":
            self.stopped.add(message["attempt"])
        if message["type"] == "drop_pictures":
            self.dropped |= {(message["attempt"], order, number) for order, number in message["pictures"]}


def pause(words):
    time.sleep(float(words.get("sleep", 0)))
    if "gate" in words and (gate := Path(words["gate"])).exists():
        aside = gate.with_name(f"{gate.name}.{os.getpid()}")
        aside.write_text(str(os.getpid()))
        aside.rename(gate.with_name(gate.name + ".here"))
        while gate.exists():
            time.sleep(0.02)


def is_whole(file):
    return hashlib.sha256(Path(file["path"]).read_bytes()).hexdigest() == file["sha256"]


def draw(start, orders):
    attempt, pictures = start["attempt"], start["spec"]["pictures"]
    for count, picture in enumerate(pictures):
        params, of = picture["params"], {"order_id": picture["order_id"], "number": picture["number"]}
        words = dict(word.partition("=")[::2] for word in params["prompt"].split())
        pause(words)
        if attempt in orders.stopped:
            return say("stopped", attempt=attempt)
        if (attempt, *of.values()) in orders.dropped or "forget" in words:
            continue
        if "crash" in words:
            os.kill(os.getpid(), 9)
        if "verify" in words and not all(map(is_whole, start["inputs"])):
            say("picture_failed", attempt=attempt, **of, reason="bad_data", message="a file cannot be loaded")
        elif "fail" in words:
            said = f"{start['directory']}/lora.safetensors is broken" if "file" in words else "out of memory"
            say("picture_failed", attempt=attempt, **of, reason=words["fail"] or "node_vram", message=said)
        elif "block" in words:
            say("picture", attempt=attempt, **of, path=None, flags=1)
        else:
            if "annotation" in words:
                kept = Path(start["directory"]) / f"annotation-{count}.png"
                kept.write_bytes(png_of(params["seed"]))
                say("cache_put", attempt=attempt, key=f"annotation:{words['annotation']}", path=str(kept))
            path = Path(start["directory"]) / f"{count}.png"
            path.write_bytes(png_of(params["seed"]))
            say("picture", attempt=attempt, **of, path=str(path))
    if "host" in words:
        say("held", models=[], host_files=[file["sha256"] for file in start["inputs"]])
    return say("done", attempt=attempt, step=len(pictures))


def listen(starts, orders):
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] in {"start", "shutdown"}:
            starts.put(message)
        else:
            orders.obey(message)
    os._exit(0)  # the agent is gone


def main():
    starts, orders = queue.Queue(), AgentCommands()
    threading.Thread(target=listen, args=(starts, orders), daemon=True).start()
    say("hello", protocol=1, pid=os.getpid(), kinds=sys.argv[sys.argv.index("--kinds") + 1].split(","))
    while (start := starts.get())["type"] == "start":
        draw(start, orders)


if __name__ == "__main__":
    main()
