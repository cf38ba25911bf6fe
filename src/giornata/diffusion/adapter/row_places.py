"""The memory of one layer's adapters for the rows of a batch.

Shapes: P places; R the rank that adapters are padded to; I and O the layer's inputs and outputs, K K the kernel of a
convolution, whose A has these two dimensions more.
"""

import torch
from torch import nn

from giornata.diffusion.adapter.batched_lora import StackedLora
from giornata.diffusion.base.low_rank import LowRank

CONVOLUTION_DIMENSIONS = 4
"""Of A: rank, inputs, and the two sides of the kernel."""


class LayerPlaces:
    """The factors of one layer, for `count` rows. They are zero until they are written: a row without a LoRA has the
    numbers of the bare base. They lie in memory as the products read them: those of a linear layer transposed, and
    the kernels of a convolution flipped, with the channels last."""

    def __init__(self, layer: nn.Module, *, count: int, rank: int, device: torch.device, dtype: torch.dtype) -> None:
        outputs, *inputs = layer_shape(layer)
        self.rank = rank
        if isinstance(layer, nn.Conv2d):
            channels, height, width = inputs
            block = torch.zeros((count, rank, height, width, channels), device=device, dtype=dtype)
            self.a_PRI = block.permute(0, 1, 4, 2, 3)
            self.b_POR = torch.zeros((count, outputs, rank), device=device, dtype=dtype)
        else:
            self.a_PRI = torch.zeros((count, *inputs, rank), device=device, dtype=dtype).transpose(1, 2)
            self.b_POR = torch.zeros((count, rank, outputs), device=device, dtype=dtype).transpose(1, 2)
        self._stacks: dict[int, StackedLora] = {}

    def down(self, factors: LowRank) -> torch.Tensor:
        """Return A as it lies here: the kernels of a convolution are flipped."""
        return factors.down.flip(2, 3) if factors.down.dim() == CONVOLUTION_DIMENSIONS else factors.down

    def stack(self, rows: int) -> StackedLora:
        """Return the adapters of the first `rows` places."""
        if rows not in self._stacks:
            self._stacks[rows] = StackedLora(a_JRI=self.a_PRI[:rows], b_JOR=self.b_POR[:rows], scale_J11=None)
        return self._stacks[rows]


def layer_shape(layer: nn.Module) -> tuple[int, ...]:
    """Return outputs and inputs of a linear layer; of a convolution also the two sides of its kernel."""
    if isinstance(layer, nn.Conv2d):
        return layer.out_channels, layer.in_channels, *layer.kernel_size
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    raise TypeError(f"{type(layer).__name__} is neither linear nor a convolution")
