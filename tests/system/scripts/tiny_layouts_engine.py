"""The built-in engine for single files of tiny models: `tiny_layouts_engine.py LAYOUTS …`, then the engine's options.

A single file has no configs. The built-in engine ships those of the real sizes; this one reads them in LAYOUTS.
"""

import os
import sys
from functools import partial
from pathlib import Path

from giornata.diffusion.base.models import load_base, load_model
from giornata.engine.__main__ import parse
from giornata.engine.assignment import PipeWriter
from giornata.engine.device import prepare_device
from giornata.engine.engine import Engine
from giornata.engine.kinds import make_workloads
from giornata.engine.process_setup import die_with_parent, take_stdout
from giornata.protocol import VERSION
from giornata.protocol.node.pipe import Hello
from giornata.workloads.generate.workload import GenerateWorkload
from giornata.workloads.train.workload import TrainWorkload

if __name__ == "__main__":
    die_with_parent()
    options, channel = parse(sys.argv[2:]), PipeWriter(take_stdout())
    device = prepare_device(options.device, options.threads)
    workloads = make_workloads(options.kinds.split(","), device.name) | {
        "generate": GenerateWorkload(
            device=device.name,
            load=partial(load_model, layouts=Path(sys.argv[1])),
            host_model_bytes=options.host_model_bytes,
        ),
        "train": TrainWorkload(device=device.name, load=partial(load_base, layouts=Path(sys.argv[1]))),
    }
    hello = Hello(protocol=VERSION, pid=os.getpid(), kinds=tuple(workloads), device=device.description)
    engine = Engine(workloads=workloads, stdin=sys.stdin.buffer, channel=channel, leave=os._exit)
    code = engine.run(hello)
    sys.stderr.flush()
    os._exit(code)
