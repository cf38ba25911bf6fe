"""A frozen convolution that adds to each row of a batch that row's own LoRA.

Shapes: J rows of the batch; I and O the channels of input and output; R the rank; K K the kernel; H W the places of
the input, M those of the output. Row j gets W∗x + B_j·(A_j∗x).
"""

import torch
from torch import nn
from torch.nn import functional

from giornata.diffusion.adapter.batched_lora import StackedLora, plus_product


class BatchedLoraConv2d(nn.Conv2d):
    """A convolution that replaces `original` and computes with its weights. Without a stack the layer computes as the
    original does. A stack has one adapter for each row; its A is J × R × I × K × K."""

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
        """Convolve each row with its own A: as groups of one convolution, or where the kernel is one place, as a
        product."""
        rows, ranks = a_JRIKK.shape[:2]
        if self.kernel_size == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0):
            return torch.bmm(a_JRIKK.flatten(2), inputs_JIHW.reshape(rows, self.in_channels, -1))
        grouped = functional.conv2d(
            inputs_JIHW.reshape(1, rows * self.in_channels, *inputs_JIHW.shape[2:]),
            a_JRIKK.flatten(0, 1),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=rows,
        )
        return grouped.view(rows, ranks, -1)
