"""Reads the adapters that others made: kohya's files, diffusers' files, and training checkpoints of ours.

Whatever the file, the answer is tensors by the names of `Adapters`, and the scale of each layer: what its product is
multiplied by, alpha / rank. Nothing is unpickled.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import convert_unet_state_dict_to_peft
from safetensors import SafetensorError, safe_open

from giornata.diffusion.adapter_plan import holds, size_of
from giornata.diffusion.export import family_of_checkpoint, read_adapter
from giornata.diffusion.families import SDXL, Family
from giornata.diffusion.kohya_file import ALPHA, from_kohya, split_name
from giornata.diffusion.tensor_file import METADATA_KEY
from giornata.diffusion.tokens import BUNDLE, TOKENS
from giornata.domain.errors import Fault, InvalidInput

KOHYA_PREFIXES = ("lora_unet_", "lora_te_", "lora_te1_", "lora_te2_")
PREFIXES = ("unet.", "text_encoder.", "text_encoder_2.")
HINT = "give a .safetensors file with a LoRA, of kohya's or diffusers' format, or a checkpoint of a job"
TEXT_PARTS = {".lora_linear_layer.down.": ".lora_A.", ".lora_linear_layer.up.": ".lora_B."}
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLora:
    """The weights in a file: `tensors` by our names, in the file's dtypes; `scales` by layer."""

    tensors: dict[str, torch.Tensor]
    scales: dict[str, float]


def read_lora(
    path: Path, layers: Iterable[str], *, layers_per_block: int, where: str, family: Family = SDXL
) -> ReadLora:
    """Read a file for a model with these layers (public names). Raises InvalidInput with every fault: no file of
    tensors, of no known format, keys that mean nothing for this model, halves of pairs, values that are not finite,
    new tokens, which no job can start from.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            content = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  (not a mapping)
    except (OSError, SafetensorError) as error:
        raise InvalidInput([Fault(where=where, message=f"cannot be read: {error}", hint=HINT)]) from error
    if METADATA_KEY in metadata:
        return _checkpoint(path, where, family)
    if any(key.startswith(BUNDLE) for key in content):
        raise InvalidInput([_tokens_fault(where)])
    if any(key.startswith(KOHYA_PREFIXES) for key in content):
        read, strange = _kohya(content, layers, layers_per_block=layers_per_block, family=family)
    elif any(key.startswith(PREFIXES) for key in content):
        read, strange = _diffusers(content, metadata, set(layers))
    else:
        message = f"holds no adapter that is known here; its first key is {min(content, default='missing')}"
        raise InvalidInput([Fault(where=where, message=message, hint=HINT)])
    faults = [*_strange_faults(strange, where), *_value_faults(read, where)]
    if faults:
        raise InvalidInput(faults)
    return read


def _checkpoint(path: Path, where: str, family: Family) -> ReadLora:
    found = family_of_checkpoint(path)
    if found is not family:
        message = f"was trained on {found.title}, and this base model is of {family.title}"
        raise InvalidInput([Fault(where=where, message=message, hint="take one of the same kind of base model")])
    spec, _, tensors = read_adapter(path)
    if any(name.startswith(TOKENS) for name in tensors):
        raise InvalidInput([_tokens_fault(where)])
    layers = {split_name(name)[0] for name in tensors}
    sizes = {layer: size_of(spec, layer) for layer in layers}
    return ReadLora(tensors=tensors, scales={layer: size.alpha / size.rank for layer, size in sizes.items()})


def _tokens_fault(where: str) -> Fault:
    message = "holds new tokens (train_text_encoder_ti), which a job cannot start from, and its weights need them"
    return Fault(where=where, message=message, hint="give a file that was trained without them")


def _kohya(
    content: Mapping[str, torch.Tensor], layers: Iterable[str], *, layers_per_block: int, family: Family
) -> tuple[ReadLora, list[str]]:
    """SD 1.5's `lora_te_` is not SDXL's: such keys stay strange. Without an alpha, the scale is 1."""
    found = from_kohya(content, layers, layers_per_block=layers_per_block, family=family)
    ranks = _ranks(found.tensors)
    scales = {layer: found.alphas.get(layer, rank) / rank if rank else 1.0 for layer, rank in ranks.items()}
    return ReadLora(tensors=found.tensors, scales=scales), found.strange


def _diffusers(
    content: Mapping[str, torch.Tensor], metadata: Mapping[str, str], layers: set[str]
) -> tuple[ReadLora, list[str]]:
    tensors, alphas, strange = {}, {}, []
    for given, tensor in convert_unet_state_dict_to_peft(dict(content)).items():
        key = _pefts_key(given)
        layer, part = _split(key)
        if layer in layers and part == ALPHA and tensor.numel() == 1:
            alphas[layer] = float(tensor.item())
        elif layer in layers and part is not None:
            tensors[key] = tensor
        else:
            strange.append(given)
    ranks, configs = _ranks(tensors), _configs(metadata)
    scales = {layer: _scale(layer, rank, alphas.get(layer), configs) for layer, rank in ranks.items()}
    return ReadLora(tensors=tensors, scales=scales), strange


def _pefts_key(key: str) -> str:
    """Text encoders' parts have older names, and transformers another one for magnitudes."""
    for old, new in TEXT_PARTS.items():
        key = key.replace(old, new)
    return key.removesuffix(".weight") if key.endswith(".lora_magnitude_vector.weight") else key


