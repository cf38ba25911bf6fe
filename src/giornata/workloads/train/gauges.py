"""What the platform tells of a job besides its loss. Nothing here waits for the device while steps run."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from giornata.diffusion.flops import matmul_flops_per_s, training_flops
from giornata.diffusion.models import BaseModel
from giornata.diffusion.unet_layers import layers_of
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.fit import worn_on


@dataclass(slots=True, kw_only=True)
class Gauges:
    """`waited_s` is how long steps have waited for batches, in all; `flops_per_image` and `peak_flops_per_s` give
    MFU, where the device's rate is known; `vram_peak_bytes` reads the allocator's peak, where there is one, and
    `by_graph` how many passes CUDA graphs have made in all."""

    waited_s: Callable[[], float]
    flops_per_image: int = 0
    peak_flops_per_s: float | None = None
    vram_peak_bytes: Callable[[], int] | None = None
    by_graph: Callable[[], int] | None = None
    _seen_s: float = field(default=0.0, init=False)
    _seen_by_graph: int = field(default=0, init=False)

    def read(self, *, steps: int, images_per_s: float) -> dict[str, float]:
        """`data_wait_ms` per step, over the last `steps` of them; `mfu` from 0 to 1; `vram_peak_bytes`;
        `graph_passes` per step."""
        waited_s = self.waited_s()
        found = {"data_wait_ms": 1000.0 * (waited_s - self._seen_s) / steps}
        self._seen_s = waited_s
        if self.peak_flops_per_s is not None:
            found["mfu"] = images_per_s * self.flops_per_image / self.peak_flops_per_s
        if self.vram_peak_bytes is not None:
            found["vram_peak_bytes"] = float(self.vram_peak_bytes())
        if self.by_graph is not None:
            by_graph = self.by_graph()
            found["graph_passes"] = (by_graph - self._seen_by_graph) / steps
            self._seen_by_graph = by_graph
        return found


def gauges_of(
    base: BaseModel,
    spec: TrainSpec,
    *,
    waited_s: Callable[[], float],
    peak_flops_per_s: float | None,
    by_graph: Callable[[], int] | None = None,
) -> Gauges:
    """The gauges of one attempt. The high-water mark is set back."""
    layers = layers_of(base.unet, spec.resolution, max_token_length=spec.max_token_length)
    ranks = {name: worn.rank for name, worn in worn_on(layers, spec).items()}
    on_cuda = base.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(base.device)
    return Gauges(
        waited_s=waited_s,
        flops_per_image=training_flops(layers, ranks),
        peak_flops_per_s=peak_flops_per_s,
        vram_peak_bytes=(lambda: torch.cuda.max_memory_allocated(base.device)) if on_cuda else None,
        by_graph=by_graph if on_cuda else None,
    )


def peak_of(device: torch.device, dtype: torch.dtype) -> float | None:
    """The measured rate of a GPU's matrix units; None for a CPU, whose rate depends on what else runs there."""
    return matmul_flops_per_s(device, dtype) if device.type == "cuda" else None
