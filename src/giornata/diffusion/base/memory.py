"""The device memory that a job takes, computed from the shapes of its model before it starts.

What autograd keeps of one picture, with h bytes per element (2 on a base in bf16, 4 in fp32):

    normalization            its input, h; with an activation function after it, whose input is its output, 2h
    convolution              its input, h; with weights of 8 bits only where it is adapted
    attention                queries and output of every place, keys and values of every key, h
    gated linear unit        its input (both halves) and the activated half, h
    adapted layer            its input, unless another layer keeps it; what A gives out, h; with DoRA's magnitudes
                             also what the layer and what its adapter give out, h. A layer of peft on a base in bf16
                             keeps a copy of its input of its own

Where an adapter is multiplied out to a matrix of the layer's own size (LoKr), that is kept too, h, once for all
pictures that go through the model together.
Frozen linear layers keep nothing. Nothing is kept before the first block with an adapted layer. A unit that gradient
checkpointing computes again keeps its input wherever it stands, h; while one is computed again it takes what it would
have kept. diffusers (0.42) never computes the middle block's first resnet again.
`tests/unit/diffusion/test_memory.py` counts what autograd really keeps, and compares.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.base.unet_layers import PROMPT_TOKENS, Layer, LayerKind

GIB = 2**30
NEVER_AGAIN = "mid_block.resnets.0"
"""A unit that diffusers runs outside of gradient checkpointing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPrecision:
    """The bytes per element of activations, `half`. `copies`: whether every adapted layer keeps a copy of its
    input."""

    half: int
    copies: bool

    @classmethod
    def of(cls, *, mixed: bool, lean: bool = True) -> "ActivationPrecision":
        """Return the precision on a base in bf16 (`mixed`) or fp32, with the adapter in the lean layer or in
        peft's."""
        return cls(half=2 if mixed else 4, copies=mixed and not lean)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """The adapter on one layer, as far as memory depends on it. It has a rank; `magnitudes` says whether it is DoRA;
    `multiplied_out`, whether it becomes a matrix of the layer's own size before it is used (LoKr). `drops`: something
    of it is left out in each step, and then what is left and its factors are kept too."""

    rank: int
    magnitudes: bool = False
    multiplied_out: bool = False
    drops: bool = False

    def trained(self, inputs: int, outputs: int) -> int:
        """Return how many numbers the adapter has on a layer of this size, a kernel counted among the inputs. For
        LoKr it is an upper bound."""
        return self.rank * (inputs + outputs) + (outputs if self.magnitudes else 0)

    def kept_bytes(self, output_places: int, outputs: int, half: int) -> int:
        """Return the bytes that autograd keeps of one picture besides the layer's input, in `half` bytes per
        element."""
        low = 0 if self.multiplied_out else self.rank * (3 if self.drops else 1)
        return output_places * (low + (2 * outputs if self.magnitudes else 0)) * half


def kept_bytes(
    layers: Sequence[Layer], adapted: Mapping[str, AdapterShape], precision: ActivationPrecision, recompute: Recompute
) -> int:
    """Return the bytes that autograd keeps of one picture between forward and backward pass. `adapted` are layers by
    their names."""
    first = min((layer.block for layer in layers if layer.name in adapted), default=max(x.block for x in layers))
    total, inputs, lowest = 0, dict[str, int](), _lowest(layers)
    for layer in layers:
        if not _is_computed_again(layer, lowest, recompute):
            total += _kept(layer, adapted.get(layer.name), precision) if layer.block >= first else 0
        elif layer.kind is LayerKind.NORM:  # a unit begins with one, so this is the size of its input
            inputs.setdefault(layer.unit, layer.places * layer.inputs * precision.half)
    return total + sum(inputs.values())


def largest_unit_bytes(
    layers: Iterable[Layer], adapted: Mapping[str, AdapterShape], precision: ActivationPrecision
) -> int:
    """Return the bytes that the largest unit takes for one picture while it is computed again."""
    units: dict[str, int] = defaultdict(int)
    for layer in layers:
        units[layer.unit] += _kept(layer, adapted.get(layer.name), precision) if layer.unit else 0
    return max(units.values())


def multiplied_out_bytes(
    layers: Sequence[Layer], adapted: Mapping[str, AdapterShape], precision: ActivationPrecision, recompute: Recompute
) -> int:
    """Return the bytes that autograd keeps of adapters that are multiplied out, for any number of pictures. With
    gradient checkpointing, this is the most that exists at a time."""
    standing, units, lowest = 0, defaultdict[str, int](int), _lowest(layers)
    for layer in layers:
        adapter_shape = adapted.get(layer.name)
        size_bytes = (
            layer.weights * precision.half if adapter_shape is not None and adapter_shape.multiplied_out else 0
        )
        if _is_computed_again(layer, lowest, recompute):
            units[layer.unit] += size_bytes
        else:
            standing += size_bytes
    return standing + max(units.values(), default=0)


def _lowest(layers: Iterable[Layer]) -> range:
    """Return the blocks of the lowest level, where activations are small."""
    levels = (max(layer.block for layer in layers) - 1) // 2
    return range(levels - 1, levels + 2)


def _is_computed_again(layer: Layer, lowest: range, recompute: Recompute) -> bool:
    if not layer.unit or layer.unit == NEVER_AGAIN or recompute is Recompute.OFF:
        return False
    return recompute is Recompute.FULL or layer.block not in lowest


def _kept(layer: Layer, adapter_shape: AdapterShape | None, precision: ActivationPrecision) -> int:
    n, h = layer.places, precision.half
    match layer.kind:
        case LayerKind.NORM:
            kept = n * layer.inputs * h * (2 if layer.activated else 1)
        case LayerKind.CONV:
            kept = 0 if layer.eight_bits else n * layer.inputs * h
        case LayerKind.ATTENTION:
            kept = 2 * (n + layer.keys) * layer.outputs * h
        case LayerKind.GATE:
            kept = n * (layer.inputs + layer.outputs) * h
        case _:
            kept = 0
    if adapter_shape is not None:
        kept += n * layer.inputs * h if precision.copies or _reads_what_is_new(layer) else 0
        kept += adapter_shape.kept_bytes(layer.output_places, layer.outputs, h)
    return kept


def _reads_what_is_new(layer: Layer) -> bool:
    """Return True when the layer keeps an input that no other layer keeps. Without casts, layers that read the same
    tensor share it: queries stand for keys and values, what an attention gives out is kept by it already, and so is
    the input of a convolution unless it is in 8 bits."""
    if layer.kind is LayerKind.CONV:
        return layer.eight_bits
    return layer.name.endswith(("to_q", "proj", "proj_in", "proj_out", "net.2"))


def text_bytes(widths_and_depths: Iterable[tuple[int, int]], precision: ActivationPrecision) -> int:
    """Return the bytes that autograd keeps of one prompt in text encoders that learn. Each layer has two
    normalizations, four adapted projections, an attention, and a feed-forward of four times the width with its
    activation: 22 h."""
    per_place = 22 * precision.half
    return sum(PROMPT_TOKENS * width * depth * per_place for width, depth in widths_and_depths)


def vae_bytes(channels: int, resolution: int, bytes_per_element: int) -> int:
    """Return the most bytes that a VAE holds at a time for one picture, without autograd. At full resolution these
    are a residual block's input, its normalized and activated copies and its output, `channels` wide."""
    return 4 * channels * resolution * resolution * bytes_per_element


def in_gib(size_bytes: float) -> str:
    """Format a size in GiB for a person to read."""
    return f"{size_bytes / GIB:.1f} GiB"
