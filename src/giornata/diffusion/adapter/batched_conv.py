"""A frozen convolution that adds to each row of a batch that row's own LoRA.

Shapes: J rows of the batch; I and O the channels of input and output; R the rank; K K the kernel, T its taps; H W the
places of the input, M those of the output. Row j gets W∗x + B_j·(A_j∗x).

The kernels of A are flipped in both directions, and lie in memory with the channels last: A is a J × R × K × K × I
block. So one product gives what each tap adds, and `fold` sums it where it belongs.
"""

import torch
from torch import nn
from torch.nn import functional

from giornata.diffusion.adapter.batched_lora import StackedLora, plus_product

MOST_PLACES_OF_A_CHANNEL = 2
"""By the times on a CPU at the sizes of a tiny UNet and of SDXL's."""


class BatchedLoraConv2d(nn.Conv2d):
    """A convolution that replaces `original` and computes with its weights. Without a stack the layer computes as the
    original does. A stack has one adapter for each row; its A is a J × R × I × K × K view of that block."""

    def __init__(self, original: nn.Conv2d) -> None:
        nn.Module.__init__(self)  # not Conv2d's, which would make weights of its own
        self.__dict__.update({name: value for name, value in vars(original).items() if name not in vars(self)})
        self.weight, self.bias = original.weight, original.bias
        self.train(original.training)
        self.stack: StackedLora | None = None

    def attach(self, stack: StackedLora | None) -> None:
        """Compute with these adapters from now on."""
        self.__dict__["stack"] = stack

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (J, I, H, W) → (J, O, …)."""
        outputs, stack = self._conv_forward(input, self.weight, self.bias), self.stack
        if stack is None:
            return outputs
        low_JRM = self._low(input, stack.a_JRI)
        flat_JOM = outputs.reshape(*outputs.shape[:2], -1)
        return plus_product(flat_JOM, stack.b_JOR, low_JRM).view(outputs.shape)

    def _low(self, inputs_JIHW: torch.Tensor, a_JRIKK: torch.Tensor) -> torch.Tensor:
        """Convolve each row with its own A: by a product, or as groups of one convolution."""
        if self.kernel_size == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0):
            return torch.bmm(a_JRIKK.flatten(2), inputs_JIHW.flatten(2))
        if self._folds(inputs_JIHW):
            return self._folded(inputs_JIHW, a_JRIKK)
        return self._grouped(inputs_JIHW, a_JRIKK)

    def _folds(self, inputs_JIHW: torch.Tensor) -> bool:
        """Return True where the product is the faster one: the picture keeps its size, and has few places for its
        channels. To sum the taps takes longer with each place."""
        keeps_size = all(2 * pad + 1 == side for pad, side in zip(self.padding, self.kernel_size, strict=True))
        is_dense = self.stride == (1, 1) and self.dilation == (1, 1)
        height, width = inputs_JIHW.shape[2:]
        return keeps_size and is_dense and height * width <= MOST_PLACES_OF_A_CHANNEL * self.in_channels

    def _folded(self, inputs_JIHW: torch.Tensor, a_JRIKK: torch.Tensor) -> torch.Tensor:
        taps_JTI = a_JRIKK.permute(0, 1, 3, 4, 2).flatten(1, 3)
        products_JTM = torch.bmm(taps_JTI, inputs_JIHW.flatten(2))
        size = inputs_JIHW.shape[2:]
        return functional.fold(products_JTM, size, self.kernel_size, padding=self.padding).flatten(2)

    def _grouped(self, inputs_JIHW: torch.Tensor, a_JRIKK: torch.Tensor) -> torch.Tensor:
        rows, ranks = a_JRIKK.shape[:2]
        grouped = functional.conv2d(
            inputs_JIHW.reshape(1, rows * self.in_channels, *inputs_JIHW.shape[2:]),
            a_JRIKK.flip(3, 4).flatten(0, 1).contiguous(),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=rows,
        )
        return grouped.view(rows, ranks, -1)
