"""Reads adapters from other programs: kohya's files, diffusers' files, and our own training checkpoints.

`read_lora` gives every file the same form: tensors by the file's own layers with the parts that `Adapters` names, and
the scale of each layer, alpha / rank. `for_model` then finds the layers of one base model. Nothing is unpickled.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers.utils import convert_unet_state_dict_to_peft
from safetensors import SafetensorError

from giornata.diffusion.adapter.adapter_plan import holds, size_of
from giornata.diffusion.adapter.tokens import BUNDLE, TOKENS
from giornata.diffusion.families import SDXL, Family
from giornata.diffusion.files.export import family_of_checkpoint, read_adapter
from giornata.diffusion.files.kohya_file import ALPHA, PARTS, kohya_layers, kohya_parts, split_name
from giornata.diffusion.tensor_file import METADATA_KEY, read_tensors
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.drawable_loras import OTHER_KINDS

LoraNaming = Literal["kohya", "diffusers"]
PREFIXES = ("unet.", "text_encoder.", "text_encoder_2.")
HINT = "give a .safetensors file with a LoRA, of kohya's or diffusers' format, or a checkpoint of a job"
TEXT_PARTS = {".lora_linear_layer.down.": ".lora_A.", ".lora_linear_layer.up.": ".lora_B."}
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLora:
    """The weights in a file for one model: `tensors` by our names, in the file's dtypes; `scales` by layer."""

    tensors: dict[str, torch.Tensor]
    scales: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFile:
    """A file as it was read. `tensors` have the name of the file's layer and one of `kohya_file.PARTS`; `scales` are
    by layer. `others` are tensors with neither, such as embeddings, by their names in the file. `family` is known of
    checkpoints alone."""

    path: Path
    naming: LoraNaming
    tensors: Mapping[str, torch.Tensor]
    scales: Mapping[str, float]
    others: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]
    family: Family | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision of the tensors; float32 when they differ."""
        found = {tensor.dtype for tensor in self.tensors.values()}
        return found.pop() if len(found) == 1 else torch.float32

    def layers(self) -> dict[str, dict[str, torch.Tensor]]:
        """Group the tensors: layer → part → tensor."""
        grouped: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in self.tensors.items():
            layer, part = split_name(name)
            grouped.setdefault(layer, {})[part] = tensor
        return grouped


def read_lora(path: Path, *, where: str | None = None) -> LoraFile:
    """Read a file. Raises InvalidInput, at `where`, when it is no file of tensors, or has no known format."""
    where = where or str(path)
    try:
        metadata, content = read_tensors(path)
    except (OSError, SafetensorError) as error:
        raise InvalidInput([Fault(where=where, message=f"cannot be read: {error}", hint=HINT)]) from error
    if METADATA_KEY in metadata:
        return _checkpoint(path)
    if any(key.startswith(PREFIXES) or key.endswith(".lora_A.weight") for key in content):
        file = _diffusers(path, content, metadata)
    else:
        tensors, alphas, others = kohya_parts(content)
        scales = {layer: alphas.get(layer, rank) / rank if rank else 1.0 for layer, rank in _ranks(tensors).items()}
        file = LoraFile(path=path, naming="kohya", tensors=tensors, scales=scales, others=others, metadata=metadata)
    if not file.tensors and not any(mark in key for key in content for mark in (*OTHER_KINDS, BUNDLE)):
        message = f"holds no adapter that is known here; its first key is {min(content, default='missing')}"
        raise InvalidInput([Fault(where=where, message=message, hint=HINT)])
    return file


def for_model(
    file: LoraFile, layers: Iterable[str], *, layers_per_block: int, where: str, family: Family = SDXL
) -> ReadLora:
    """Take the weights for a model with these layers (public names). Raises InvalidInput with every fault: another
    kind of base model, keys that mean nothing for this model, values that are not finite, new tokens, which no job
    can start from. SD 1.5's `lora_te_` is not SDXL's: such keys mean nothing.
    """
    if file.family is not None and file.family is not family:
        message = f"was trained on {file.family.title}, and this base model is of {family.title}"
        raise InvalidInput([Fault(where=where, message=message, hint="take one of the same kind of base model")])
    if any(key.startswith((BUNDLE, TOKENS)) for key in file.others):
        message = "holds new tokens (train_text_encoder_ti), which a job cannot start from, and its weights need them"
        raise InvalidInput([Fault(where=where, message=message, hint="give a file that was trained without them")])
    kohya = file.naming == "kohya"
    known = (
        kohya_layers(layers, layers_per_block=layers_per_block, family=family) if kohya else {x: x for x in layers}
    )
    tensors, strange = {}, list(file.others)
    for name, tensor in file.tensors.items():
        layer, part = split_name(name)
        if layer in known:
            tensors[known[layer] + part] = tensor
        else:
            strange.append(layer + (PARTS[part] if kohya else part))
    read = ReadLora(
        tensors=tensors, scales={known[layer]: scale for layer, scale in file.scales.items() if layer in known}
    )
    if faults := [*_strange_faults(strange, where), *_value_faults(read, where)]:
        raise InvalidInput(faults)
    return read


def _checkpoint(path: Path) -> LoraFile:
    spec, _, tensors = read_adapter(path)
    others = {name: tensor for name, tensor in tensors.items() if name.startswith(TOKENS)}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in others}
    sizes = {layer: size_of(spec, layer) for layer in (split_name(name)[0] for name in tensors)}
    scales = {layer: size.alpha / size.rank for layer, size in sizes.items()}
    family = family_of_checkpoint(path)
    return LoraFile(
        path=path, naming="diffusers", tensors=tensors, scales=scales, others=others, metadata={}, family=family
    )


def _diffusers(path: Path, content: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> LoraFile:
    tensors, alphas, others = {}, {}, {}
    for given, tensor in convert_unet_state_dict_to_peft(dict(content)).items():
        key = _pefts_key(given)
        if key.endswith(ALPHA) and tensor.numel() == 1:
            alphas[key.removesuffix(ALPHA)] = float(tensor.item())
        elif key.endswith(tuple(PARTS)):
            tensors[key] = tensor
        else:
            others[given] = tensor
    configs = _configs(metadata)
    scales = {layer: _scale(layer, rank, alphas.get(layer), configs) for layer, rank in _ranks(tensors).items()}
    return LoraFile(path=path, naming="diffusers", tensors=tensors, scales=scales, others=others, metadata=metadata)


def _pefts_key(key: str) -> str:
    """Return peft's key of a part: text encoders' parts have older names, and transformers another one for
    magnitudes."""
    for old, new in TEXT_PARTS.items():
        key = key.replace(old, new)
    return key.removesuffix(".weight") if key.endswith(".lora_magnitude_vector.weight") else key


def _ranks(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the rank of each layer, as a file's readers see it; 0 for a LoKr of two whole factors, whose scale
    is 1."""
    ranks: dict[str, int] = {}
    for name, tensor in tensors.items():
        layer, part = split_name(name)
        ranks.setdefault(layer, 0)
        if part in {".lora_A.weight", ".lokr_w1_b", ".lokr_w2_b"}:
            ranks[layer] = tensor.shape[0]
    return ranks


