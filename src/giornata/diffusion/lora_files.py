"""LoRA files of any trainer, as factors of one update per layer: ΔW = scale · up @ down.

Shapes: O and I the outputs and inputs of the layer, R the rank, K K a convolution's kernel.
    down_RI or down_RIKK, up_OR or up_OR11

kohya's files have `….lora_down.weight`, `….lora_up.weight` and `….alpha`, whose scale is alpha / R; diffusers' have
`….lora_A.weight`, `….lora_B.weight` and say rank and alpha in their metadata (alpha = R where they say nothing).
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open

from giornata.diffusion.families import SD15, SDXL, Family
from giornata.diffusion.kohya_names import SDXL_LAYERS_PER_BLOCK, layers_per_block_of
from giornata.diffusion.kronecker import Kronecker, kroneckers_of
from giornata.diffusion.tensor_file import data_sha256, safetensors_bytes, write_durably
from giornata.domain.errors import Fault, InvalidInput

Naming = Literal["kohya", "diffusers"]
DOWN = {"kohya": ".lora_down.weight", "diffusers": ".lora_A.weight"}
UP = {"kohya": ".lora_up.weight", "diffusers": ".lora_B.weight"}
ALPHA = ".alpha"
CONFIG_KEY = "lora_adapter_metadata"
EMBEDDINGS = "bundle_emb."
SD15_NAMES = ("lora_te_", "lora_unet_down_blocks_", "lora_unet_mid_block_", "lora_unet_up_blocks_")
OTHER_KINDS = {
    "dora_scale": "DoRA",
    "lora_magnitude_vector": "DoRA",
    "lokr_": "LoKr",
    "hada_w": "LoHa",
    "lora_mid": "LoCon with a core (Tucker)",
    "oft_": "OFT",
}
HINTS = {
    "DoRA": "its update depends on the base model's weights: diffusers' fuse_lora puts it into a base, and "
    "giornata train --init-lora goes on from it",
    "LoKr": "a file does not tell the kernels of convolutions whose second factor is a product, and cores (Tucker) "
    "are not known here: giornata train --init-lora goes on from it",
}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's factors, in the precision of the file."""

    down: torch.Tensor
    up: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        """Columns of `up`."""
        return self.down.shape[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Inputs, and the kernel of a convolution."""
        return tuple(self.down.shape[1:])

    @property
    def outputs(self) -> int:
        """How many there are."""
        return self.up.shape[0]

    @property
    def numbers(self) -> int:
        """How many it holds."""
        return self.up.numel() + self.down.numel()

    def with_alpha(self, alpha: float) -> "Layer":
        """The same update with the scale alpha / R; what changes goes into both factors by its root."""
        scale = alpha / self.rank
        factor = self.scale / scale
        if factor == 1.0:
            return self
        root = math.sqrt(abs(factor))
        down, up = root * self.down.double(), math.copysign(root, factor) * self.up.double()
        return Layer(down=down, up=up, scale=scale)

    def delta(self) -> torch.Tensor:
        """ΔW as a matrix, O by I (times K times K), float64."""
        return self.scale * self.up.double().flatten(1) @ self.down.double().flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFile:
    """A file as it was read: layers of up and down, and those of LoKr. `others` are tensors that are neither: kept,
    and never computed with."""

    path: Path
    naming: Naming
    layers: Mapping[str, Layer]
    others: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]
    kroneckers: Mapping[str, Kronecker] = field(default_factory=dict)

    @property
    def updates(self) -> Mapping[str, Layer | Kronecker]:
        """Everything that can be computed with."""
        return {**self.layers, **self.kroneckers}

    @property
    def dtype(self) -> torch.dtype:
        """Of the factors; the widest when they differ."""
        found = {layer.up.dtype for layer in self.layers.values()} | {
            layer.dtype for layer in self.kroneckers.values()
        }
        widest = torch.float16 if torch.float16 in found else torch.bfloat16
        return found.pop() if len(found) == 1 else torch.float32 if found - {widest} else widest

    @property
    def kinds(self) -> list[str]:
        """What its other tensors belong to, such as DoRA."""
        found = {kind for name in self.others for mark, kind in OTHER_KINDS.items() if mark in name}
        found |= {"something unknown" for name in self.others if not _is_known(name)}
        return sorted(found)


def read_lora(path: Path) -> LoraFile:
    """Read a file. Raises InvalidInput when it is none, or its tensors do not belong together."""
    try:
        with safe_open(path, framework="pt") as opened:
            metadata = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (not a mapping)
    except (OSError, SafetensorError) as error:
        raise _refused(path, f"cannot be read: {error}", "give a LoRA in a .safetensors file") from error
    naming: Naming = "diffusers" if any(name.endswith(DOWN["diffusers"]) for name in tensors) else "kohya"
    names = [name.removesuffix(DOWN[naming]) for name in tensors if name.endswith(DOWN[naming])]
    if not names and not any(mark in name for name in tensors for mark in OTHER_KINDS):
        raise _refused(path, "holds no LoRA", "files of kohya's trainers and of diffusers are understood")
    faults = [fault for name in names for fault in _layer_faults(path, name, tensors, naming)]
    if faults:
        raise InvalidInput(faults)
    scales = _Scales.of(metadata) if naming == "diffusers" else None
    layers, used = {}, set[str]()
    for name in names:
        down, up = tensors[name + DOWN[naming]], tensors[name + UP[naming]]
        alpha = tensors.get(name + ALPHA)
        rank = down.shape[0]
        scale = (
            scales.of_layer(name, rank) if scales and alpha is None else 1.0 if alpha is None else float(alpha) / rank
        )
        layers[name] = Layer(down=down, up=up, scale=scale)
        used |= {name + DOWN[naming], name + UP[naming], name + ALPHA}
    kroneckers, factors = kroneckers_of(tensors)
    others = {name: tensor for name, tensor in tensors.items() if name not in used | factors}
    return LoraFile(path=path, naming=naming, layers=layers, others=others, metadata=metadata, kroneckers=kroneckers)


def _layer_faults(path: Path, name: str, tensors: Mapping[str, torch.Tensor], naming: Naming) -> list[Fault]:
    down, up = tensors[name + DOWN[naming]], tensors.get(name + UP[naming])
    where = f"{path.name}: {name}"
    if up is None:
        return [Fault(where=where, message=f"has {DOWN[naming]} and no {UP[naming]}", hint="the file is damaged")]
    if down.ndim not in {2, 4} or up.ndim != down.ndim or up.shape[1] != down.shape[0]:
        message = f"has factors of shapes {tuple(up.shape)} and {tuple(down.shape)}, which give no product"
        return [Fault(where=where, message=message, hint="the file is damaged")]
    if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
        return [Fault(where=where, message="holds values that are not finite", hint="take an earlier checkpoint")]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scales:
    """What a diffusers file says of rank and alpha, in peft's words."""

    config: Mapping[str, Any]

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> "_Scales":
        try:
            config = json.loads(metadata.get(CONFIG_KEY, "{}"))
        except ValueError:
            config = {}
        return cls(config=config if isinstance(config, dict) else {})

    def of_layer(self, name: str, rank: int) -> float:
        prefix, _, module = name.partition(".")
        patterns = self.config.get(f"{prefix}.alpha_pattern") or {}
        alpha = patterns.get(module, self.config.get(f"{prefix}.lora_alpha", rank))
        return alpha / (math.sqrt(rank) if self.config.get(f"{prefix}.use_rslora") else rank)


def write_lora_file(
    path: Path,
    naming: Naming,
    layers: Mapping[str, Layer],
    others: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    *,
    dtype: torch.dtype,
    alpha: float | None = None,
) -> Path:
    """Write the layers in `dtype`. Ranks may differ from layer to layer; alpha is one for all of them, by default the
    largest there is: diffusers (0.42) passes over alphas of single attention layers in kohya's files.

    The fields that tell of ranks, alphas and bytes are made anew; all others of `metadata` stay.
    Raises InvalidInput when a value is not finite in `dtype`.
    """
    largest = max((layer.scale * layer.rank for layer in layers.values()), default=1.0)
    common = alpha if alpha is not None else largest if largest > 0 else 1.0
    scaled = {name: layer.with_alpha(common) for name, layer in layers.items()}
    content, faults = dict(others), []
    for name, layer in scaled.items():
        pair = {name + DOWN[naming]: layer.down.to(dtype), name + UP[naming]: layer.up.to(dtype)}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in pair.values()):
            faults.append(Fault(where=name, message=f"is not finite as {dtype}", hint="write --dtype float32"))
        content |= pair
        if naming == "kohya":
            content[name + ALPHA] = torch.tensor(common, dtype=torch.float32)
    if faults:
        raise InvalidInput(faults)
    told = _rank_fields(naming, scaled, common)
    fields = {**metadata, **told, **_hash_fields(metadata, data_sha256(content))}
    if naming == "kohya":
        fields.pop(CONFIG_KEY, None)
    fields.pop("sshs_legacy_hash", None)
    write_durably(path, safetensors_bytes(content, {"format": "pt", **fields}))
    return path


