"""Resizing and adding updates without ever making the large matrix, but for sums with a LoKr in them.

ΔW = up @ down has rank R at most. With thin QR factorisations up = Q₁R₁ and downᵀ = Q₂R₂, the singular values of ΔW
are those of the small R₁R₂ᵀ, and its singular vectors are Q₁ and Q₂ times the small ones. Cutting off at rank r gives
the best approximation of that rank in the Frobenius norm (Eckart and Young, 1936). All of it in float64 on the CPU.

Shapes: O and I the outputs and inputs of a layer, R its rank, r the new one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from giornata.diffusion.kronecker import Kronecker
from giornata.diffusion.lora_files import Layer


class Method(StrEnum):
    """How many singular values of a layer stay. The names and formulas are those of kohya's resize_lora."""

    FIXED = "fixed"  # as many as the rank says
    SV_RATIO = "sv_ratio"  # those above the largest divided by the target
    SV_CUMULATIVE = "sv_cumulative"  # until their sum reaches this part of the whole
    SV_FRO = "sv_fro"  # until the Frobenius norm reaches this part of the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """At most `rank` values; fewer where `method` and `target` say so."""

    rank: int
    method: Method = Method.FIXED
    target: float = 0.0

    def kept(self, values_R: torch.Tensor) -> int:
        """How many of the singular values, which fall, stay: 1 at least."""
        most = min(self.rank, len(values_R))
        if self.method is Method.FIXED or float(values_R[0]) == 0.0:
            return most if self.method is Method.FIXED else 1
        if self.method is Method.SV_RATIO:
            wanted = int((values_R > values_R[0] / self.target).sum())
        else:
            fro = self.method is Method.SV_FRO
            parts_R = torch.cumsum(values_R**2 if fro else values_R, dim=0)
            reached = parts_R / parts_R[-1] >= (self.target**2 if fro else self.target) - 1e-12
            wanted = int(reached.int().argmax()) + 1 if bool(reached.any()) else len(values_R)
        return max(1, min(most, wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """A layer of a lower rank, and the part of its Frobenius norm that was kept, from 0 to 1."""

    layer: Layer
    kept_norm: float


def resize(layer: Layer | Kronecker, cut: Cut) -> Resized:
    """The best approximation of the layer's update of the rank that `cut` chooses. Alpha / rank stays as it was; of a
    LoKr it is 1."""
    outputs_OR, values_R, inputs_RI = factorised(layer)
    rank = cut.kept(values_R)
    new_scale = (layer.scale if isinstance(layer, Layer) else 1.0) or 1.0
    root_r = (values_R[:rank] / abs(new_scale)).sqrt()
    sign = math.copysign(1.0, new_scale)
    up = (sign * outputs_OR[:, :rank] * root_r).reshape(-1, rank, *[1] * (len(layer.input_shape) - 1))
    down = (root_r[:, None] * inputs_RI[:rank]).reshape(rank, *layer.input_shape)
    whole, kept = float(values_R.norm()), float(values_R[:rank].norm())
    return Resized(layer=Layer(down=down, up=up, scale=new_scale), kept_norm=kept / whole if whole else 1.0)


def factorised(layer: Layer | Kronecker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The thin SVD: (outputs_OR, values_R falling, inputs_RI), float64. ΔW = outputs · diag(values) · inputs."""
    if isinstance(layer, Kronecker):
        return layer.factorised()
    up_OR, down_RI = layer.up.double().flatten(1), layer.down.double().flatten(1)
    q1_OR, r1_RR = torch.linalg.qr(layer.scale * up_OR)
    q2_IR, r2_RR = torch.linalg.qr(down_RI.T)
    u_RR, values_R, v_RR = torch.linalg.svd(r1_RR @ r2_RR.T, full_matrices=False)
    return q1_OR @ u_RR, values_R, v_RR @ q2_IR.T


def add(parts: Sequence[tuple[Layer, float]]) -> Layer:
    """The weighted sum of the updates, exactly: ranks add up, and the scale is 1."""
    ups, downs = [], []
    for layer, weight in parts:
        factor = weight * layer.scale
        root = math.sqrt(abs(factor))  # shared by both factors, so that neither leaves the range of float16
        ups.append(math.copysign(root, factor) * layer.up.double())
        downs.append(root * layer.down.double())
    return Layer(down=torch.cat(downs), up=torch.cat(ups, dim=1), scale=1.0)


def merge(
    files: Sequence[tuple[Mapping[str, Layer | Kronecker], float]], cut: Cut | None = None
) -> dict[str, Resized]:
    """The weighted sum of whole LoRAs, whose layers have the same names, each cut down if that is wanted. What only
    some have is taken of those."""
    names = dict.fromkeys(name for layers, _ in files for name in layers)
    made = {}
    for name in names:
        whole = add([(_plain(layers[name]), weight) for layers, weight in files if name in layers])
        made[name] = Resized(layer=whole, kept_norm=1.0) if cut is None else resize(whole, cut)
    return made


def _plain(layer: Layer | Kronecker) -> Layer:
    """The same update as up and down; of a LoKr of as many ranks as it has."""
    return layer if isinstance(layer, Layer) else resize(layer, Cut(rank=layer.rank)).layer
