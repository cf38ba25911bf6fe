"""LoKr in the algebra of LoRA: ΔW = scale · w1 ⊗ w2, whose singular values are the products of those of its factors.

If w1 = U₁S₁V₁ and w2 = U₂S₂V₂, then w1 ⊗ w2 = (U₁ ⊗ U₂)(S₁ ⊗ S₂)(V₁ ⊗ V₂) (Horn and Johnson, Topics in Matrix
Analysis, 4.2.15); so no matrix of the layer's own size is decomposed.

Shapes: w1 is P by Q, w2 is S by T or S by T by K by K on a convolution; the layer has P·S outputs and Q·T inputs.
Either may be a product of two factors: w1_a @ w1_b, w2_a @ w2_b. As LyCORIS reads it, the scale is alpha / R with R
the rank of such a product, and 1 where both are whole.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

KOHYA, MARK = "lora_", ".lokr_w"
ALPHA = ".alpha"
CORE = ".lokr_t2"
PARTS = (".lokr_w1", ".lokr_w1_a", ".lokr_w1_b", ".lokr_w2", ".lokr_w2_a", ".lokr_w2_b")
CONVOLUTION = re.compile(r".*(conv(1|2|_in|_out|_shortcut)?|_op|in_layers_2|out_layers_3|skip_connection)")
PROJECTION = re.compile(r"lora_unet_(down_blocks|mid_block|up_blocks)_.*_proj_(in|out)")
"""Convolutions in Stable Diffusion 1.5, whose names these are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kronecker:
    """One layer of a LoKr: `first` is w1, `second` is w2 with its kernel, float64. `numbers` counts what is stored,
    in the precision `dtype`."""

    first: torch.Tensor
    second: torch.Tensor
    scale: float
    dtype: torch.dtype
    numbers: int

    @property
    def rank(self) -> int:
        """The most that ΔW can have."""
        return min(self.first.shape) * min(self.second.flatten(1).shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Inputs, and the kernel of a convolution."""
        return (self.first.shape[1] * self.second.shape[1], *self.second.shape[2:])

    @property
    def outputs(self) -> int:
        """How many there are."""
        return self.first.shape[0] * self.second.shape[0]

    def delta(self) -> torch.Tensor:
        """ΔW as a matrix, as `Layer.delta`."""
        return self.scale * torch.kron(self.first, self.second.flatten(1))

    def factorised(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The thin SVD: (outputs_OR, values_R falling, inputs_RI), float64."""
        u1, s1, v1 = torch.linalg.svd(self.scale * self.first, full_matrices=False)
        u2, s2, v2 = torch.linalg.svd(self.second.flatten(1), full_matrices=False)
        values, order = torch.kron(s1, s2).sort(descending=True, stable=True)
        return torch.kron(u1, u2)[:, order], values, torch.kron(v1, v2)[order]


def kroneckers_of(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, Kronecker], set[str]]:
    """The layers of a LoKr file by their names, and the names of the tensors that they are made of.

    What cannot be computed with is left out: layers without kohya's names, with a core (Tucker), with a factor too
    few, with values that are not finite, with magnitudes, and convolutions whose w2 is a product, for the file does
    not tell their kernel.
    """
    names = dict.fromkeys(name.partition(MARK)[0] for name in tensors if MARK in name and name.startswith(KOHYA))
    layers, used = {}, set[str]()
    for name in names:
        parts = {part: tensors[name + part].double() for part in PARTS if name + part in tensors}
        first, second = _product(parts, ".lokr_w1"), _product(parts, ".lokr_w2")
        if first is None or second is None or not _is_plain(name, tensors, second):
            continue
        if not (bool(torch.isfinite(first).all()) and bool(torch.isfinite(second).all())):
            continue
        dtype = next(tensors[name + part].dtype for part in parts)
        numbers = sum(part.numel() for part in parts.values())
        scale = _scale(parts, tensors.get(name + ALPHA))
        layers[name] = Kronecker(first=first, second=second, scale=scale, dtype=dtype, numbers=numbers)
        used |= {name + part for part in (*parts, ALPHA)}
    return layers, used


def _product(parts: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    if name in parts:
        return parts[name]
    left, right = parts.get(f"{name}_a"), parts.get(f"{name}_b")
    if left is None or right is None or left.shape[1] != right.shape[0]:
        return None
    return left @ right.flatten(1)


def _is_plain(name: str, tensors: Mapping[str, torch.Tensor], second: torch.Tensor) -> bool:
    if name + CORE in tensors or f"{name}.dora_scale" in tensors:
        return False
    is_convolution = CONVOLUTION.fullmatch(name) is not None or PROJECTION.fullmatch(name) is not None
    return second.ndim == 4 or not is_convolution


def _scale(parts: Mapping[str, torch.Tensor], alpha: torch.Tensor | None) -> float:
    ranks = [parts[part].shape[0] for part in (".lokr_w1_b", ".lokr_w2_b") if part in parts]
    return 1.0 if alpha is None or not ranks else float(alpha) / ranks[-1]
