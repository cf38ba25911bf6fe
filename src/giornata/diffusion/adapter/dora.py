"""DoRA's magnitudes, computed in float32 over a base of any precision.

Shapes: r rank, I inputs, O outputs; a convolution's kernel counts among the inputs. With V = W + s·B·A the layer's
weight is m·V / ‖V‖, with one norm and one magnitude m to an output (Liu et al., "DoRA", arXiv 2402.09353, eq. 5; the
norm is a constant for the gradient, section 4.3).

Under autocast peft multiplies B and A, by way of an identity matrix, in bfloat16 before it takes the norm. That part
alone is done anew here, in float32 whatever autocast says, and the same for linear layers and convolutions.
"""

from typing import Any

import torch
from peft.tuners.lora.dora import DoraLinearLayer
from peft.tuners.lora.layer import LoraLayer
from torch import nn


class Magnitude(DoraLinearLayer):
    """A replacement for peft's DoRA layer, of which it inherits the rest. `weight` is m: (O), or (1, O, 1, 1) on a
    convolution, float32."""

    def __init__(self, like: DoraLinearLayer) -> None:
        super().__init__(fan_in_fan_out=False)
        self.weight = nn.Parameter(like.weight.detach().float())

    def forward(
        self,
        x: torch.Tensor,
        *,
        lora_A: nn.Module,
        lora_B: nn.Module,
        scaling: float,
        base_layer: nn.Module,
        base_result: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        """Return the tensor to add to the base layer's own result for these inputs."""
        norm = norms(base_layer, lora_A, lora_B, scaling).view_as(self.weight)
        ratio = self.weight / norm
        bias = base_layer.bias
        without_bias = base_result if bias is None else base_result - bias.view_as(self.weight)
        return (ratio - 1) * without_bias + ratio * lora_B(lora_A(x)) * scaling


@torch.no_grad()
def norms(base_layer: nn.Module, lora_A: nn.Module, lora_B: nn.Module, scaling: float) -> torch.Tensor:
    """Return ‖W + s·B·A‖ of each output: (O), float32 whatever autocast says."""
    weight = base_layer.weight
    with torch.autocast(weight.device.type, enabled=False):
        delta_OI = lora_B.weight.float().flatten(1) @ lora_A.weight.float().flatten(1)
        return torch.linalg.vector_norm(weight.float().flatten(1) + scaling * delta_OI, dim=1)


def adopt_magnitudes(model: nn.Module, adapter: str) -> None:
    """Replace peft's DoRA layers of this adapter."""
    for layer in dora_layers(model, adapter):
        layer.lora_magnitude_vector[adapter] = Magnitude(layer.lora_magnitude_vector[adapter])


@torch.no_grad()
def measure_magnitudes(model: nn.Module, adapter: str) -> None:
    """Set each magnitude to the length that the weights have now: the layer then gives W + s·B·A exactly."""
    for layer in dora_layers(model, adapter):
        vector = layer.lora_magnitude_vector[adapter].weight
        args = (layer.get_base_layer(), layer.lora_A[adapter], layer.lora_B[adapter], layer.scaling[adapter])
        vector.copy_(norms(*args).view_as(vector))


def dora_layers(model: nn.Module, adapter: str) -> list[LoraLayer]:
    """Return the model's layers that have magnitudes."""
    every = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
    return [layer for layer in every if adapter in layer.lora_magnitude_vector]
