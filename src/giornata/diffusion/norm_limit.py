"""sd-scripts' `scale_weight_norms`: after each step no layer's product s·B·A is longer than a bound.

Shapes: G layers of one shape and one scale s; r rank, I inputs (a kernel counted among them), O outputs. The length
is Frobenius's: ‖B·A‖² = sum((BᵀB) ∘ (A·Aᵀ)), two r x r matrices, so that no matrix of the layer's own size is made. A
layer that is too long has A and B multiplied by sqrt(bound / length) each.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from giornata.diffusion.adapter_plan import size_of
from giornata.protocol.specs import TrainSpec

A_SUFFIX, B_SUFFIX = ".lora_A.weight", ".lora_B.weight"


class NormLimit:
    """Called after each update. `scaled` is how many layers were too long the last time, a scalar on the device; no
    call waits for the device."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], spec: TrainSpec, *, most: float) -> None:
        self._most, self._parameters = most, parameters
        alike: dict[tuple[torch.Size, torch.Size, float], list[str]] = defaultdict(list)
        for layer in (name.removesuffix(A_SUFFIX) for name in parameters if name.endswith(A_SUFFIX)):
            a, b = parameters[layer + A_SUFFIX], parameters[layer + B_SUFFIX]
            alike[a.shape, b.shape, _scale(spec, layer)].append(layer)
        self._groups = tuple((scale, tuple(layers)) for (_, _, scale), layers in alike.items())
        self.scaled = torch.zeros(())

    @torch.no_grad()
    def __call__(self) -> None:
        """Shorten what is too long."""
        counts = [self._shorten(scale, layers) for scale, layers in self._groups]
        self.scaled = torch.stack(counts).sum()

    def _shorten(self, scale: float, layers: Sequence[str]) -> torch.Tensor:
        down = [self._parameters[layer + A_SUFFIX] for layer in layers]
        up = [self._parameters[layer + B_SUFFIX] for layer in layers]
        down_GrI = torch.stack([each.flatten(1) for each in down])
        up_GOr = torch.stack([each.flatten(1) for each in up])
        squared_G = ((up_GOr.mT @ up_GOr) * (down_GrI @ down_GrI.mT)).sum(dim=(1, 2)).clamp(min=0.0)
        lengths_G = squared_G.sqrt() * scale
        too_long_G = lengths_G > self._most
        factors = torch.where(too_long_G, (self._most / lengths_G).sqrt(), torch.ones_like(lengths_G)).unbind()
        for each, factor in zip((*down, *up), (*factors, *factors), strict=True):
            each.mul_(factor)
        return too_long_G.sum()


def norm_limit(parameters: Mapping[str, torch.nn.Parameter], spec: TrainSpec) -> NormLimit | None:
    """What the job wants after each update, if anything. `parameters` by the names of `Adapters`; they stay the same
    objects."""
    most = spec.scale_weight_norms
    return None if most is None else NormLimit(parameters, spec, most=most)


def _scale(spec: TrainSpec, layer: str) -> float:
    size = size_of(spec, layer)
    return size.alpha / size.rank