def _rank_fields(naming: Naming, layers: Mapping[str, Layer], alpha: float) -> dict[str, str]:
    if naming == "diffusers":
        return {CONFIG_KEY: json.dumps(_config(layers, alpha), sort_keys=True)}
    linear = {name: layer for name, layer in layers.items() if layer.down.ndim == 2 or layer.down.shape[-1] == 1}
    kernels = {name: layer for name, layer in layers.items() if name not in linear}
    args = {"conv_dim": _rank_word(kernels), "conv_alpha": str(alpha)} if kernels else {}
    return {
        "ss_network_dim": _rank_word(linear or kernels),
        "ss_network_alpha": str(alpha),
        "ss_network_args": json.dumps(args, sort_keys=True),
    }


def _hash_fields(metadata: Mapping[str, str], sha256: str) -> dict[str, str]:
    """The hashes of the tensors' bytes, as far as the file has such fields."""
    fields = {"sshs_model_hash": sha256, "modelspec.hash_sha256": f"0x{sha256}"}
    return {name: value for name, value in fields.items() if name in metadata}


def _rank_word(layers: Mapping[str, Layer]) -> str:
    """The rank; kohya's word `Dynamic` when there are several."""
    ranks = {layer.rank for layer in layers.values()}
    return str(ranks.pop()) if len(ranks) == 1 else "Dynamic"


