"""The layers of a UNet with the sizes at which they work: memory and arithmetic are computed from them.

Shapes: per picture, N is the number of places (latent height x width at the layer's resolution), M the number of keys
(N in self-attention, the 77 tokens of a prompt in cross-attention), I and O a layer's inputs and outputs.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.activations import GEGLU
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from torch import nn

from giornata.diffusion.base.eight_bits import EightBitConv2d
from giornata.domain.files.caption_length import CHUNK

PROMPT_TOKENS = 77
LATENT_SCALE = 8
UNITS = (BasicTransformerBlock, ResnetBlock2D)
"""The modules that gradient checkpointing computes again as a whole."""
LORA_INFIX = ".lora_"


class LayerKind(Enum):
    """The kind of computation that a layer does."""

    LINEAR = "linear"
    CONV = "conv"
    NORM = "norm"  # `activated`: an activation function follows, which keeps its input too
    ATTENTION = "attention"
    GATE = "gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a UNet, with its sizes. `block` counts the UNet's blocks in the order in which they run; `unit`
    names the part of it that is computed again as a whole, empty when there is none. `places` are the places of its
    input, `multiplies` the multiplications of its forward pass per picture, `kernel` the places that a convolution
    looks at for one output. For `eight_bits` see giornata.diffusion.base.eight_bits."""

    name: str
    kind: LayerKind
    block: int
    unit: str
    places: int
    inputs: int
    outputs: int
    multiplies: int
    keys: int = 0
    activated: bool = False
    eight_bits: bool = False
    kernel: int = 1

    @property
    def weights(self) -> int:
        """Return the elements of the layer's matrix, or of its convolution."""
        return self.inputs * self.outputs * self.kernel

    @property
    def output_places(self) -> int:
        """Return the output places of a linear layer or a convolution."""
        return self.multiplies // self.weights


