"""An engine in a thread, with a real pipe for its standard input and a queue for what it says."""

import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from giornata.engine.engine import Engine
from giornata.protocol import VERSION
from giornata.protocol.node.pipe import TO_ENGINE, Alive, FromEngine, Hello, Start, ToEngine
from giornata.workloads.interface import Workload

M = TypeVar("M")
PATIENCE_S = 10.0


class PipeDriver:
    """The agent's end. `exits` holds the codes with which the engine left at once."""

    def __init__(self, workloads: Mapping[str, Workload], *, alive_every_s: float = 60.0) -> None:
        self.said: queue.Queue[FromEngine] = queue.Queue()
        self.exits: queue.Queue[int] = queue.Queue()
        self.result: list[int] = []
        reading, writing = os.pipe()
        self._stdin = os.fdopen(writing, "wb", buffering=0)
        self._engine = Engine(
            workloads=workloads,
            stdin=os.fdopen(reading, "rb"),
            channel=self,
            leave=self.exits.put,
            alive_every_s=alive_every_s,
        )
        self._hello = Hello(protocol=VERSION, pid=1, kinds=tuple(workloads))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.result.append(self._engine.run(self._hello))

    def send(self, message: FromEngine) -> None:
        """The pipe of the engine."""
        self.said.put(message)

    def tell(self, message: ToEngine) -> None:
        self._stdin.write(TO_ENGINE.dump_json(message) + b"\n")

    def tell_raw(self, line: bytes) -> None:
        self._stdin.write(line)

    def start(self, directory: Path, *, attempt: str = "att_1", kind: str = "x-test", key: str | None = None) -> None:
        self.tell(Start(attempt=attempt, job="job_1", kind=kind, spec={}, directory=directory, joint_key=key))

    def waiting(self) -> int:
        """How many attempts stand in line."""
        return len(self._engine.waiting)

    def close(self) -> None:
        self._stdin.close()

    def hear(self, kind: type[M]) -> M:
        """The next message of this class; what comes before it is skipped, alive excepted nothing is lost on it."""
        while True:
            message = self.said.get(timeout=PATIENCE_S)
            if isinstance(message, kind):
                return message

    def hear_next(self) -> FromEngine:
        while True:
            message = self.said.get(timeout=PATIENCE_S)
            if not isinstance(message, Alive | Hello):
                return message

    def join(self) -> int:
        self._thread.join(PATIENCE_S)
        return self.result[0]
