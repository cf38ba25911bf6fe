"""The arithmetic of LoRA files: resizing and adding updates without ever making the large matrix.

A LoRA's ΔW = scale · up @ down has rank R at most. With thin QR factorizations up = Q₁R₁ and downᵀ = Q₂R₂, the
singular values of ΔW are those of the small R₁R₂ᵀ, and its singular vectors are Q₁ and Q₂ times the small ones.
Cutting off at rank r gives the best approximation of that rank in the Frobenius norm (Eckart and Young, 1936).

A LoKr's is ΔW = scale · w1 ⊗ w2. If w1 = U₁S₁V₁ and w2 = U₂S₂V₂, then w1 ⊗ w2 = (U₁ ⊗ U₂)(S₁ ⊗ S₂)(V₁ ⊗ V₂) (Horn and
Johnson, Topics in Matrix Analysis, 4.2.15). All of it is in float64 on the CPU.

Shapes: O and I the outputs and inputs of a layer, K K a convolution's kernel, R the rank, r the new one.
    down_RI or down_RIKK, up_OR or up_OR11
    w1 is P by Q, w2 is S by T or S by T by K by K; the layer has P·S outputs and Q·T inputs
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

Factorized = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The thin SVD: (outputs_OR, values_R falling, inputs_RI), float64. ΔW = outputs · diag(values) · inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFactors:
    """The factors of one layer, in the precision of the file. `scale` is alpha / R."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        """Return the rank: the columns of `up`."""
        return self.down.shape[0]

    @property
    def size(self) -> tuple[int, ...]:
        """Return outputs, inputs, and the kernel of a convolution."""
        return (self.up.shape[0], *self.down.shape[1:])

    @property
    def numbers(self) -> int:
        """Return how many numbers are stored."""
        return self.up.numel() + self.down.numel()

    def with_alpha(self, alpha: float) -> "LoraFactors":
        """Give the same update the scale alpha / R; each factor takes the root of what changes."""
        scale = alpha / self.rank
        factor = self.scale / scale
        if factor == 1.0:
            return self
        root = math.sqrt(abs(factor))
        down, up = root * self.down.double(), math.copysign(root, factor) * self.up.double()
        return LoraFactors(down=down, up=up, scale=scale)

    def delta(self) -> torch.Tensor:
        """Multiply out: ΔW as a matrix, O by I (times K times K), float64."""
        return self.scale * self.up.double().flatten(1) @ self.down.double().flatten(1)

    def factorized(self) -> Factorized:
        """Decompose ΔW by way of its small factors."""
        q1_OR, r1_RR = torch.linalg.qr(self.scale * self.up.double().flatten(1))
        q2_IR, r2_RR = torch.linalg.qr(self.down.double().flatten(1).T)
        u_RR, values_R, v_RR = torch.linalg.svd(r1_RR @ r2_RR.T, full_matrices=False)
        return q1_OR @ u_RR, values_R, v_RR @ q2_IR.T


@dataclass(frozen=True, slots=True, kw_only=True)
class LokrFactors:
    """The factors of one layer of a LoKr: `first` is w1, `second` is w2 with its kernel, float64. `numbers` counts
    the stored numbers."""

    first: torch.Tensor
    second: torch.Tensor
    scale: float
    numbers: int

    @property
    def rank(self) -> int:
        """Return the highest rank that ΔW can have."""
        return min(self.first.shape) * min(self.second.flatten(1).shape)

    @property
    def size(self) -> tuple[int, ...]:
        """Return outputs, inputs, and the kernel of a convolution."""
        (p, q), (s, t) = self.first.shape, self.second.shape[:2]
        return (p * s, q * t, *self.second.shape[2:])

    def delta(self) -> torch.Tensor:
        """Multiply the factors out, as `LoraFactors.delta` does."""
        return self.scale * torch.kron(self.first, self.second.flatten(1))

    def factorized(self) -> Factorized:
        """Decompose ΔW by way of its two factors."""
        u1, s1, v1 = torch.linalg.svd(self.scale * self.first, full_matrices=False)
        u2, s2, v2 = torch.linalg.svd(self.second.flatten(1), full_matrices=False)
        values, order = torch.kron(s1, s2).sort(descending=True, stable=True)
        return torch.kron(u1, u2)[:, order], values, torch.kron(v1, v2)[order]


Update = LoraFactors | LokrFactors


class Method(StrEnum):
    """The rule for how many singular values of a layer stay. The names and formulas are those of kohya's
    resize_lora."""

    FIXED = "fixed"  # as many as the rank says
    SV_RATIO = "sv_ratio"  # those above the largest divided by the target
    SV_CUMULATIVE = "sv_cumulative"  # until their sum reaches this part of the whole
    SV_FRO = "sv_fro"  # until the Frobenius norm reaches this part of the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A bound on the singular values: at most `rank`; fewer where `method` and `target` say so."""

    rank: int
    method: Method = Method.FIXED
    target: float = 0.0

    def kept(self, values_R: torch.Tensor) -> int:
        """Count the singular values that stay, 1 at least; `values_R` fall."""
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

    layer: LoraFactors
    kept_norm: float


def resize(layer: Update, cut: Cut) -> Resized:
    """Approximate the layer's update best, at the rank that `cut` chooses. Alpha / rank stays as it was; of a LoKr it
    is 1."""
    outputs_OR, values_R, inputs_RI = layer.factorized()
    rank = cut.kept(values_R)
    new_scale = (layer.scale if isinstance(layer, LoraFactors) else 1.0) or 1.0
    root_r = (values_R[:rank] / abs(new_scale)).sqrt()
    sign = math.copysign(1.0, new_scale)
    up = (sign * outputs_OR[:, :rank] * root_r).reshape(-1, rank, *[1] * (len(layer.size) - 2))
    down = (root_r[:, None] * inputs_RI[:rank]).reshape(rank, *layer.size[1:])
    whole, kept = float(values_R.norm()), float(values_R[:rank].norm())
    return Resized(layer=LoraFactors(down=down, up=up, scale=new_scale), kept_norm=kept / whole if whole else 1.0)


def add(parts: Sequence[tuple[LoraFactors, float]]) -> LoraFactors:
    """Add weighted updates up, exactly: ranks add up, and the scale is 1."""
    ups, downs = [], []
    for layer, weight in parts:
        factor = weight * layer.scale
        root = math.sqrt(abs(factor))  # shared by both factors, so that neither leaves the range of float16
        ups.append(math.copysign(root, factor) * layer.up.double())
        downs.append(root * layer.down.double())
    return LoraFactors(down=torch.cat(downs), up=torch.cat(ups, dim=1), scale=1.0)


def merge(files: Sequence[tuple[Mapping[str, Update], float]], cut: Cut | None = None) -> dict[str, Resized]:
    """Add whole LoRAs up by their weights; layers of one name belong together. Each sum is cut down if `cut` says so.
    A layer of only some files is the sum of those."""
    names = dict.fromkeys(name for layers, _ in files for name in layers)
    made = {}
    for name in names:
        whole = add([(_plain(layers[name]), weight) for layers, weight in files if name in layers])
        made[name] = Resized(layer=whole, kept_norm=1.0) if cut is None else resize(whole, cut)
    return made


def _plain(layer: Update) -> LoraFactors:
    """Return the same update as up and down; a LoKr gets as many ranks as it has."""
    return layer if isinstance(layer, LoraFactors) else resize(layer, Cut(rank=layer.rank)).layer