def layers_of(unet: UNet2DConditionModel, resolution: int, *, max_token_length: int = CHUNK) -> tuple[Layer, ...]:
    """Return all layers that count, for squares of `resolution` pixels and prompts of `max_token_length` tokens. An
    adapter that is on the UNet is left out."""
    modules = dict(unet.named_modules())
    units = [name for name, module in modules.items() if isinstance(module, UNITS)]
    found: list[Layer] = []
    for name, module in modules.items():
        if LORA_INFIX in name:
            continue
        place = replace(_place(unet, name, resolution // LATENT_SCALE), prompt_tokens=max_token_length + 2)
        unit = next((each for each in units if name.startswith(each + ".")), "")
        found += _layers(name.replace(".base_layer", ""), module, place, unit)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Place:
    block: int
    places: int
    prompt_tokens: int = PROMPT_TOKENS


def _place(unet: UNet2DConditionModel, name: str, side: int) -> _Place:
    """Return where a module works. Modules before the first block have block -1."""
    levels, (part, _, rest) = len(unet.down_blocks), name.partition(".")
    if part == "down_blocks" and rest:
        block = int(rest.split(".")[0])
        return _Place(block, (side >> block) ** 2)
    if part == "mid_block":
        return _Place(levels, (side >> (levels - 1)) ** 2)
    if part == "up_blocks" and rest:
        number = int(rest.split(".")[0])
        level = levels - 1 - number - (1 if ".upsamplers." in name else 0)  # it convolves what it has enlarged
        return _Place(levels + 1 + number, (side >> level) ** 2)
    if part in {"time_embedding", "add_embedding"}:
        return _Place(-1, 1)
    return _Place(2 * levels + 1 if part in {"conv_norm_out", "conv_out"} else -1, side**2)


def _layers(name: str, module: nn.Module, place: _Place, unit: str) -> Iterator[Layer]:
    common: dict[str, Any] = {"block": place.block, "unit": unit}
    n = place.places
    match module:
        case nn.Conv2d():
            common["kernel"] = module.kernel_size[0] * module.kernel_size[1]
            weights = module.in_channels * module.out_channels * common["kernel"]
            out = n // (module.stride[0] * module.stride[1])
            sizes = {"inputs": module.in_channels, "outputs": module.out_channels}
            common["eight_bits"] = isinstance(module, EightBitConv2d)
            yield Layer(name=name, kind=LayerKind.CONV, places=n, multiplies=weights * out, **sizes, **common)
        case nn.Linear():
            n = _linear_places(name, place)
            sizes = {"inputs": module.in_features, "outputs": module.out_features}
            multiplies = n * module.in_features * module.out_features
            yield Layer(name=name, kind=LayerKind.LINEAR, places=n, multiplies=multiplies, **sizes, **common)
        case nn.GroupNorm() | nn.LayerNorm():
            width = module.num_channels if isinstance(module, nn.GroupNorm) else module.normalized_shape[0]
            activated = ".resnets." in name or name == "conv_norm_out"
            sizes = {"inputs": width, "outputs": width, "multiplies": 0, "activated": activated}
            yield Layer(name=name, kind=LayerKind.NORM, places=n, **sizes, **common)
        case Attention():
            keys = place.prompt_tokens if module.is_cross_attention else n
            width = module.inner_dim
            sizes = {"inputs": width, "outputs": width, "keys": keys, "multiplies": 2 * n * keys * width}
            yield Layer(name=name, kind=LayerKind.ATTENTION, places=n, **sizes, **common)
        case GEGLU():
            width = _linear(module.proj).out_features
            sizes = {"inputs": width, "outputs": width // 2, "multiplies": 0}
            yield Layer(name=name, kind=LayerKind.GATE, places=n, **sizes, **common)


def _linear_places(name: str, place: _Place) -> int:
    if ".attn2.to_k" in name or ".attn2.to_v" in name:
        return place.prompt_tokens
    return 1 if "time_emb" in name or name.startswith("add_embedding") else place.places


def _linear(layer: Any) -> nn.Linear:
    """Return a layer as it was before it got an adapter."""
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer


# ---- the two halves of MFU: the arithmetic of a picture, and the rate of a device
#
# Model FLOP utilization (Chowdhery et al., "PaLM", 2022, appendix B): arithmetic that the model needs per second,
# over what the device's matrix units do at their best. What gradient checkpointing computes a second time is not
# needed, and does not count.

PER_MULTIPLY = 2
"""A multiplication and an addition."""
SIDE = 8192
ROUNDS = 8
WORTH_S = 0.25
"""When no more rounds are begun: an engine measures before its first step."""


def training_flops(layers: Iterable[Layer], ranks: Mapping[str, int]) -> int:
    """Return the operations for one picture, forward and backward: 2 per multiplication of each matrix product.
    Backward, a frozen layer passes its gradient on (as much again), an attention has twice its products; nothing is
    passed on below the first adapted block. The adapter's own products are counted three times: forward, and for both
    gradients. `ranks` are those of the adapted layers, by their names."""
    layers = tuple(layers)
    first = min((layer.block for layer in layers if layer.name in ranks), default=0)
    total = 0
    for layer in layers:
        backward = 2 if layer.kind is LayerKind.ATTENTION else 1
        total += layer.multiplies * (1 + (backward if layer.block >= first else 0))
        if layer.name in ranks:
            rank = ranks[layer.name]
            total += 3 * layer.multiplies * rank * (layer.inputs + layer.outputs) // (layer.inputs * layer.outputs)
    return PER_MULTIPLY * total


def matmul_flops_per_s(
    device: torch.device, dtype: torch.dtype, *, side: int = SIDE, clock: Callable[[], float] = time.monotonic
) -> float:
    """Measure how many operations per second the device does in square matrix products, at best of a few. It takes 2
    side² elements of memory, gives them back, and waits for the device. The first product is to warm up; a slow
    device makes few more.

    The products are of normal numbers: a GPU that multiplies equal numbers needs less power, and is faster than it
    ever is at work.
    """
    draw = torch.Generator(device).manual_seed(0)
    one = torch.empty(side, side, device=device, dtype=dtype).normal_(generator=draw)
    out = torch.empty_like(one)
    found_s: list[float] = []
    while len(found_s) < ROUNDS and (len(found_s) < 2 or sum(found_s) < WORTH_S):
        _wait(device)
        began_s = clock()
        torch.matmul(one, one, out=out)
        _wait(device)
        found_s.append(clock() - began_s)
    best_s = min(found_s)
    return PER_MULTIPLY * side**3 / max(best_s, 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
