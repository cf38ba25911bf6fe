"""Frozen layers whose weights are held in 8 bits, and computed with in the precision of the job.

Shapes: O outputs of a layer, I its inputs, k x k a convolution's kernel; B pictures, H x W places.

A weight w of output o is held as a number v of 8 bits beside one float32 scale for each output: s_o = max|w_o| / M,
v = w / s_o rounded to the nearest number of the format, ties to even, where M is the largest that the format has: 127
of int8 (symmetric, by channel: Krishnamoorthi, 2018, arXiv 1806.08342), 448 of the 8-bit float e4m3 (Micikevicius et
al., 2022, arXiv 2209.05433). The layer computes with v · s_o, multiplied in float32 and rounded once to the precision
of the job, without a float32 copy of the weight on a GPU.

Left to itself autograd keeps what a product was made with, which is the wide weight, of every layer at once. These
layers keep the 8 bits and widen them anew in the backward pass, so only one layer's weight is wide at a time. They
have the bits of plain layers with the weights v · s_o, forward and backward.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from giornata.diffusion.base.models import BaseModel
from giornata.protocol.training.base_model import BaseQuantization

FORMATS: Mapping[BaseQuantization, torch.dtype] = MappingProxyType(
    {BaseQuantization.INT8: torch.int8, BaseQuantization.FP8: torch.float8_e4m3fn}
)
LARGEST = MappingProxyType({torch.int8: 127.0, torch.float8_e4m3fn: 448.0})
KEPT_WHOLE = frozenset({"conv_in", "conv_out", "time_embedding", "add_embedding"})
"""The parts of a UNet through which everything goes, and which are small."""


class EightBitWeight(nn.Module):
    """A weight in 8 bits. `numbers` has the weight's shape, `scale` is float32, (O, 1) or (O, 1, 1, 1)."""

    numbers: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor, kind: BaseQuantization) -> None:
        super().__init__()
        numbers, scale = narrowed(weight, FORMATS[kind])
        self.register_buffer("numbers", numbers)
        self.register_buffer("scale", scale)
        self.dtype = weight.dtype

    def wide(self) -> torch.Tensor:
        """Return the weight that the layer computes with, in the precision in which it was loaded."""
        return widened(self.numbers, self.scale, self.dtype)

    def linear(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Map inputs (…, I) → (…, O)."""
        found: torch.Tensor = _Linear.apply(_computed(inputs), self.numbers, self.scale, bias)
        return found

    def conv2d(self, inputs_BIHW: torch.Tensor, bias: torch.Tensor | None, geometry: tuple[Any, ...]) -> torch.Tensor:
        """Map inputs_BIHW → (B, O, …). `geometry`: stride, padding, dilation, groups."""
        found: torch.Tensor = _Conv2d.apply(_computed(inputs_BIHW), self.numbers, self.scale, bias, geometry)
        return found


class EightBitLinear(nn.Linear):
    """A linear layer in 8 bits that replaces `original` and keeps its bias. `weight` is the weight that it computes
    with, made when asked."""

    def __init__(self, original: nn.Linear, kind: BaseQuantization) -> None:
        nn.Module.__init__(self)  # not Linear's, which would make weights of its own
        self.in_features, self.out_features = original.in_features, original.out_features
        self.held, self.bias = EightBitWeight(original.weight, kind), original.bias
        self.train(original.training)

    @property
    def weight(self) -> torch.Tensor:
        return self.held.wide()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (…, I) → (…, O)."""
        return self.held.linear(inputs, self.bias)


class EightBitConv2d(nn.Conv2d):
    """A convolution in 8 bits that pads with zeros."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        """Make a plain convolution when peft builds an adapter's convolution by the type of the adapted layer."""
        of_an_original = not given or isinstance(given[0], nn.Conv2d)
        return super().__new__(cls) if of_an_original else nn.Conv2d(*given, **named)

    def __init__(self, original: nn.Conv2d, kind: BaseQuantization) -> None:
        nn.Module.__init__(self)
        for name in nn.Conv2d.__constants__:
            setattr(self, name, getattr(original, name))
        self.held, self.bias = EightBitWeight(original.weight, kind), original.bias
        self.train(original.training)

    @property
    def weight(self) -> torch.Tensor:
        return self.held.wide()

    def forward(self, inputs_BIHW: torch.Tensor) -> torch.Tensor:
        """Map inputs_BIHW → (B, O, …)."""
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        return self.held.conv2d(inputs_BIHW, self.bias, geometry)


EIGHT_BITS = (EightBitLinear, EightBitConv2d)


def narrowed(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (numbers in `dtype`, scale in float32) of a weight (O, …). An output whose weights are all zero has
    scale 1."""
    wide, largest = weight.detach().float(), LARGEST[dtype]
    scale = wide.abs().amax(dim=tuple(range(1, wide.dim())), keepdim=True) / largest
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    numbers = (wide / scale).clamp_(-largest, largest)
    return (numbers if dtype.is_floating_point else numbers.round_()).to(dtype), scale


def widened(numbers: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers · scale in `dtype`. Each product is computed in float32 and rounded once.

    On CUDA no float32 tensor of the weight's size is made: the kernels convert while they read and write. int8 takes
    one kernel. torch does not promote 8-bit floats, so e4m3 takes two; the conversion before the product is exact.
    """
    if numbers.dtype.is_floating_point:
        return numbers.to(dtype).mul_(scale)
    return torch.mul(numbers, scale, out=torch.empty_like(numbers, dtype=dtype))


def hold(unet: nn.Module, kind: BaseQuantization) -> None:
    """Put an 8-bit layer into the place of every linear layer and convolution but the first, the last, and the
    embeddings of time and size. The wide weights are let go one by one."""
    names = [name for name, _ in unet.named_modules() if name.partition(".")[0] not in KEPT_WHOLE]
    for name in names:
        held = _held(unet.get_submodule(name), kind)
        if held is not None:
            parent, _, child = name.rpartition(".")
            setattr(unet.get_submodule(parent), child, held)


def held_base(base: BaseModel, kind: BaseQuantization, device: torch.device) -> BaseModel:
    """Hold the UNet of the base in 8 bits, and move the base to `device` when it is narrow. NONE leaves it as it is.

    The numbers are made where the base is: on the CPU they are the same for every GPU that will use them.
    """
    if kind is BaseQuantization.NONE:
        return base
    hold(base.unet, kind)
    for module in (base.unet, base.vae, *base.text_encoders):
        module.to(device)
    return replace(base, device=device)


def working_bytes(unet: nn.Module) -> int:
    """Return the bytes that the largest weight takes on a GPU while it is wide, in the job's precision. 0 without 8
    bits."""
    held = (module for module in unet.modules() if isinstance(module, EightBitWeight))
    return max((each.numbers.numel() * each.dtype.itemsize for each in held), default=0)


def _held(layer: nn.Module, kind: BaseQuantization) -> nn.Module | None:
    """Return the 8-bit layer that replaces this one. Return None for a layer that stays, because it does more than
    its type says."""
    if type(layer) is nn.Linear:
        return EightBitLinear(layer, kind)
    plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return EightBitConv2d(layer, kind) if plain and isinstance(layer, nn.Conv2d) else None


def _computed(inputs: torch.Tensor) -> torch.Tensor:
    """Cast the inputs to the precision in which autocast would multiply them."""
    kind = inputs.device.type
    return inputs.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else inputs


class _Linear(torch.autograd.Function):
    """The function x·Wᵀ + b, of which only the 8 bits of W are kept. There is no gradient for W and b, which are
    frozen."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(numbers, scale)
        return functional.linear(inputs, widened(numbers, scale, inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        numbers, scale = ctx.saved_tensors
        (gradient,) = gradients
        weight = widened(numbers, scale, gradient.dtype)
        # The product of matrices that a plain layer computes. A gradient with strides would be a batch of products.
        rows = gradient.reshape(-1, gradient.shape[-1]) @ weight
        return rows.view(*gradient.shape[:-1], weight.shape[-1]), None, None, None


class _Conv2d(torch.autograd.Function):
    """The function of a convolution with a weight in 8 bits. The inputs are not kept: only a gradient for W would
    want them."""

    @staticmethod
    def forward(  # noqa: PLR0917  (autograd hands on what it was given, by its place)
        ctx: Any,
        inputs_BIHW: torch.Tensor,
        numbers: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        geometry: tuple[Any, ...],
    ) -> torch.Tensor:
        ctx.save_for_backward(numbers, scale)
        ctx.geometry, ctx.shape = geometry, inputs_BIHW.shape
        return functional.conv2d(inputs_BIHW, widened(numbers, scale, inputs_BIHW.dtype), bias, *geometry)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        numbers, scale = ctx.saved_tensors
        (gradient,) = gradients
        weight = widened(numbers, scale, gradient.dtype)
        return torch.nn.grad.conv2d_input(ctx.shape, weight, gradient, *ctx.geometry), None, None, None, None
