"""CUDA graphs: what a function launches on the device, recorded once and launched as a whole.

A function that is recorded reads tensors at fixed addresses, and writes to tensors at fixed addresses. It may
neither wait for the device, nor copy between the CPU and the device, nor draw random numbers. What it allocates lies
in a pool of memory that all graphs of one recorder share: they run one after the other, and none reads what another
has left.

This code has not run on a GPU yet (docs/explanation/cuda.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

WARM_UPS = 2
"""Runs on the side stream before the recording: libraries make their handles and workspaces in the first one."""

Tensors = Mapping[str, torch.Tensor]
Work = Callable[[Tensors], torch.Tensor]


class Graph(Protocol):
    """The recorded device work of one function, ready to be replayed."""

    def replay(self) -> torch.Tensor:
        """Run the recorded work again. Returns the function's result, in memory that the next replay overwrites."""


class Recorder(Protocol):
    """A maker of graphs for one device."""

    def record(self, work: Work, inputs: Tensors) -> Graph:
        """Record the graph of `work` on these very inputs, whose values each replay reads anew. Runs `work` several
        times; the caller restores the tensors that `work` writes to."""

    def release(self) -> None:
        """Give back the memory that graphs have left. No graph of this recorder may be in use."""


@dataclass(frozen=True, slots=True)
class _RecordedGraph:
    graph: torch.cuda.CUDAGraph
    result: torch.Tensor

    def replay(self) -> torch.Tensor:
        """Replay the work, as `Graph.replay` describes."""
        self.graph.replay()
        return self.result


class CudaRecorder:
    """A recorder on a side stream of a CUDA device.

    Other threads pin memory and wait for events while a graph is recorded, so only calls of the recording thread may
    break the recording (`thread_local`).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work, inputs: Tensors) -> Graph:
        """Record a graph, as `Recorder.record` describes. Raises RuntimeError when `work` does what a graph cannot
        hold, or memory gives out."""
        current = torch.cuda.current_stream(self._device)
        torch.cuda.empty_cache()  # a block of memory belongs to one stream: the side stream needs blocks of its own
        self._stream.wait_stream(current)
        # torch leaves the side stream switched on when a recording breaks off; this context switches back.
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work(inputs)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                result = work(inputs)
        current.wait_stream(self._stream)
        return _RecordedGraph(graph, result)

    def release(self) -> None:
        """Give back unused memory, as `Recorder.release` describes."""
        torch.cuda.empty_cache()


def recorder_of(device: torch.device) -> Recorder | None:
    """Return the recorder of a device; None for a device that has no CUDA graphs."""
    return CudaRecorder(device) if device.type == "cuda" else None