def _config(layers: Mapping[str, Layer], alpha: float) -> dict[str, Any]:
    """peft's config for each model: the highest rank, and a pattern for each layer that has another one.

    Names of a text encoder's layers go without its outermost part, which transformers 4 has and 5 has not.
    """
    config: dict[str, Any] = {}
    for prefix in sorted({name.partition(".")[0] for name in layers}):
        part = {
            name.removeprefix(f"{prefix}.").removeprefix("text_model."): layer.rank
            for name, layer in layers.items()
            if name.startswith(f"{prefix}.")
        }
        rank = max(part.values())
        fields: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "target_modules": sorted(part)}
        others = {name: each for name, each in part.items() if each != rank}
        fields |= {"rank_pattern": others} if others else {}
        config |= {f"{prefix}.{key}": value for key, value in fields.items()}
    return config


def family_of_names(files: Iterable[LoraFile]) -> Family:
    """Whose names kohya's files among them use. For Stable Diffusion 1.5 these are diffusers' own with underscores,
    and there is one text encoder."""
    names = [name for file in files if file.naming == "kohya" for name in file.updates]
    if any(name.startswith(("lora_te1_", "lora_te2_")) for name in names):
        return SDXL
    return SD15 if any(name.startswith(SD15_NAMES) for name in names) else SDXL


def in_kohya_names(file: LoraFile, family: Family = SDXL) -> dict[str, Layer | Kronecker]:
    """Its layers under kohya's names, whatever the file's own are. Raises InvalidInput for layers that no model of
    the family has."""
    if file.naming == "kohya":
        return dict(file.updates)
    depth = layers_per_block_of(file.layers) or SDXL_LAYERS_PER_BLOCK
    try:
        return {family.kohya_name(name, layers_per_block=depth): layer for name, layer in file.layers.items()}
    except KeyError as error:
        message = f"has a layer that no {family.title} has: {error.args[0]}"
        raise _refused(file.path, message, "convert it first, or merge files of one naming") from None


def only_plain(files: Iterable[LoraFile]) -> None:
    """Raise InvalidInput for files with more in them than can be computed with."""
    faults = [
        Fault(
            where=file.path.name,
            message=f"is not a plain LoRA: it holds {', '.join(file.kinds)}",
            hint="; ".join(HINTS[kind] for kind in file.kinds if kind in HINTS)
            or "only LoRA's up and down factors, and LoKr's, add up and can be resized",
        )
        for file in files
        if file.kinds
    ]
    if faults:
        raise InvalidInput(faults)


def _is_known(name: str) -> bool:
    return name.startswith(EMBEDDINGS) or any(mark in name for mark in OTHER_KINDS)


def _refused(path: Path, message: str, hint: str) -> InvalidInput:
    return InvalidInput([Fault(where=str(path), message=message, hint=hint)])
