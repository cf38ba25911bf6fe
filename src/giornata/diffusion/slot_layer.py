"""A frozen linear layer that adds each job's own LoRA to its own part of the batch.

Shapes: J jobs, each with as many rows of the batch as any other, one after the other; N vectors of one job (its rows
times tokens); I inputs, O outputs of the layer; R rank. Job j gets W·x + scale_j·B_j·A_j·x.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from giornata.diffusion.dropping import LayerDropping
from giornata.diffusion.eight_bits import EightBitLinear, Held

if TYPE_CHECKING:
    from giornata.diffusion.slot_siblings import Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The adapters of the jobs in the batch, for one layer, in the precision in which the base computes.

    `scale_J11` is None where nothing has to be multiplied: every scale is 1, or is in A already.

    A rank below R is filled up with zeros. They stay zeros: where a row of A is zero, so is the gradient of B's
    column, and the other way round; and no optimizer moves a zero without a gradient. Siblings all have the A of all
    of them, one under the other. `dropping` leaves out a part of what A gives.
    """

    a_JRI: torch.Tensor
    b_JOR: torch.Tensor
    scale_J11: torch.Tensor | None
    dropping: LayerDropping | None = None


class SlotLinear(nn.Linear):
    """Stands in for `original`, by whose weights it works. Without a stack it is the original.

    The stack is no parameter of the module: the model around it looks at its parameters to learn its own precision.
    """

    def __init__(self, original: nn.Linear) -> None:
        nn.Module.__init__(self)  # not Linear's, which would make weights of its own
        self.in_features, self.out_features = original.in_features, original.out_features
        self.held: Held | None = None
        if isinstance(original, EightBitLinear):
            self.held = original.held
        else:
            self.weight = original.weight
        self.bias = original.bias
        self.train(original.training)
        self.stack: Stack | None = None
        self.siblings: Siblings | None = None
        self.number = 0  # among them

    def wear(self, stack: Stack | None) -> None:
        """Add these adapters from now on. Twice for every layer in every step: around the module's own way of setting
        an attribute, which looks for parameters and buffers and takes longer than a small product."""
        self.__dict__["stack"] = stack
        if self.siblings is not None:
            self.siblings.forget()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs (J·rows, …, I) → (J·rows, …, O)."""
        stack, siblings = self.stack, self.siblings
        if siblings is not None and stack is not None:
            return siblings.answer(self.number, inputs)
        held = self.held
        outputs = (
            functional.linear(inputs, self.weight, self.bias) if held is None else held.linear(inputs, self.bias)
        )
        if stack is None:
            return outputs
        if stack.a_JRI.shape[0] == 1:
            return up(outputs, down(inputs, stack), stack)
        jobs, _, wide = stack.a_JRI.shape
        inputs_JNI = inputs.reshape(jobs, -1, wide)
        outputs_JNO = outputs.reshape(jobs, -1, outputs.shape[-1])
        low_JNR = torch.bmm(inputs_JNI, stack.a_JRI.transpose(1, 2))
        if stack.scale_J11 is not None:
            low_JNR = low_JNR * stack.scale_J11
        low_JNR = low_JNR if stack.dropping is None else stack.dropping(low_JNR)
        return torch.baddbmm(outputs_JNO, low_JNR, stack.b_JOR.transpose(1, 2)).view(outputs.shape)


def down(inputs: torch.Tensor, stack: Stack) -> torch.Tensor:
    """inputs (…, I) → (…, R), scaled: one job has the whole batch. The gradient of an index would be a kernel, and
    that of `squeeze` is a view."""
    low = functional.linear(inputs, stack.a_JRI.squeeze(0))
    return low if stack.scale_J11 is None else low * stack.scale_J11.squeeze(0)


def up(outputs: torch.Tensor, low: torch.Tensor, stack: Stack) -> torch.Tensor:
    """outputs (…, O) and what B makes of low (…, R): one job has the whole batch."""
    low = low if stack.dropping is None else stack.dropping(low)
    flat_NO, low_NR = outputs.reshape(-1, outputs.shape[-1]), low.reshape(-1, low.shape[-1])
    return torch.addmm(flat_NO, low_NR, stack.b_JOR.squeeze(0).t()).view(outputs.shape)
