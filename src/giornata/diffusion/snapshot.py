"""Tensors as they are at one moment, brought to the CPU while work goes on.

All tensors of a kind are joined into one, so that a copy off a GPU is one transfer rather than thousands. On CUDA it
goes to pinned memory on a stream of its own: whoever took the snapshot may change the originals at once.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Tensors of one device and dtype, one after the other in `flat_N`; `copied` tells when they have arrived."""

    shapes: Mapping[str, torch.Size]
    flat_N: torch.Tensor
    copied: torch.cuda.Event | None

    def tensors(self) -> dict[str, torch.Tensor]:
        if self.copied is not None:
            self.copied.synchronize()
        pieces = self.flat_N.split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}


class Snapshot:
    """Copies of tensors, on their way to the CPU."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        kinds: dict[tuple[torch.device, torch.dtype], dict[str, torch.Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            kinds[tensor.device, tensor.dtype][name] = tensor.detach()
        self._parts = [_part(named) for named in kinds.values()]

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of them, on the CPU, by name. Waits until they are there."""
        return {name: tensor for part in self._parts for name, tensor in part.tensors().items()}


def _part(named: Mapping[str, torch.Tensor]) -> _Part:
    shapes = {name: tensor.shape for name, tensor in named.items()}
    flat_N = torch.cat([tensor.reshape(-1) for tensor in named.values()])
    if not flat_N.is_cuda:
        return _Part(shapes=shapes, flat_N=flat_N, copied=None)
    aside = torch.cuda.Stream(flat_N.device)
    aside.wait_stream(torch.cuda.current_stream(flat_N.device))
    with torch.cuda.stream(aside):
        host_N = torch.empty(flat_N.shape, dtype=flat_N.dtype, pin_memory=True)
        host_N.copy_(flat_N, non_blocking=True)
        flat_N.record_stream(aside)
        copied = aside.record_event()
    return _Part(shapes=shapes, flat_N=host_N, copied=copied)
