"""A frozen linear layer that adds each job's own LoRA to its own part of the batch.

Shapes: J jobs, each with as many rows of the batch as any other, one after the other; N vectors of one job (its rows
times tokens); I inputs, O outputs of the layer; R rank. Job j gets W·x + scale_j·B_j·A_j·x.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from diffusers.models.attention_processor import Attention
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch.nn import functional

from giornata.diffusion.adapter.dropping import LayerDropping
from giornata.diffusion.base.eight_bits import EightBitLinear, EightBitWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedLora:
    """The adapters of the jobs in the batch, for one layer, in the precision in which the base computes.

    `scale_J11` is None where nothing has to be multiplied: every scale is 1, or is in A already.

    A rank below R is filled up with zeros. They stay zeros: where a row of A is zero, so is the gradient of B's
    column, and the other way round; and no optimizer moves a zero without a gradient. Fused projections each have the
    A of all of them, one under the other. `dropping` leaves out a part of what A gives.
    """

    a_JRI: torch.Tensor
    b_JOR: torch.Tensor
    scale_J11: torch.Tensor | None
    dropping: LayerDropping | None = None


class BatchedLoraLinear(nn.Linear):
    """A linear layer that replaces `original` and computes with its weights. Without a stack the layer computes as
    the original does.

    The stack is no parameter of the module: the model around it looks at its parameters to learn its own precision.
    """

    def __init__(self, original: nn.Linear) -> None:
        nn.Module.__init__(self)  # not Linear's, which would make weights of its own
        self.in_features, self.out_features = original.in_features, original.out_features
        self.held: EightBitWeight | None = None
        if isinstance(original, EightBitLinear):
            self.held = original.held
        else:
            self.weight = original.weight
        self.bias = original.bias
        self.train(original.training)
        self.stack: StackedLora | None = None
        self.siblings: FusedProjections | None = None
        self.number = 0  # among them

    def attach(self, stack: StackedLora | None) -> None:
        """Compute with these adapters from now on. Every step calls this twice for every layer.

        It goes around the module's own way of setting an attribute, which looks for parameters and buffers and takes
        longer than a small product.
        """
        self.__dict__["stack"] = stack
        if self.siblings is not None:
            self.siblings.forget()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (J·rows, …, I) → (J·rows, …, O)."""
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
        return plus_product(outputs_JNO, low_JNR, stack.b_JOR.transpose(1, 2)).view(outputs.shape)


