"""A node in a process of its own, at the lowest priority: as on another machine, it takes no time from the server.

Threads beside the clients that are measured would take their interpreter, too. What the server does for the node's
requests it does at its own priority.
"""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks.rig.bursts import BEAT, call_of_node, node_claim
from benchmarks.rig.drawing import Drawing
from benchmarks.rig.server import BenchmarkServer
from benchmarks.rig.wire import Wire

PAUSE_S = 0.2
PATIENCE_S = 60.0
LEAST_PRIORITY = 19
CLIENT = 999


class NodeLoad(StrEnum):
    """What the node does: leases of 16 pictures, or jobs with as many requests."""

    PICTURES = "pictures"
    JOBS = "jobs"


@contextmanager
def node_beside(server: BenchmarkServer, data: Path, work: NodeLoad) -> Iterator[None]:
    """A node that makes three requests, and three more after every pause of 0.2 s: 80 pictures a second at most.

    Raises RuntimeError when the node broke or did nothing.
    """
    spawn = multiprocessing.get_context("spawn")
    begun, stop = spawn.Event(), spawn.Event()
    node = spawn.Process(target=_work, args=(server, data, work, begun, stop))
    node.start()
    try:
        if not begun.wait(PATIENCE_S):
            raise RuntimeError(f"the node that does {work} did not begin")
        yield
    finally:
        stop.set()
        node.join()
    if node.exitcode:
        raise RuntimeError(f"the node that does {work} ended with {node.exitcode}")


def _work(server: BenchmarkServer, data: Path, work: NodeLoad, begun: Event, stop: Event) -> None:
    os.nice(LEAST_PRIORITY)
    drawing = Drawing(server, data)
    with Wire(server.host, server.port) as wire:
        while not stop.wait(PAUSE_S):
            if work is NodeLoad.PICTURES:
                if not drawing.draw_lease(wire, CLIENT, 16):
                    raise RuntimeError("no picture was left")
            else:
                _whole_job(server, wire)
            begun.set()


def _whole_job(server: BenchmarkServer, wire: Wire) -> None:
    """Claim a job, beat once, complete it: as many requests as a lease of pictures takes."""
    lease = call_of_node(wire, "/v1/node/claim", node_claim(CLIENT), server.node_key)["lease"]
    path, token = f"/v1/node/attempts/{lease['attempt_id']}", lease["token"]
    call_of_node(wire, f"{path}/heartbeat", BEAT, token)
    call_of_node(wire, f"{path}/complete", b'{"step": 7}', token)
