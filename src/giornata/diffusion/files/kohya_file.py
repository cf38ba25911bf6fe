"""Converts adapter weights to and from kohya's and LyCORIS's names.

    lora_down.weight, lora_up.weight     LoRA's A and B
    dora_scale                           DoRA's magnitudes: (O, 1), or (O, 1, 1, 1) on a convolution
    lokr_w1, lokr_w1_a, lokr_w1_b, …     LoKr's factors, as peft names them
    alpha                                a scalar; the layer's scale is alpha / rank

Two things that an alpha cannot say are multiplied into the weights. A LoKr of two whole factors has no rank that its
readers could see: they take 1 for its scale (LyCORIS, ComfyUI, diffusers). And where layers of a LoRA have different
alphas, diffusers 0.42 finds those of attention under no name that it knows; so all layers get the usual one.
"""

from collections.abc import Iterable, Mapping

import torch

from giornata.diffusion.families import SDXL, Family
from giornata.diffusion.files.lora_facts import LoraFacts

PARTS = {
    ".lora_A.weight": ".lora_down.weight",
    ".lora_B.weight": ".lora_up.weight",
    ".lora_magnitude_vector": ".dora_scale",
    ".lokr_w1": ".lokr_w1",
    ".lokr_w1_a": ".lokr_w1_a",
    ".lokr_w1_b": ".lokr_w1_b",
    ".lokr_w2": ".lokr_w2",
    ".lokr_w2_a": ".lokr_w2_a",
    ".lokr_w2_b": ".lokr_w2_b",
}
OURS = {kohya: ours for ours, kohya in PARTS.items()}
ALPHA = ".alpha"
LORA = (".lora_A.weight", ".lora_B.weight")
SCALED = (".lora_B.weight", ".lokr_w1")
MAGNITUDE = ".lora_magnitude_vector"


def split_name(name: str) -> tuple[str, str]:
    """Split a name: `unet.….to_q.lora_A.weight` → (`unet.….to_q`, `.lora_A.weight`). Raises ValueError for other
    names."""
    for part in PARTS:
        if name.endswith(part):
            return name.removesuffix(part), part
    raise ValueError(f"{name} is not the name of an adapter's weight")


def layer_of(name: str) -> str:
    """Return the layer that a weight belongs to."""
    return split_name(name)[0]


def to_kohya(tensors: Mapping[str, torch.Tensor], facts: LoraFacts) -> dict[str, torch.Tensor]:
    """Return the content of a kohya file; `tensors` by the names of `Adapters.tensors()`."""
    content: dict[str, torch.Tensor] = {}
    dora = any(name.endswith(MAGNITUDE) for name in tensors)
    for name, tensor in tensors.items():
        layer, part = split_name(name)
        target = facts.family.kohya_name(layer, layers_per_block=facts.layers_per_block)
        size = facts.size(layer)
        alpha = size.alpha
        if {f"{layer}.lokr_w1", f"{layer}.lokr_w2"} <= tensors.keys():
            alpha = float(size.rank)
        elif part in LORA and not dora:
            alpha = facts.alpha
        upright = _upright(tensor) if part == MAGNITUDE else tensor
        content[target + PARTS[part]] = _times(upright, size.alpha / alpha) if part in SCALED else upright
        content[target + ALPHA] = torch.tensor(alpha, dtype=torch.float32)
    return content


def kohya_parts(
    content: Mapping[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], dict[str, float], dict[str, torch.Tensor]]:
    """Split a kohya file: (tensors by the file's layers and our parts, alphas by layer, tensors that are neither)."""
    tensors, alphas, others = {}, {}, {}
    for key, tensor in content.items():
        layer, dot, rest = key.partition(".")
        part = OURS.get(dot + rest)
        if dot + rest == ALPHA and tensor.numel() == 1:
            alphas[layer] = float(tensor.item())
        elif part is not None:
            tensors[layer + part] = _lying(tensor) if part == MAGNITUDE else tensor
        else:
            others[key] = tensor
    return tensors, alphas, others


def kohya_layers(layers: Iterable[str], *, layers_per_block: int, family: Family = SDXL) -> dict[str, str]:
    """Map the names that a kohya file may have for these layers to the layers' public names.

    Layers may be named after Stability's blocks, as kohya does, or after diffusers' with underscores.
    """
    found = {}
    for layer in layers:
        prefix, _, name = layer.partition(".")
        try:
            found[family.kohya_name(layer, layers_per_block=layers_per_block)] = layer
        except KeyError:
            continue
        if prefix == "unet":
            found["lora_unet_" + name.replace(".", "_")] = layer
    return found


def _times(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1.0 else tensor * factor


def _upright(magnitude: torch.Tensor) -> torch.Tensor:
    """Reshape magnitudes: (O) → (O, 1); (1, O, 1, 1) → (O, 1, 1, 1)."""
    return magnitude[:, None] if magnitude.ndim == 1 else magnitude.transpose(0, 1)


def _lying(scale: torch.Tensor) -> torch.Tensor:
    return scale.flatten() if scale.ndim <= 2 else scale.transpose(0, 1)