def plus_product(sums: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return sums + left · right, batched. Where no gradients are kept the answer takes the memory of `sums`, which
    nothing else may read: a copy of all outputs takes longer than a small product."""
    return torch.baddbmm(sums, left, right) if torch.is_grad_enabled() else sums.baddbmm_(left, right)


def down(inputs: torch.Tensor, stack: StackedLora) -> torch.Tensor:
    """Multiply inputs (…, I) → (…, R), scaled: one job has the whole batch. The gradient of an index would be a
    kernel, and that of `squeeze` is a view."""
    low = functional.linear(inputs, stack.a_JRI.squeeze(0))
    return low if stack.scale_J11 is None else low * stack.scale_J11.squeeze(0)


def up(outputs: torch.Tensor, low: torch.Tensor, stack: StackedLora) -> torch.Tensor:
    """Add to outputs (…, O) the product of B and low (…, R): one job has the whole batch."""
    low = low if stack.dropping is None else stack.dropping(low)
    flat_NO, low_NR = outputs.reshape(-1, outputs.shape[-1]), low.reshape(-1, low.shape[-1])
    return torch.addmm(flat_NO, low_NR, stack.b_JOR.squeeze(0).t()).view(outputs.shape)


def replace_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer into the place of that with this name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)


# ---- fused projections: queries, keys and values of one attention
#
# Shapes as above; S projections of one input. Their frozen weights lie one under the other, and so do
# their A in a job's row, S·R × I: one product with each, where there were S. Their B stay apart, for each has a
# low-rank vector of its own.

SELF_ATTENTION = ("to_q", "to_k", "to_v")
CROSS_ATTENTION = ("to_k", "to_v")  # its q is of the picture, and these of the text
TEXT_ATTENTION = ("q_proj", "k_proj", "v_proj")


class FusedProjections:
    """Sibling layers whose answers are computed together: the first one called computes all, and keeps the others'
    until they are called.

    The layers' weights become views of one tensor: no memory is taken twice, and code that reads the weights sees no
    difference.
    """

    def __init__(self, layers: Sequence[BatchedLoraLinear]) -> None:
        self._layers = tuple(layers)
        self._sizes = [layer.out_features for layer in layers]
        self._weight, self._bias = _joined(layers)
        self._inputs: torch.Tensor | None = None
        self._answers: dict[int, torch.Tensor] = {}
        for number, layer in enumerate(layers):
            layer.siblings, layer.number = self, number

    def answer(self, number: int, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (J·rows, …, I) → (J·rows, …, O) of the sibling of this number."""
        if self._inputs is not inputs or number not in self._answers:
            self._inputs = inputs
            self._answers = dict(enumerate(self._all(inputs)))
        answer = self._answers.pop(number)
        if not self._answers:
            self._inputs = None
        return answer

    def forget(self) -> None:
        """Drop answers that no layer has asked for, as after a pass that broke off."""
        self._inputs, self._answers = None, {}

    def _all(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        outputs = functional.linear(inputs, self._weight, self._bias)
        stacks = [layer.stack for layer in self._layers]
        first = stacks[0]
        if first is None:
            raise ValueError("layers of a fused projection are computed together only while each has an adapter")
        jobs, ranks, wide = first.a_JRI.shape
        if jobs == 1 and inputs.dtype is not torch.float32:
            return self._of_one_job(inputs, outputs)
        shape = inputs.shape[:-1]
        inputs_JNI = inputs.reshape(jobs, -1, wide)
        low_JNR = torch.bmm(inputs_JNI, first.a_JRI.transpose(1, 2))
        if first.scale_J11 is not None:
            low_JNR = low_JNR * first.scale_J11
        lows = low_JNR.split(ranks // len(stacks), dim=-1)
        parts = outputs.view(jobs, -1, outputs.shape[-1]).split(self._sizes, dim=-1)
        return [
            torch.baddbmm(
                part, low if stack.dropping is None else stack.dropping(low), stack.b_JOR.transpose(1, 2)
            ).view(*shape, size)
            for part, low, stack, size in zip(parts, lows, stacks, self._sizes, strict=True)
            if stack is not None
        ]

    def _of_one_job(self, inputs: torch.Tensor, outputs: torch.Tensor) -> list[torch.Tensor]:
        """Compute plain products, whose gradients have the layout of the weights. Batched ones are copied into it. In
        float32 the products stay batched: results that are stored have their bits."""
        stacks = [layer.stack for layer in self._layers if layer.stack is not None]
        low = down(inputs, stacks[0])
        lows = low.split(low.shape[-1] // len(stacks), dim=-1)
        parts = outputs.split(self._sizes, dim=-1)
        return [up(part, low, stack) for part, low, stack in zip(parts, lows, stacks, strict=True)]


def families(model: nn.Module) -> list[list[str]]:
    """Return the names of layers that one fused projection computes, in the order of the model."""
    found: list[list[str]] = []
    for name, layers in _attentions(model):
        parent = model.get_submodule(name)
        names = [each for each in layers if _plain(getattr(parent, each, None))]
        if len(names) > 1 and len({_kind(getattr(parent, each)) for each in names}) == 1:
            found.append([f"{name}.{each}" if name else each for each in names])
    return found


def _attentions(model: nn.Module) -> Iterable[tuple[str, tuple[str, ...]]]:
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            yield name, CROSS_ATTENTION if module.is_cross_attention else SELF_ATTENTION
        elif all(hasattr(module, each) for each in TEXT_ATTENTION):
            yield name, TEXT_ATTENTION


def _plain(layer: object) -> bool:
    return type(layer) is nn.Linear


def _kind(layer: nn.Linear) -> tuple[object, ...]:
    return layer.in_features, layer.weight.dtype, layer.weight.device, layer.bias is None


def _joined(layers: Sequence[BatchedLoraLinear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Join the weights and biases, one under the other. Afterwards the layers' own are views of them."""
    sizes = [layer.out_features for layer in layers]
    with torch.no_grad():
        weight = torch.cat([layer.weight for layer in layers])
        for layer, part in zip(layers, weight.split(sizes), strict=True):
            layer.weight.data = part
        if layers[0].bias is None:
            return weight, None
        return weight, torch.cat([layer.bias for layer in layers])


# ---- the base model alone, while adapters are attached


@contextmanager
def adapters_off(models: Iterable[nn.Module]) -> Iterator[None]:
    """Within, the models answer as if they had no adapters, and nothing is recorded for gradients.

    Afterwards every weight wants gradients or not, as it did before: peft switches that along with the adapter.
    """
    modules = [module for model in models for module in model.modules()]
    layers = [module for module in modules if isinstance(module, BaseTunerLayer)]
    slots = [(module, module.stack) for module in modules if isinstance(module, BatchedLoraLinear)]
    wanted = [(parameter, parameter.requires_grad) for layer in layers for parameter in layer.parameters()]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        for slot, _ in slots:
            slot.attach(None)
        with torch.no_grad():
            yield
    finally:
        for slot, stack in slots:
            slot.attach(stack)
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, before in wanted:
            parameter.requires_grad_(before)
