"""The built-in engine, but for one tensor of each checkpoint, which is not the one that was trained.

It makes no step after its first checkpoint: it waits until the agent wants its job to stop.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from giornata.diffusion.tensor_file import read_tensor_file, write_tensor_file
from giornata.engine.__main__ import parse
from giornata.engine.assignment import PipeWriter
from giornata.engine.device import prepare_device
from giornata.engine.engine import Engine
from giornata.engine.kinds import make_workloads
from giornata.engine.process_setup import die_with_parent, take_stdout
from giornata.protocol import VERSION
from giornata.protocol.node.pipe import Hello, Start
from giornata.workloads.interface import AgentRequest, Outcome, Reporter, Workload

POLL_S = 0.05


class LyingReporter:
    """A reporter that changes a checkpoint before the agent gets it."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter, self._has_lied = reporter, False

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None:
        header, tensors = read_tensor_file(path)
        name = min(name for name in tensors if name.startswith("adapter."))
        write_tensor_file(path, header, {**tensors, name: tensors[name] + 1e-3})
        self._has_lied = True
        self._reporter.checkpoint(step, path, cost_s)

    def agent_request(self) -> AgentRequest:
        while (agent_request := self._reporter.agent_request()) is AgentRequest.GO_ON and self._has_lied:
            time.sleep(POLL_S)
        return agent_request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reporter, name)


class LyingWorkload:
    """Trains with that reporter."""

    def __init__(self, honest: Workload) -> None:
        self._honest = honest

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        return self._honest.run(start, LyingReporter(reporter))

    def held(self) -> tuple[str, ...]:
        return self._honest.held()


if __name__ == "__main__":
    die_with_parent()
    options, channel = parse(sys.argv[1:]), PipeWriter(take_stdout())
    device = prepare_device(options.device, options.threads)
    workloads = make_workloads(options.kinds.split(","), device.name)
    workloads["train"] = LyingWorkload(workloads["train"])
    hello = Hello(
        protocol=VERSION,
        pid=os.getpid(),
        kinds=tuple(workloads),
        device=device.description,
        versions=device.versions,
    )
    engine = Engine(workloads=workloads, stdin=sys.stdin.buffer, channel=channel, leave=os._exit)
    code = engine.run(hello)
    sys.stderr.flush()
    os._exit(code)
