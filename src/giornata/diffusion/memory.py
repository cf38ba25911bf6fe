"""How much device memory a job takes: reckoned from the shapes of its model, before it starts.

What autograd keeps of one picture, in bytes per element: h for what the matrix units read (2 under bf16 autocast, 4
in fp32), n for what normalisation layers read (4 on CUDA, whose autocast runs them in fp32; h elsewhere).

    normalisation            its input, n; with an activation function after it, whose input is its output, 2n
    convolution              its input, h; with weights of 8 bits only where it is adapted
    attention                queries and output of every place, keys and values of every key, h
    gated linear unit        its input (both halves) and the activated half, h
    adapted layer            a copy of its input in the precision of the adapter's products, h

Frozen linear layers keep nothing. Nothing is kept before the first block with an adapted layer. A unit that gradient
checkpointing computes again keeps its input wherever it stands, h; while one is computed again it takes what it would
have kept.
`tests/unit/diffusion/test_memory.py` counts what autograd really keeps, and compares.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from giornata.diffusion.recompute import Recompute
from giornata.diffusion.unet_layers import PROMPT_TOKENS, Kind, Layer

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes per element: `half` of what the matrix units read, `norm` of what normalisations read. `copies`: whether
    every adapted layer casts its input anew, as autocast does."""

    half: int
    norm: int
    copies: bool

    @classmethod
    def of(cls, *, mixed: bool, on_cuda: bool) -> "Precision":
        """Under bf16 autocast on this kind of device, or in fp32."""
        half = 2 if mixed else 4
        return cls(half=half, norm=4 if on_cuda else half, copies=mixed)


def kept_bytes(
    layers: Collection[Layer], adapted: Collection[str], precision: Precision, recompute: Recompute
) -> int:
    """What autograd keeps of one picture between forward and backward pass. `adapted` are names of layers."""
    levels = (max(layer.block for layer in layers) - 1) // 2
    lowest = range(levels - 1, levels + 2)
    first = min((layer.block for layer in layers if layer.name in adapted), default=max(x.block for x in layers))
    total, inputs = 0, dict[str, int]()
    for layer in layers:
        again = recompute is Recompute.FULL or (recompute is Recompute.SELECTIVE and layer.block not in lowest)
        if not layer.unit or not again:
            total += _kept(layer, layer.name in adapted, precision) if layer.block >= first else 0
        elif layer.kind is Kind.NORM:  # a unit begins with one, so this is the size of its input
            inputs.setdefault(layer.unit, layer.places * layer.inputs * precision.half)
    return total + sum(inputs.values())


def largest_unit_bytes(layers: Iterable[Layer], adapted: Collection[str], precision: Precision) -> int:
    """What one unit takes for one picture while it is computed again."""
    units: dict[str, int] = defaultdict(int)
    for layer in layers:
        units[layer.unit] += _kept(layer, layer.name in adapted, precision) if layer.unit else 0
    return max(units.values())


def _kept(layer: Layer, adapted: bool, precision: Precision) -> int:
    n, h = layer.places, precision.half
    match layer.kind:
        case Kind.NORM:
            kept = n * layer.inputs * precision.norm * (2 if layer.activated else 1)
        case Kind.CONV:
            kept = 0 if layer.eight_bits and not adapted else n * layer.inputs * h
        case Kind.ATTENTION:
            kept = 2 * (n + layer.keys) * layer.outputs * h
        case Kind.GATE:
            kept = n * (layer.inputs + layer.outputs) * h
        case _:
            kept = 0
    if adapted and layer.kind is Kind.LINEAR and (precision.copies or _reads_what_is_new(layer.name)):
        kept += n * layer.inputs * h
    return kept


def _reads_what_is_new(name: str) -> bool:
    """Without casts, layers that read the same tensor share it: queries stand for keys and values, and what an
    attention gives out is kept by it already."""
    return name.endswith(("to_q", "proj", "proj_in", "proj_out", "net.2"))


def text_bytes(widths_and_depths: Iterable[tuple[int, int]], precision: Precision) -> int:
    """What autograd keeps of one prompt in text encoders that learn. Of each layer: two normalisations, four adapted
    projections, an attention, and a feed-forward of four times the width with its activation: 20 h + 2 n."""
    per_place = 20 * precision.half + 2 * precision.norm
    return sum(PROMPT_TOKENS * width * depth * per_place for width, depth in widths_and_depths)


def vae_bytes(channels: int, resolution: int, bytes_per_element: int) -> int:
    """The most that a VAE holds at a time for one picture, without autograd: at full resolution a residual block's
    input, its normalised and activated copies and its output, `channels` wide."""
    return 4 * channels * resolution * resolution * bytes_per_element


def in_gib(size_bytes: float) -> str:
    """For a person."""
    return f"{size_bytes / GIB:.1f} GiB"