def _configs(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that diffusers writes beside the weights, `unet.r` and so on; nothing when they are not a
    JSON object."""
    try:
        found = json.loads(metadata.get("lora_adapter_metadata", "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _scale(layer: str, rank: int, alpha: float | None, configs: Mapping[str, Any]) -> float:
    """Return the scale by the file's own alpha, by the config of the layer's model, or 1, as diffusers takes it."""
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
    """Return the reasons why `load_lora_weights` would not load this file, or would silently load half of it
    (0.42)."""
    try:
        _, tensors = read_tensors(path)
    except (OSError, SafetensorError) as error:
        return [Fault(where=where, message=f"{path} cannot be read: {error}", hint=HINT)]
    if any(".lokr_" in key for key in tensors):
        return [Fault(where=where, message="diffusers loads no LoKr", hint="look at it in ComfyUI or A1111")]
    if any(key.endswith(".dora_scale") for key in tensors):
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
        message = f"{len(broken)} tensors are not finite, first {broken[0]}"
        yield Fault(where=where, message=message, hint="leave it out")
    for layer, scale in sorted(read.scales.items()):
        if not (math.isfinite(scale) and scale > 0):
            message = f"the alpha of {layer} is not a positive number"
            yield Fault(where=where, message=message, hint="leave the file out")
            return