def _split(key: str) -> tuple[str, str | None]:
    if key.endswith(ALPHA):
        return key.removesuffix(ALPHA), ALPHA
    try:
        return split_name(key)
    except ValueError:
        return key, None


def _ranks(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The rank of each layer, as a file's readers see it; 0 for a LoKr of two whole factors, whose scale is 1."""
    ranks: dict[str, int] = {}
    for name, tensor in tensors.items():
        layer, part = split_name(name)
        ranks.setdefault(layer, 0)
        if part in {".lora_A.weight", ".lokr_w1_b", ".lokr_w2_b"}:
            ranks[layer] = tensor.shape[0]
    return ranks


def _configs(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What diffusers writes beside the weights, `unet.r` and so on; nothing when it does not read as that."""
    try:
        found = json.loads(metadata.get("lora_adapter_metadata", "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _scale(layer: str, rank: int, alpha: float | None, configs: Mapping[str, Any]) -> float:
    """By the file's own alpha, by the config of the layer's model, or 1, which is what diffusers takes it for."""
    prefix, _, name = layer.partition(".")
    if rank == 0:
        return 1.0
    if alpha is not None:
        return alpha / rank
    alpha = configs.get(f"{prefix}.lora_alpha", configs.get(f"{prefix}.alpha"))
    patterns = configs.get(f"{prefix}.alpha_pattern") or {}
    alpha = next((value for pattern, value in patterns.items() if holds(pattern, name)), alpha)
    if not isinstance(alpha, int | float):
        return 1.0
    return alpha / (math.sqrt(rank) if configs.get(f"{prefix}.use_rslora") else rank)


def diffusers_faults(path: Path, where: str) -> list[Fault]:
    """Why `load_lora_weights` would not load this file, or would silently load half of it (0.42)."""
    try:
        with safe_open(path, framework="pt") as opened:
            keys = list(opened.keys())
    except (OSError, SafetensorError) as error:
        return [Fault(where=where, message=f"{path} cannot be read: {error}", hint=HINT)]
    if any(".lokr_" in key for key in keys):
        return [Fault(where=where, message="diffusers loads no LoKr", hint="look at it in ComfyUI or A1111")]
    if any(key.endswith(".dora_scale") for key in keys):
        message, hint = "diffusers drops the magnitudes of a kohya DoRA", "take pytorch_lora_weights.safetensors"
        return [Fault(where=where, message=message, hint=hint)]
    return []


def _strange_faults(strange: list[str], where: str) -> list[Fault]:
    if not strange:
        return []
    first = ", ".join(sorted(strange)[:SHOWN]) + (f" and {len(strange) - SHOWN} more" if len(strange) > SHOWN else "")
    message = f"holds keys that mean nothing for this base model: {first}"
    return [Fault(where=where, message=message, hint="was it made for another kind of model?")]


def _value_faults(read: ReadLora, where: str) -> Iterable[Fault]:
    broken = sorted(name for name, value in read.tensors.items() if not bool(torch.isfinite(value).all()))
    if broken:
        yield Fault(
            where=where, message=f"{len(broken)} tensors are not finite, first {broken[0]}", hint="leave it out"
        )
    for layer, scale in sorted(read.scales.items()):
        if not (math.isfinite(scale) and scale > 0):
            yield Fault(
                where=where, message=f"the alpha of {layer} is not a positive number", hint="leave the file out"
            )
            return
